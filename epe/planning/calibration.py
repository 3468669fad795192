"""The warm-up program: which lanes draw which sizes, so that every cost is measured before the first request.

All lanes of a width draw at once, so that what they cost each other is in the figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from epe.families import Family
from epe.geometry import max_width
from epe.messages import OutputFormat, Request, Stage
from epe.planning.cost_set import Size
from epe.planning.costs import CostTable, Workload
from epe.planning.view import MAX_LEASES, Assignment, TrajectoryView, View, widest_within
from epe.planning.work import cost_key

# Height, width and frames.
Sides = tuple[int, int, int]
# Lanes of a request by step; the last one goes on to its end.
Path = tuple[tuple[int, ...], ...]

Measures = Literal["tasks", "moves", "nothing"]

# Up to so many ranks the moves of all pairs are measured; their number grows with the square.
ALL_PAIRS = 8
# A pair is measured so often, as long as these are not more moves in all.
MAX_TIMES = 3
ENOUGH_MOVES = 60
# Before a size is measured it is drawn so often, in so many steps: solvers of second order do something for the first
# time in their third step, and a decode is captured when it has come twice.
_KERNEL_ROUNDS, _KERNEL_STEPS = 2, 3
WARM_UP_PROMPT = "a red cube on a white table"
_NAME = "warmup"


class Round(Struct, frozen=True, kw_only=True):
    """Requests that run at the same time, each on the lanes of its path.

    `measures` says what is learned: the seconds of tasks, or of moves; or nothing, where the costs are known and
    only kernels and groups are to be used for the first time.
    """

    requests: tuple[Request, ...]
    paths: dict[str, Path]
    measures: Measures = "tasks"


class Program(Struct, frozen=True, kw_only=True):
    """What is measured: each of `sizes` (pixels of height and width, and frames) on each lane width that it may have.

    `guidance_scale` is that of requests which name none (None: the family's), so that what is usual is measured: a step
    with guidance is another task than one without. Decodes are measured at `decode_widths`, and steps as batches of
    `batches` requests too.
    """

    family: Family
    sizes: tuple[Sides, ...]
    widths: tuple[int, ...]
    world: int
    num_steps: int
    guidance_scale: float | None = None
    decode_widths: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = ()
    usual_steps: int = 20

    def rounds(self, costs: CostTable, *, use_kernels: bool = False) -> Iterator[Round]:
        """A round for each size and width that `costs` do not know, small pictures first, then one for moves.

        With `use_kernels` each is drawn twice in a few steps before: no figure shall have in it, and no client wait
        for, what a device does at its first call, when kernels are loaded or compiled and passes captured. (The first
        step of a batch, which is all that it does for the first time, is in no figure anyway.)
        """
        for size, batch in product(sorted(self.sizes), (1, *self.batches)):
            for width in self._widths(size):
                is_known = self._is_known(costs, size, width, batch=batch)
                if use_kernels and (is_known or batch == 1):
                    yield from self._kernel_rounds(size, width, batch=batch)
                if not is_known:
                    yield self._round(size, width, num_steps=self.num_steps, batch=batch, measures="tasks")
        if self.sizes and self.world > 1 and self.family.migratable and not costs.moves.measured:
            yield self._tour(min(self.sizes))

    def _kernel_rounds(self, size: Sides, width: int, *, batch: int) -> Iterator[Round]:
        for turn in range(_KERNEL_ROUNDS):
            yield self._round(
                size, width, num_steps=_KERNEL_STEPS, batch=batch, measures="nothing", turn=turn
            )

    @property
    def shown_sizes(self) -> tuple[Size, ...]:
        """The sizes in the form of a cost set; a request of one has `usual_steps`."""
        return tuple(
            Size(
                name=Size.named(height=height, width=width, num_frames=num_frames),
                family=self.family.name,
                height=height,
                width=width,
                num_frames=num_frames,
                num_steps=self.usual_steps,
                conditions=self.family.num_conditions(self._scale),
            )
            for height, width, num_frames in sorted(self.sizes)
        )

    @property
    def _scale(self) -> float:
        return self.family.defaults.guidance_scale if self.guidance_scale is None else self.guidance_scale

    def _widths(self, size: Sides) -> list[int]:
        widest = max_width(self._workload(size).tokens)
        return [width for width in self.widths if width <= widest] or [1]

    def _workload(self, size: Sides) -> Workload:
        height, width, num_frames = size
        tokens = self.family.num_tokens(height=height, width=width, num_frames=num_frames)
        return Workload(tokens=tokens, conditions=self.family.num_conditions(self._scale))

    def _is_known(self, costs: CostTable, size: Sides, width: int, *, batch: int) -> bool:
        workload = self._workload(size)
        decode_width = widest_within(self.decode_widths, width)
        tasks = ((Stage.ENCODE, 1), (Stage.DECODE, decode_width)) if batch == 1 else ()
        keys = [
            cost_key(workload, Stage.DENOISE, width, batch=batch),
            *(cost_key(workload, *t) for t in tasks),
        ]
        return all(key in costs.measured for key in keys)

    def _round(
        self, size: Sides, lane_width: int, *, num_steps: int, batch: int, measures: Measures, turn: int = 0
    ) -> Round:
        height, width, num_frames = size
        shown = Size.named(height=height, width=width, num_frames=num_frames)
        named = f"{_NAME}-{measures}-{shown}-w{lane_width}" + f"-again{turn}" * (turn > 0)
        paths: dict[str, Path] = {
            f"{named}-{first}" + f".{place}" * (batch > 1): (tuple(range(first, first + lane_width)),)
            for first in range(0, self.world - lane_width + 1, lane_width)
            for place in range(batch)
        }
        requests = tuple(self._request(name, size, num_steps=num_steps) for name in paths)
        return Round(requests=requests, paths=paths, measures=measures)

    def _tour(self, size: Sides) -> Round:
        """One request that passes from rank to rank, alone in the world; of a video as few frames as there can be,
        since its steps take much longer than the moves."""
        path = tuple((rank,) for rank in tour(self.world)[: self.family.max_steps])
        short = (*size[:2], self.family.frames.base)
        request = self._request(f"{_NAME}-moves", short, num_steps=len(path))
        return Round(requests=(request,), paths={request.id: path}, measures="moves")

    def _request(self, name: str, size: Sides, *, num_steps: int) -> Request:
        height, width, num_frames = size
        return Request(
            id=name,
            prompt=WARM_UP_PROMPT,
            height=height,
            width=width,
            num_frames=num_frames,
            num_steps=max(num_steps, self.family.min_steps),
            guidance_scale=self._scale,
            seed=0,
            # What is usual for pictures. A video's encoder may be missing, and takes long.
            output_format=OutputFormat.PNG if self.family.makes == "picture" else OutputFormat.RAW,
        )


def is_warm_up(request_id: str) -> bool:
    """Whether a request of this id is one of a program's. Clients' have ids of another form."""
    return request_id.startswith(f"{_NAME}-")


def tour(world: int) -> list[int]:
    """Ranks in an order in which every ordered pair comes equally often: several times where they are few, once up to
    `ALL_PAIRS` ranks. Of more ranks only pairs that are far from each other come, since all would take too long."""
    if world > ALL_PAIRS:
        return [rank for first in range(world) for rank in (first, (first + world // 2) % world)]
    pairs = ((first, second) for first in range(world) for second in range(first + 1, world))
    once = [rank for pair in pairs for rank in pair]
    num_times = min(MAX_TIMES, max(1, ENOUGH_MOVES // len(once)))
    return once * num_times + [0]


class Pinned:
    """The policy of a round: every request on the lanes of its path, one step a lease, so that each is a sample.

    Requests of one path are a batch: they take their steps together, once all of them are encoded.
    """

    def __init__(self, paths: dict[str, Path]) -> None:
        self.paths = paths

    def plan(self, view: View) -> tuple[Assignment, ...]:
        groups: defaultdict[Path, list[TrajectoryView]] = defaultdict(list)
        for trajectory in view.trajectories:
            groups[self.paths[trajectory.request_id]].append(trajectory)
        open_ranks, plan = set(view.open_ranks), []
        for path, group in groups.items():
            for assignment in _pinned(group, path, view):
                if open_ranks.issuperset(assignment.ranks):
                    open_ranks.difference_update(assignment.ranks)
                    plan.append(assignment)
        return tuple(plan)


def _pinned(group: list[TrajectoryView], path: Path, view: View) -> Iterator[Assignment]:
    """What the requests of a path could do next: those that are ready wait for those that are not."""
    is_whole = not any(t.stage is Stage.ENCODE for t in group)
    batch = [t for t in group if t.stage is Stage.DENOISE and not t.alone]
    if is_whole and len(batch) > 1 and all(t.num_leases < MAX_LEASES for t in batch):
        yield replace(_next(batch[0], path, view), partners=tuple(t.request_id for t in batch[1:]))
    for trajectory in group:
        waits = trajectory in batch and (len(batch) > 1 or not is_whole)
        if trajectory.num_leases < MAX_LEASES and not waits:
            yield _next(trajectory, path, view)


def _next(trajectory: TrajectoryView, path: Path, view: View) -> Assignment:
    lane = path[min(trajectory.step, len(path) - 1)]
    if trajectory.stage is not Stage.DENOISE:
        width = 1 if trajectory.stage is Stage.ENCODE else view.decode_width(len(lane))
        return Assignment(request_id=trajectory.request_id, ranks=lane[:width])
    return Assignment(request_id=trajectory.request_id, ranks=lane, num_steps=1)


def batch_sizes(max_batch: int) -> tuple[int, ...]:
    """The batches that are measured: each twice the one before, and the largest."""
    doubled = (2**power for power in range(1, max_batch.bit_length()))
    return tuple(sorted({size for size in (*doubled, max_batch) if 1 < size <= max_batch}))
