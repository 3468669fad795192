"""Who draws in `benchmarks.h200_steps`: each around the same weights, with the same text and noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from benchmarks.random_pipeline import Factory, make_adapter
from benchmarks.real_sizes import MODELS
from epe.families import FAMILIES
from epe.graphs import CudaGraphs, GraphDevice, Graphs
from epe.messages import OutputFormat, Request, Split
from epe.parallel.products import keep_products_whole
from epe.transport.exchange import SoloExchange
from tests.graphs.tape import TapeDevice
from tests.oracle import draw

# Hears how many steps are done.
Watcher = Callable[[int], None]
# Those with one guidance branch, as the distilled checkpoints of the family want it.
UNGUIDED = {"zimage": 0.0, "flux2-klein": 1.0}
GRAPH_BYTES = 16 * 2**30


@dataclass(frozen=True, slots=True)
class StepCase:
    """A family at a size, with texts of so many rows."""

    family: str
    height: int
    width: int
    num_frames: int = 1
    text_rows: int = 128
    timed_steps: int = 4

    @property
    def size(self) -> str:
        frames = f"x{self.num_frames}" if self.num_frames > 1 else ""
        return f"{self.height}x{self.width}{frames}"


class Bench:
    """The weights of one family on the device, and the case of the moment."""

    def __init__(self, name: str, *, device: torch.device, tiny: bool) -> None:
        self.name = name
        self.device = device
        self.tiny = tiny
        self.backend = "eager" if device.type == "cpu" else "inductor"
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        self._factory = Factory(name=name, device=device, dtype=dtype, tiny=tiny)
        self._weights = self._factory.weights()
        self._pipelines: list[Any] = []

    def pipeline(self) -> Any:
        """Another one each time, around the same weights."""
        pipeline = self._factory.pipeline(self._weights)
        self._pipelines.append(pipeline)
        return pipeline

    def request(self, case: StepCase, num_steps: int) -> Request:
        """A request of the case, to whose texts all pipelines listen from now on."""
        for pipeline in self._pipelines:
            replace(self._factory, text_rows=case.text_rows).give_text(pipeline)
        height, width, num_frames = case.height, case.width, case.num_frames
        if self.tiny:
            height, width, num_frames = height // 4, width // 4, min(num_frames, 5)
        return Request(
            id=case.size,
            prompt="a red cube on a white table, beside a blue ball",
            negative_prompt="blurred" if FAMILIES[case.family].negative_prompt else "",
            height=height // 16 * 16,
            width=width // 16 * 16,
            num_frames=num_frames,
            num_steps=num_steps,
            guidance_scale=UNGUIDED.get(case.family, MODELS[case.family].guidance_scale),
            seed=11,
            output_format=OutputFormat.RAW,
        )

    def read_bytes(self, case: StepCase) -> int:
        """Of the weights, which each guidance branch of a step reads."""
        request = self.request(case, 1)
        conditions = FAMILIES[case.family].num_conditions(request.guidance_scale)
        return conditions * sum(weight.nbytes for weight in self._weights.values())

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def graph_device(device: torch.device) -> GraphDevice:
    """What captures passes there."""
    return CudaGraphs(device) if device.type == "cuda" else TapeDevice()


class Entrant(Protocol):
    """Draws the latents of a request; `watch` is called after each step."""

    def draw(self, request: Request, watch: Watcher) -> torch.Tensor: ...

    def facts(self) -> dict[str, int]: ...


class Diffusers:
    """Diffusers' own pipeline, compiled as its documentation says or not."""

    def __init__(self, bench: Bench, *, compiled: bool = False) -> None:
        self._pipeline = bench.pipeline()
        if compiled:
            # Anew for each size, as for whoever draws one alone: kernels for all sizes are slower.
            self._pipeline.transformer.compile_repeated_blocks(
                fullgraph=True, dynamic=False, backend=bench.backend
            )

    def draw(self, request: Request, watch: Watcher) -> torch.Tensor:
        _set_products(whole=False)
        num_done = 0

        def count() -> None:
            nonlocal num_done
            num_done += 1
            watch(num_done)

        return draw(self._pipeline, request, watcher=count).latents

    def facts(self) -> dict[str, int]:
        return {}


class Ours:
    """Our adapter, its passes captured or not, its blocks compiled or not."""

    def __init__(self, bench: Bench, *, captured: bool = False, compiled: bool = False) -> None:
        device = bench.device
        self._adapter: Any = make_adapter(bench.name, bench.pipeline(), device=device, mode="agkv")
        if compiled:
            self._adapter.compile_blocks(backend=bench.backend)
        self._graphs: Graphs | None = None
        # The CPU's graphs see operations one by one, which compiled code has none of.
        if captured and not (compiled and device.type == "cpu"):
            self._graphs = Graphs(graph_device(device), budget_bytes=GRAPH_BYTES)
            self._adapter.use_graphs(self._graphs)

    def draw(self, request: Request, watch: Watcher) -> torch.Tensor:
        _set_products(whole=True)
        state = self._adapter.encode(request)
        for step in range(request.num_steps):
            state = self._adapter.step(state, SoloExchange(), Split())
            watch(step + 1)
        latents: torch.Tensor = state.tensors["latents"]
        return latents

    def facts(self) -> dict[str, int]:
        if self._graphs is None:
            return {}
        counts = self._graphs.statistics
        return {
            "captured": counts.num_captured,
            "replayed": counts.num_replayed,
            "refused": counts.num_refused,
            "mib": counts.num_bytes // 2**20,
        }


def _set_products(*, whole: bool) -> None:
    """Of this process from here on: as a rank has them, or as torch has them by itself."""
    if not torch.cuda.is_available():
        return
    if whole:
        keep_products_whole()
    else:
        torch.backends.cuda.preferred_blas_library("default")
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (True, True)


ENTRANTS: dict[str, Callable[[Bench], Entrant]] = {
    "diffusers": Diffusers,
    "diffusers_compiled": lambda bench: Diffusers(bench, compiled=True),
    "ours": Ours,
    "ours_captured": lambda bench: Ours(bench, captured=True),
    "ours_compiled": lambda bench: Ours(bench, captured=True, compiled=True),
}
