"""From whole trajectories to a profile: what was measured of each, and the numbers made of all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from epe.cache.products import gram_rows
from epe.cache.profile import Profile

_DEGREE = 4
# With fewer steps than were measured latents change by so many times as much from one to the next.
_BEYOND = 5


class Trajectory(Struct, frozen=True, kw_only=True):
    """One request, every step of it computed: the inner products of the velocities of every two steps, and for each
    step but the first by how much latents and velocity have changed since the step before, in parts of their size."""

    products: np.ndarray
    latents_change: tuple[float, ...]
    velocity_change: tuple[float, ...]


class Probe(Struct, frozen=True, kw_only=True):
    """How far one request was led astray before a step, and how far from the end without it that ended."""

    step: int
    error: float
    left: float


def fit(
    trajectories: Sequence[Trajectory],
    probes: Sequence[Probe],
    *,
    sigmas: tuple[float, ...],
    model: str,
    family: str,
    source: str,
) -> Profile:
    """The profile of trajectories over the same noise levels, and of errors in some of them."""
    tea = _polynomial(trajectories)
    return Profile(
        model=model,
        family=family,
        source=source,
        sigmas=sigmas,
        gram=gram_rows(np.mean([_in_parts(each.products, sigmas) for each in trajectories], axis=0)),
        gains=_gains(probes, num_steps=len(sigmas) - 1),
        tea=tea,
        tea_threshold=tea_threshold(trajectories, tea),
    )


def _gains(probes: Sequence[Probe], *, num_steps: int) -> tuple[float, ...]:
    """Straight lines lead from one probed step to the next, and after the last step an error is what it is."""
    probed = sorted({probe.step for probe in probes} - {num_steps})
    means = [_gain([probe for probe in probes if probe.step == step]) for step in probed]
    gains = np.interp(np.arange(num_steps + 1), [*probed, num_steps], [*means, 1.0])
    return tuple(float(f"{gain:.5g}") for gain in gains)


def _gain(probes: Sequence[Probe]) -> float:
    """In the mean of its logarithm, for pictures that an error has made others tell nothing of the rest."""
    ratios = [probe.left / probe.error for probe in probes if probe.left and probe.error]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def _in_parts(products: np.ndarray, sigmas: tuple[float, ...]) -> np.ndarray:
    """Of the squared length of the way that the steps make together."""
    lengths = np.diff(sigmas)
    return np.asarray(products / (lengths @ products @ lengths))


def _polynomial(trajectories: Sequence[Trajectory]) -> tuple[float, ...]:
    """Least squares over all steps of all trajectories, each in parts of the change that it should give, so that the
    many small changes count as much as the few large ones. Of the highest degree that makes no change less than
    nothing, larger ones than were measured included: TeaCache would wait for ever for their sum to reach its threshold.
    """
    given = np.concatenate([each.latents_change for each in trajectories])
    wanted = np.concatenate([each.velocity_change for each in trajectories])
    asked = np.linspace(0, _BEYOND * given.max(), 1000)
    for degree in range(min(_DEGREE, len(set(given.tolist())) - 1), 0, -1):
        fitted = np.polyfit(given, wanted, degree, w=1 / np.maximum(wanted, 1e-3))
        if np.polyval(fitted, asked).min() >= 0:
            return tuple(float(f"{value:.9g}") for value in fitted)
    return (float(f"{wanted.mean():.9g}"),)


def tea_threshold(trajectories: Sequence[Trajectory], tea: Sequence[float]) -> float:
    """The largest threshold at which, by the changes of the latents, half of all steps are computed."""
    changes = [np.polyval(tea, each.latents_change) for each in trajectories]
    half = sum(len(each) + 1 for each in changes) / 2
    most = max(1e-6, *(float(each.sum()) for each in changes))
    thresholds = np.geomspace(most, most * 1e-6, 400)
    enough = (value for value in thresholds if sum(_num_computed(each, value) for each in changes) >= half)
    return float(f"{next(enough, thresholds[-1]):.3g}")


def _num_computed(changes: np.ndarray, threshold: float) -> int:
    """Steps that TeaCache computes, the first and the last included."""
    count, total = 2, 0.0
    for change in changes[:-1]:
        total += change
        if total >= threshold:
            count, total = count + 1, 0.0
    return count
