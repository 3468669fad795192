"""A profile of made-up but smooth trajectories: velocities that are the same mixture of six curves for all of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from epe.cache import Profile
from epe.cache.products import gram_rows


@lru_cache(maxsize=16)
def made_up(*, num_steps: int = 20, seed: int = 0) -> Profile:
    rng = np.random.default_rng(seed)
    sigmas = np.linspace(1, 0, num_steps + 1)
    sigmas = 3 * sigmas / (1 + 2 * sigmas)
    time = np.linspace(0, 1, num_steps)
    curves = np.stack(
        [np.ones(num_steps), time, time**2, np.sin(3 * time), np.exp(-8 * time), np.exp(8 * time - 8)], axis=1
    )
    velocities = curves @ rng.normal(size=(6, 200)) + 0.02 * rng.normal(size=(num_steps, 200))
    way = np.diff(sigmas) @ velocities
    return Profile(
        model="made up",
        family="zimage",
        source="tests",
        sigmas=tuple(sigmas.tolist()),
        gram=gram_rows(velocities @ velocities.T / float(way @ way)),
        gains=(0.9,) * num_steps + (1.0,),
        tea=(1.0, 0.0),
    )
