"""The inner products of a model's velocities, as a profile has them, for any number of steps."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from epe.cache.profile import Profile


@lru_cache(maxsize=8)
def products_at(profile: Profile, num_steps: int) -> tuple[tuple[float, ...], np.ndarray]:
    """Noise levels before each step and after the last, and the products (steps, steps). Where the profile has another
    number of steps, straight lines lead between those at the noise levels around."""
    known, products = profile.num_steps, _whole(profile)
    if num_steps == known:
        return profile.sigmas, products
    levels = np.linspace(0, known, num_steps + 1)
    places = np.minimum(levels[:-1], known - 1)
    below = np.minimum(places.astype(int), known - 2)
    mix = np.zeros((num_steps, known))
    mix[np.arange(num_steps), below] = below + 1 - places
    mix[np.arange(num_steps), below + 1] += places - below
    sigmas = np.interp(levels, np.arange(known + 1), profile.sigmas)
    return tuple(sigmas.tolist()), mix @ products @ mix.T


def length_ratios(profile: Profile, num_steps: int) -> tuple[float, ...]:
    """How long each step's velocity is, by that of the step before; 1 for the first."""
    lengths = np.sqrt(np.diag(products_at(profile, num_steps)[1]))
    return (1.0, *(lengths[1:] / lengths[:-1]).tolist())


def gains_at(profile: Profile, num_steps: int) -> tuple[float, ...]:
    """What of an error in the latents before each step, and after the last, is left at the end."""
    places = np.linspace(0, profile.num_steps, num_steps + 1)
    gains = profile.gains or (1.0,) * (profile.num_steps + 1)
    return tuple(np.interp(places, np.arange(profile.num_steps + 1), gains).tolist())


def gram_rows(products: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """The rows of a profile, up to the diagonal, with seven digits."""
    return tuple(
        tuple(float(f"{value:.7g}") for value in row[: step + 1])
        for step, row in enumerate(products.tolist())
    )


def _whole(profile: Profile) -> np.ndarray:
    whole = np.zeros((profile.num_steps, profile.num_steps))
    for step, row in enumerate(profile.gram):
        whole[step, : step + 1] = whole[: step + 1, step] = row
    return whole
