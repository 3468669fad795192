"""One rank in one case of `benchmarks.h200_families`: its device, and the weights of one family at a time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

import torch

from benchmarks.blas import BLAS
from benchmarks.random_pipeline import Factory, make_adapter
from benchmarks.real_sizes import MODELS
from epe.families import FAMILIES
from epe.geometry import round_up
from epe.messages import OutputFormat, Request, Split
from epe.models.contract import Adapter, State
from epe.transport.exchange import Exchange, SoloExchange
from tests.world import ADAPTERS, RankContext

T = TypeVar("T")
# Ranks that wait for one that has failed give up after this.
LANE_LIMIT_S = 45.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where the cases run: ranks over `nccl` have a GPU each, those over `gloo` share one or run on the CPU."""

    device: str
    num_ranks: int
    backend: str
    dtype: str
    tiny: bool
    blas: str = "exact"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison; `size` counts those of the model, `folder` is where tiny checkpoints are written."""

    family: str
    mode: str = "agkv"
    cfg_parallel_degree: int = 1
    size: int = 0
    ranks: tuple[int, ...] = (0,)
    split: Split = field(default_factory=Split)
    folder: str = ""


def arrive(context: RankContext) -> None:
    """A rank has imported what every case needs."""
    for name in ADAPTERS:
        import_module(name)


class Clock:
    """Seconds of each lap, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.laps_s: list[float] = []
        self._last_s = self._now_s()

    def lap(self) -> None:
        now_s = self._now_s()
        self.laps_s.append(now_s - self._last_s)
        self._last_s = now_s

    def _now_s(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Place:
    """This rank in a case; what it keeps for the next case of the same kind and family is let go before any other."""

    def __init__(self, context: RankContext, setting: Setting, case: Case, *, kind: str) -> None:
        self.context, self.setting, self.case = context, setting, case
        self.family = FAMILIES[case.family]
        self.dtype: torch.dtype = getattr(torch, setting.dtype)
        self.device = torch.device(setting.device)
        if setting.device == "cuda":
            self.device = torch.device("cuda", context.rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
            BLAS[setting.blas].apply()
        self._forget_others(f"{kind} of {case.family}")

    def factory(self, *, shared: bool, shallow: bool = False) -> Factory:
        return Factory(
            name=self.case.family,
            device=self.device,
            dtype=self.dtype,
            tiny=self.setting.tiny,
            shared=shared,
            shallow=shallow,
        )

    def adapter_around(self, pipeline: Any) -> Adapter:
        case = self.case
        return make_adapter(
            case.family, pipeline, device=self.device, mode=case.mode, cfg=case.cfg_parallel_degree
        )

    def adapter(self) -> Adapter:
        """One of each kind, around the same weights."""
        factory = self.factory(shared=self.setting.backend == "gloo")
        weights = self._kept("weights", factory.weights)
        key = f"adapter {self.case.mode} {self.case.cfg_parallel_degree}"
        return self._kept(key, lambda: self.adapter_around(factory.pipeline(weights)))

    def drawn_alone(self, adapter: Adapter, request: Request) -> torch.Tensor:
        """The final latents that this rank draws on a lane of its own."""
        key = f"latents of {request.id}, {request.num_steps} steps, {self.case.cfg_parallel_degree}"
        return self._kept(key, lambda: advance(adapter, adapter.encode(request)).tensors["latents"])

    def groups(self) -> Any:
        return self.context.groups(device=self.device, backend=self.setting.backend, timeout_s=LANE_LIMIT_S)

    def request(self, size: int, *, num_steps: int) -> Request:
        """Of the model's own sizes."""
        model = MODELS[self.case.family]
        height, width, num_frames = (model.tiny_sizes if self.setting.tiny else model.sizes)[size]
        return self.request_of(f"size{size}", height, width, num_frames, num_steps=num_steps)

    def request_of(self, name: str, height: int, width: int, num_frames: int, *, num_steps: int) -> Request:
        return Request(
            id=name,
            prompt="a red cube on a white table, beside a blue ball",
            negative_prompt=" " if self.family.negative_prompt else "",
            height=height,
            width=width,
            num_frames=num_frames,
            num_steps=num_steps,
            guidance_scale=MODELS[self.case.family].guidance_scale,
            seed=11,
            output_format=OutputFormat.RAW,
        )

    def num_rows(self, request: Request) -> int:
        """Rows of the picture in one sequence; Z-Image fills each stream up to a multiple of 32."""
        num_tokens = self.family.num_tokens(
            height=request.height, width=request.width, num_frames=request.num_frames
        )
        return round_up(num_tokens, 32) if self.family.name == "zimage" else num_tokens

    def memory(self) -> dict[str, float]:
        """The most that this process has had of its GPU."""
        if self.device.type == "cpu":
            return {}
        return {"peak_gib": round(torch.cuda.max_memory_allocated(self.device) / 2**30, 1)}

    def _kept(self, key: str, make: Callable[[], T]) -> T:
        kept = self.context.kept
        if key not in kept:
            kept[key] = make()
        found: T = kept[key]
        return found

    def _forget_others(self, title: str) -> None:
        kept = self.context.kept
        if kept.get("title") != title:
            kept.clear()
            kept["title"] = title
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(self.device)


def advance(
    adapter: Adapter,
    state: State,
    exchange: Exchange | None = None,
    split: Split | None = None,
    *,
    clock: Clock | None = None,
) -> State:
    """The finished state; `clock` takes a lap each step."""
    for _ in range(state.step, state.request.num_steps):
        state = adapter.step(state, exchange or SoloExchange(), split or Split())
        if clock is not None:
            clock.lap()
    return state
