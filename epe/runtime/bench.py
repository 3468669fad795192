"""What the tasks of a stage take on one rank of this machine, by the code that runs its leases; beside it, if wanted,
what a step takes in diffusers' own pipeline, as it is and compiled, in turn."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from statistics import median

import torch
from msgspec import Struct

from epe.config.request import resolve_request
from epe.config.stage import Stage as StageFile
from epe.execution.copying import in_host_memory
from epe.execution.memory import meter_for
from epe.execution.run import SoloLanes, Work, run_lease
from epe.execution.states import States
from epe.messages import Lane, Lease, OutputFormat, Request, Stage
from epe.planning.cost_set import CostSet, Size, TaskCost
from epe.runtime.fingerprint import fingerprint
from epe.runtime.rank import adapter_of, device_name, graphs_for, pick_device
from epe.runtime.rival import Rival

PROMPT = "a red fox in the snow, a wooden house behind it, morning light"
# The first pass of a shape runs as it is, and the second is captured.
WARM_STEPS = 2
DIFFUSERS, COMPILED = "diffusers", "diffusers, compiled"


class BenchOptions(Struct, frozen=True, kw_only=True):
    """`sizes` are (height, width) in pixels; each round takes `num_steps` steps."""

    sizes: tuple[tuple[int, int], ...]
    num_steps: int = 4
    num_rounds: int = 3
    against_diffusers: bool = False


class Row(Struct, frozen=True, kw_only=True):
    """One size: seconds of each task, `copy_s` those of the pixels to host memory; of steps, ours and those of
    diffusers' pipelines by name, one value a round. `graph_bytes` are those of all captured passes so far, `capture_s`
    what the step took longer that captured those of this size, `peak_bytes` the most that a step took (0: unknown).
    """

    height: int
    width: int
    num_frames: int
    tokens: int
    conditions: int
    encode_s: float
    step_s: tuple[float, ...]
    decode_s: float
    copy_s: float = 0.0
    peak_bytes: int = 0
    graph_bytes: int = 0
    capture_s: float = 0.0
    others_step_s: dict[str, tuple[float, ...]] = {}

    @property
    def size(self) -> str:
        frames = f"x{self.num_frames}" if self.num_frames > 1 else ""
        return f"{self.height}x{self.width}{frames}"

    def ratios(self, other: str) -> tuple[float, ...]:
        """How many times as fast as another one, by round."""
        theirs = self.others_step_s.get(other, ())
        return tuple(their_s / our_s for their_s, our_s in zip(theirs, self.step_s, strict=False))


def bench(stage: StageFile, options: BenchOptions) -> Iterator[Row]:
    """A row for each size, as they are measured. Raises what loading or drawing raises."""
    target = pick_device(stage.device, index=0)
    rank = _Rank(stage, target)
    rivals = _rivals(stage, target) if options.against_diffusers else {}
    for height, width in options.sizes:
        yield rank.row(height, width, options=options, rivals=rivals)


def _rivals(stage: StageFile, target: torch.device) -> dict[str, Rival]:
    """Compiled only on a GPU: what diffusers documents is for one."""
    plain = Rival(stage, target)
    return {DIFFUSERS: plain, **({COMPILED: plain.compiled()} if target.type == "cuda" else {})}


def costs_of(stage: StageFile, rows: Iterable[Row]) -> CostSet:
    """What was measured, in the form of the file that a service of one rank loads and the simulator reads."""
    measured, target = tuple(rows), device_name(pick_device(stage.device, index=0))
    return CostSet(
        name=stage.family.name,
        hardware=target,
        sources=("measured by epe bench on one rank",),
        fingerprint=f"1 ranks + {fingerprint(stage, device=target, world_size=1)}",
        interpolation="tokens",
        sizes=tuple(_size_of(stage, row) for row in measured),
        tasks=tuple(task for row in measured for task in _tasks_of(row)),
    )


def _size_of(stage: StageFile, row: Row) -> Size:
    return Size(
        name=row.size,
        family=stage.family.name,
        height=row.height,
        width=row.width,
        num_frames=row.num_frames,
        num_steps=stage.factory_args.num_steps,
        conditions=row.conditions,
    )


def _tasks_of(row: Row) -> tuple[TaskCost, ...]:
    return (
        TaskCost(stage="encode", tokens=row.tokens, conditions=row.conditions, seconds=row.encode_s),
        TaskCost(
            stage="denoise",
            tokens=row.tokens,
            conditions=row.conditions,
            seconds=median(row.step_s),
            p90_s=max(row.step_s),
            peak_bytes=row.peak_bytes or None,
        ),
        TaskCost(stage="decode", tokens=row.tokens, seconds=row.decode_s),
    )


class _Rank:
    """A lane of one rank, without the messages around it."""

    def __init__(self, stage: StageFile, target: torch.device) -> None:
        self._stage = stage
        self._target = target
        self._graphs = graphs_for(stage, target, world_size=1)
        self._adapter = adapter_of(stage, target, graphs=self._graphs)
        self._meter = meter_for(target, limit_bytes=None)
        self._states = States()
        self._num_leases = 0

    def row(self, height: int, width: int, *, options: BenchOptions, rivals: Mapping[str, Rival]) -> Row:
        num_timed = options.num_rounds * options.num_steps
        request = self._request(height, width, num_steps=WARM_STEPS + num_timed)
        encode_s = self._usual(request, Stage.ENCODE, step=0, count=options.num_rounds)
        *_, second = (
            self._run(request, Stage.DENOISE, step=step, num_steps=1).seconds for step in range(WARM_STEPS)
        )
        self._meter.reset()
        ours: list[float] = []
        theirs: dict[str, list[float]] = {name: [] for name in rivals}
        for step in range(WARM_STEPS, WARM_STEPS + num_timed, options.num_steps):
            work = self._run(request, Stage.DENOISE, step=step, num_steps=options.num_steps)
            ours.append(work.seconds)
            for name, rival in rivals.items():
                theirs[name].append(rival.step_s(request, num_steps=options.num_steps))
        peak_bytes = self._meter.peak_bytes()
        return Row(
            height=height,
            width=width,
            num_frames=request.num_frames,
            tokens=self._stage.family.num_tokens(height=height, width=width, num_frames=request.num_frames),
            conditions=self._stage.family.num_conditions(request.guidance_scale),
            encode_s=encode_s,
            step_s=tuple(ours),
            decode_s=self._usual(request, Stage.DECODE, step=request.num_steps, count=options.num_rounds),
            copy_s=self._copy_s(request, count=options.num_rounds),
            peak_bytes=peak_bytes,
            graph_bytes=0 if self._graphs is None else self._graphs.statistics.num_bytes,
            capture_s=0.0 if self._graphs is None else max(0.0, second - median(ours)),
            others_step_s={name: tuple(seconds) for name, seconds in theirs.items()},
        )

    def _request(self, height: int, width: int, *, num_steps: int) -> Request:
        args = self._stage.factory_args
        return resolve_request(
            self._stage.family,
            id=f"{height}x{width}",
            prompt=PROMPT,
            height=height,
            width=width,
            num_frames=args.num_frames if self._stage.family.makes == "video" else None,
            num_steps=num_steps,
            seed=0,
            output_format=OutputFormat.RAW,
            defaults=self._stage.request_defaults,
        )

    def _usual(self, request: Request, stage: Stage, *, step: int, count: int) -> float:
        """The median of `count` times after one that does not count."""
        works = [self._run(request, stage, step=step, num_steps=0) for _ in range(1 + count)]
        return median(work.seconds for work in works[1:])

    def _copy_s(self, request: Request, *, count: int) -> float:
        """As `_usual`, of decoded pixels on their way to host memory."""
        pixels = self._run(request, Stage.DECODE, step=request.num_steps, num_steps=0).pixels
        assert pixels is not None
        times = []
        for _ in range(1 + count):
            begin_s = time.perf_counter()
            in_host_memory(pixels)
            times.append(time.perf_counter() - begin_s)
        return median(times[1:])

    def _run(self, request: Request, stage: Stage, *, step: int, num_steps: int) -> Work:
        self._num_leases += 1
        lease = Lease(
            seq=self._num_leases,
            epoch=0,
            lane=Lane(ranks=(0,)),
            stage=stage,
            request=request,
            first_step=step,
            num_steps=num_steps,
        )
        (work,) = run_lease(
            [lease],
            adapter=self._adapter,
            lanes=SoloLanes(),
            states=self._states,
            synchronize=partial(_wait_for, self._target),
            in_bands=self._stage.decodes_in_bands,
        )
        return work


def _wait_for(target: torch.device) -> None:
    """Until the device has done all that it was given."""
    if target.type == "cuda":
        torch.cuda.synchronize(target)
