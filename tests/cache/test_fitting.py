"""What profiles say of trajectories and of errors in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from epe.cache import Profile
from epe.cache.fitting import Probe, Trajectory, fit
from epe.cache.freecache import choice_of, free_choice, gaps_of
from epe.cache.products import gains_at
from tests.cache.profiles import made_up

SIGMAS = (1.0, 0.75, 0.5, 0.25, 0.0)


def fitted(*probes: Probe) -> Profile:
    velocities = np.array([[1.0, 0.0], [1.0, 0.5], [1.0, 1.0], [1.0, 1.5]])
    trajectory = Trajectory(
        products=velocities @ velocities.T, latents_change=(0.1, 0.2, 0.3), velocity_change=(0.2, 0.4, 0.6)
    )
    return fit([trajectory], probes, sigmas=SIGMAS, model="made up", family="zimage", source="a test")


def test_gains_are_what_is_left_of_errors_and_lines_lead_between_probed_steps() -> None:
    probes = [
        Probe(step=1, error=3.0, left=4.5),
        Probe(step=1, error=4.0, left=24.0),
        Probe(step=3, error=2.0, left=1.0),
    ]
    assert fitted(*probes).gains == pytest.approx((3.0, 3.0, 1.75, 0.5, 1.0))
    assert gains_at(fitted(*probes), 8) == pytest.approx((3, 3, 3, 2.375, 1.75, 1.125, 0.5, 0.75, 1))


def test_without_probes_all_of_an_error_is_left() -> None:
    assert fitted().gains == (1.0,) * 5
    assert gains_at(replace(fitted(), gains=()), 2) == (1.0, 1.0, 1.0)


def test_products_are_parts_of_the_squared_way() -> None:
    profile = fitted()
    rows = np.zeros((4, 4))
    for step, row in enumerate(profile.gram):
        rows[step, : step + 1] = rows[: step + 1, step] = row
    lengths = np.diff(SIGMAS)
    assert lengths @ rows @ lengths == pytest.approx(1.0)


def test_where_early_errors_grow_freecache_computes_more_of_the_first_steps() -> None:
    """A late error that is mended costs less than an early one that grows, however large."""
    profile = made_up()
    alike = replace(profile, gains=(1.0,) * 21)
    growing = replace(profile, gains=(*np.geomspace(30, 0.1, 20).tolist(), 1.0))
    even, early = (free_choice(each, 20, frozenset({0, 19}), 9).computed for each in (alike, growing))
    assert sum(step < 10 for step in early) > sum(step < 10 for step in even)
    assert choice_of(gaps_of(growing, 20), early).error < choice_of(gaps_of(growing, 20), even).error


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), num_steps=st.integers(4, 50))
def test_no_change_of_latents_counts_as_less_than_nothing_however_large_it_is(
    seed: int, num_steps: int
) -> None:
    """Of fewer steps than were measured TeaCache computed none between the first and the last: for changes as large as
    theirs the polynomial fell below 0, and the sum with it."""
    rng = np.random.default_rng(seed)
    latents = rng.uniform(0.001, 0.1, num_steps - 1)
    velocity = rng.uniform(0.001, 0.2) + rng.normal(scale=0.05, size=num_steps - 1) ** 2
    measured = Trajectory(
        products=np.eye(num_steps),
        latents_change=tuple(latents.tolist()),
        velocity_change=tuple(velocity.tolist()),
    )
    sigmas = tuple(np.linspace(1, 0, num_steps + 1).tolist())
    profile = fit([measured], [], sigmas=sigmas, model="made up", family="zimage", source="a test")
    changes = np.polyval(profile.tea, np.linspace(0, 5 * latents.max(), 500))
    assert changes.min() > -1e-6
    assert changes.max() > 0


def test_the_fitted_threshold_of_teacache_computes_half_of_the_steps() -> None:
    """One for all models computed all steps of one and none of another."""
    for scale in (0.001, 1.0, 30.0):
        changes = scale * np.random.default_rng(0).uniform(0.5, 1.5, 49)
        latents = np.linspace(0.01, 0.1, 49)
        measured = Trajectory(
            products=np.eye(50), latents_change=tuple(latents), velocity_change=tuple(changes)
        )
        sigmas = tuple(np.linspace(1, 0, 51).tolist())
        profile = fit([measured], [], sigmas=sigmas, model="made up", family="zimage", source="a test")
        expected = np.polyval(profile.tea, latents).mean()
        assert expected < profile.tea_threshold < 3 * expected
