"""Other libraries in `benchmarks.h200_steps`, where they are installed: cache-dit and xfuser, around the same weights.

Both call diffusers' own pipelines. On one GPU they are faster by what they compile and by steps whose blocks they leave
out; the latter stand beside our own that leave out as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from msgspec.structs import replace

from benchmarks.step_entrants import Bench, Diffusers, Entrant, Ours, Watcher
from benchmarks.step_xfuser import Xfuser
from epe.messages import FreeCache, Request, Reuse


class CacheDit(Diffusers):
    """As its documentation compiles: blocks that repeat, with its settings of torch's compiler. With `reusing`, every
    second step is left out but for its first eight blocks, which is its default (DBCache)."""

    def __init__(self, bench: Bench, *, reusing: bool = False) -> None:
        super().__init__(bench)
        self._reusing = reusing
        self._num_kept_blocks = 1 if bench.tiny else 8
        self._settings = _changed_settings()
        with self._its_settings():
            self._pipeline.transformer.compile_repeated_blocks(
                fullgraph=True, dynamic=False, backend=bench.backend
            )

    def draw(self, request: Request, watch: Watcher) -> torch.Tensor:
        import cache_dit

        if self._reusing:
            mask = [int(step in computed_steps(request.num_steps)) for step in range(request.num_steps)]
            cache_dit.enable_cache(
                self._pipeline,
                cache_config=cache_dit.DBCacheConfig(
                    Fn_compute_blocks=self._num_kept_blocks,
                    num_inference_steps=request.num_steps,
                    steps_computation_mask=mask,
                    steps_computation_policy="static",
                ),
            )
        try:
            with self._its_settings():
                return super().draw(request, watch)
        finally:
            if self._reusing:
                cache_dit.disable_cache(self._pipeline)

    @contextmanager
    def _its_settings(self) -> Iterator[None]:
        inductor, dynamo = self._settings
        with torch._inductor.config.patch(inductor), torch._dynamo.config.patch(dynamo):
            yield


class OursReusing(Ours):
    """With every second step left out, by FreeCache."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, captured=True, compiled=True)

    def draw(self, request: Request, watch: Watcher) -> torch.Tensor:
        computed = computed_steps(request.num_steps)
        budget = len(computed)
        plan = Reuse(strategy=FreeCache(fresh_budget=budget), computed=computed, pulls=(0.5,) * budget)
        return super().draw(replace(request, reuse=plan), watch)


def computed_steps(num_steps: int) -> tuple[int, ...]:
    """The first, and of those that follow every second."""
    return (0, *range(2, num_steps, 2))


def _changed_settings() -> tuple[dict[str, Any], dict[str, Any]]:
    """What cache-dit sets of torch's compiler, which is set for the whole process; undone again."""
    import cache_dit

    modules: tuple[Any, Any] = (torch._inductor.config, torch._dynamo.config)
    before = [module.get_config_copy() for module in modules]
    cache_dit.set_compile_configs()
    inductor, dynamo = (
        {name: value for name, value in module.get_config_copy().items() if value != old[name]}
        for module, old in zip(modules, before, strict=True)
    )
    for module, old in zip(modules, before, strict=True):
        module.load_config(old)
    return inductor, dynamo


LIBRARIES: dict[str, Callable[[Bench], Entrant]] = {
    "cache_dit": CacheDit,
    "cache_dit_reusing": lambda bench: CacheDit(bench, reusing=True),
    "ours_reusing": OursReusing,
    "xfuser": Xfuser,
}
