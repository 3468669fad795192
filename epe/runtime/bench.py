"""What the tasks of a stage take on lanes of each width, by the code that runs its leases; beside one rank, if wanted,
what a step takes in diffusers' own pipeline, as it is and compiled, in turn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median

import torch
from msgspec import Struct
from msgspec.structs import replace

from epe.config.request import resolve_request
from epe.config.sizes import named
from epe.config.stage import Stage as StageFile
from epe.execution.copying import in_host_memory
from epe.execution.memory import memory_for, meter_for
from epe.execution.run import Work, run_lease
from epe.execution.states import States
from epe.geometry import max_width
from epe.messages import Lane, Lease, OutputFormat, Request, Split, Stage
from epe.planning.view import widest_within
from epe.planning.work import split_of
from epe.runtime.bench_planes import on_all_ranks
from epe.runtime.exactness import left_out_by_any
from epe.runtime.gpus import pick_device
from epe.runtime.rank import Seat, load
from epe.runtime.rival import Rival
from epe.transport.groups import Groups, aligned_lanes

PROMPT = "a red fox in the snow, a wooden house behind it, morning light"
# The first pass of a shape runs as it is, and the second is captured.
WARM_STEPS = 2
ALONE = Seat(rank=0, world_size=1, device_index=0)
# Height, width, frames.
Shape = tuple[int, int, int]
DIFFUSERS, COMPILED = "diffusers", "diffusers, compiled"


class BenchOptions(Struct, frozen=True, kw_only=True):
    """`sizes` are height and width in pixels, and frames; each round takes `num_steps` steps."""

    sizes: tuple[Shape, ...]
    num_steps: int = 4
    num_rounds: int = 3
    against_diffusers: bool = False


class Row(Struct, frozen=True, kw_only=True):
    """One size on a lane of `num_ranks` in each plane, decoded by `num_decoding`: seconds of each task, `copy_s` those
    of the pixels to host memory; of steps, ours and those of diffusers' pipelines by name, one value a round.
    `graph_bytes` are those of all captured passes so far, `capture_s` what the step took longer that captured those of
    this size, `peak_bytes` the most that a step took (0: unknown)."""

    height: int
    width: int
    num_frames: int
    num_ranks: int = 1
    num_decoding: int = 1
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
        return named(self.height, self.width, self.num_frames)

    def ratios(self, other: str) -> tuple[float, ...]:
        """How many times as fast as another one, by round."""
        theirs = self.others_step_s.get(other, ())
        return tuple(their_s / our_s for their_s, our_s in zip(theirs, self.step_s, strict=False))


def bench(stage: StageFile, options: BenchOptions, *, seat: Seat = ALONE) -> Iterator[Row]:
    """A row for each size and width, as they are measured. Every process of the world asks for all of them; the lanes
    of a width work at once. Raises what loading or drawing raises, and `OutOfMemory`."""
    target = pick_device(stage.device, index=seat.device_index)
    rank = _Rank(stage, target, seat)
    with memory_for("a second model", advice="do not time it against diffusers"):
        rivals = _rivals(stage, target) if options.against_diffusers else {}
    for size in options.sizes:
        for lane, decoding in rank.lanes(size):
            with memory_for(named(*size), advice="time smaller sizes"):
                row = rank.row(size, lane=lane, decoding=decoding, options=options, rivals=rivals)
            yield row
    rank.close()


def _rivals(stage: StageFile, target: torch.device) -> dict[str, Rival]:
    """Compiled only on a GPU: what diffusers documents is for one."""
    plain = Rival(stage, target)
    return {DIFFUSERS: plain, **({COMPILED: plain.compiled()} if target.type == "cuda" else {})}


class _Rank:
    """This process in the lanes of its world, without the messages around them."""

    def __init__(self, stage: StageFile, target: torch.device, seat: Seat) -> None:
        self._stage = stage
        self._target = target
        self._seat = seat
        # Nothing is kept of a prompt, which is always the same one here.
        forgetful = replace(stage, prompts=replace(stage.prompts, memory_mib=0))
        self._equipment = load(seat, target=target, stage=forgetful)
        self._left_out = self._equipment.unlike_widths
        if seat.store is not None:
            self._left_out = left_out_by_any(
                self._left_out, rank=seat.rank, world_size=seat.world_size, store=seat.store
            )
        # The others neither encode nor decode.
        self._is_in_first_plane = seat.rank < seat.world_size // stage.num_planes
        self._meter = meter_for(target, limit_bytes=None)
        self._states = States()
        self._num_leases = 0

    def lanes(self, size: Shape) -> Iterator[tuple[Lane, Lane]]:
        """Those of this process that may draw a size, narrow ones first; beside each the one that decodes, which is of
        the first plane."""
        for num_ranks in self._widths(size):
            if (lane := self._lane(num_ranks)) is not None:
                decoding = self._lane(widest_within(self._stage.decode_widths, num_ranks)) or lane
                yield lane, Lane(ranks=decoding.ranks[: decoding.width // self._stage.num_planes])

    def _widths(self, size: Shape) -> Sequence[int]:
        """One rank where none of the allowed widths fits, as in the warm-up of a service."""
        widest = min(max_width(self._tokens(size)), self._seat.world_size // self._stage.num_planes)
        allowed = self._stage.parallelism.scheduler.allowed_lane_widths
        return [width for width in allowed if width <= widest and width not in self._left_out] or [1]

    def _lane(self, num_ranks: int) -> Lane | None:
        """The lane of a width that this process is in; it spans all planes."""
        size, planes = self._seat.world_size, self._stage.num_planes
        lanes = aligned_lanes(size, (num_ranks,), num_planes=planes) or (Lane(ranks=(self._seat.rank,)),)
        return next((lane for lane in lanes if self._seat.rank in lane.ranks), None)

    def _tokens(self, size: Shape) -> int:
        height, width, num_frames = size
        return self._stage.family.num_tokens(height=height, width=width, num_frames=num_frames)

    def row(
        self, size: Shape, *, lane: Lane, decoding: Lane, options: BenchOptions, rivals: Mapping[str, Rival]
    ) -> Row:
        count = options.num_rounds
        request = self._request(size, num_steps=WARM_STEPS + count * options.num_steps)
        encode_s = self._usual(request, Stage.ENCODE, self._lane(1) or lane, step=0, count=count)
        self._share(request, lane)
        *_, second = (
            self._run(request, Stage.DENOISE, lane, step=step, num_steps=1).seconds
            for step in range(WARM_STEPS)
        )
        self._meter.reset()
        ours, theirs = self._steps_s(request, lane, options, rivals)
        peak_bytes = self._meter.peak_bytes()
        graphs = self._equipment.graphs
        return Row(
            height=request.height,
            width=request.width,
            num_frames=request.num_frames,
            num_ranks=lane.width // self._stage.num_planes,
            num_decoding=decoding.width,
            tokens=self._tokens(size),
            conditions=self._stage.family.num_conditions(request.guidance_scale),
            encode_s=encode_s,
            step_s=ours,
            decode_s=self._usual(request, Stage.DECODE, decoding, step=request.num_steps, count=count),
            copy_s=self._copy_s(request, decoding, count=count),
            peak_bytes=peak_bytes,
            graph_bytes=0 if graphs is None else graphs.statistics.num_bytes,
            capture_s=0.0 if graphs is None else max(0.0, second - median(ours)),
            others_step_s=theirs,
        )

    def _steps_s(
        self, request: Request, lane: Lane, options: BenchOptions, rivals: Mapping[str, Rival]
    ) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
        """Seconds of a step in each round: ours, and those of others by name, in turn."""
        ours: list[float] = []
        theirs: dict[str, list[float]] = {name: [] for name in rivals}
        for step in range(WARM_STEPS, request.num_steps, options.num_steps):
            work = self._run(request, Stage.DENOISE, lane, step=step, num_steps=options.num_steps)
            ours.append(work.seconds)
            for name, rival in rivals.items():
                theirs[name].append(rival.step_s(request, num_steps=options.num_steps))
        return tuple(ours), {name: tuple(seconds) for name, seconds in theirs.items()}

    def _share(self, request: Request, lane: Lane) -> None:
        """Give ranks of other planes the state that those of the first one have made."""
        if self._stage.num_planes > 1:
            state = on_all_ranks(
                self._states.take(request.id, 0) if self._is_in_first_plane else None,
                request,
                adapter=self._equipment.adapter,
                exchange=self._equipment.lanes.exchange(lane),
                target=self._target,
            )
            self._states.put(state)

    def close(self) -> None:
        if isinstance(self._equipment.lanes, Groups):
            self._equipment.lanes.close()

    def _request(self, size: Shape, *, num_steps: int) -> Request:
        height, width, num_frames = size
        return resolve_request(
            self._stage.family,
            id=named(*size),
            prompt=PROMPT,
            height=height,
            width=width,
            num_frames=num_frames,
            num_steps=num_steps,
            seed=0,
            output_format=OutputFormat.RAW,
            defaults=self._stage.request_defaults,
        )

    def _usual(self, request: Request, stage: Stage, lane: Lane, *, step: int, count: int) -> float:
        """The median of `count` times after one that does not count."""
        works = [self._run(request, stage, lane, step=step, num_steps=0) for _ in range(1 + count)]
        return median(work.seconds for work in works[1:])

    def _copy_s(self, request: Request, decoding: Lane, *, count: int) -> float:
        """As `_usual`, of decoded pixels on their way to host memory; 0 where another rank of the lane has them."""
        pixels = self._run(request, Stage.DECODE, decoding, step=request.num_steps, num_steps=0).pixels
        if pixels is None:
            return 0.0
        times = []
        for _ in range(1 + count):
            begin_s = time.perf_counter()
            in_host_memory(pixels)
            times.append(time.perf_counter() - begin_s)
        return median(times[1:])

    def _run(self, request: Request, stage: Stage, lane: Lane, *, step: int, num_steps: int) -> Work:
        # Ranks number their leases alike, whether or not they have a part in one.
        self._num_leases += 1
        if stage is not Stage.DENOISE and not self._is_in_first_plane:
            return Work(step, 0.0)
        lease = Lease(
            seq=self._num_leases,
            epoch=self._seat.epoch,
            lane=lane,
            stage=stage,
            request=request,
            first_step=step,
            num_steps=num_steps,
            split=self._split(request, lane) if stage is Stage.DENOISE else Split(),
        )
        (work,) = run_lease(
            [lease],
            adapter=self._equipment.adapter,
            lanes=self._equipment.lanes,
            states=self._states,
            synchronize=partial(_wait_for, self._target),
            in_bands=self._stage.decodes_in_bands,
        )
        return work

    def _split(self, request: Request, lane: Lane) -> Split:
        return split_of(
            lane.width // self._stage.num_planes,
            conditions=self._stage.family.num_conditions(request.guidance_scale),
            cfg_parallel_degree=self._stage.parallelism.model.cfg_parallel_degree,
            num_planes=self._stage.num_planes,
        )


def _wait_for(target: torch.device) -> None:
    """Until the device has done all that it was given."""
    if target.type == "cuda":
        torch.cuda.synchronize(target)
