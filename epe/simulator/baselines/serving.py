"""Ways to serve a queue that several baselines share: an order by deadline, and serving in order with holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from epe.messages import Stage
from epe.planning.draft import Draft
from epe.planning.view import TrajectoryView

NEVER_S = float("inf")

# Behind a request that waits for ranks so many others are tried, so that a long queue costs no more than a short one.
MAX_TRIED = 64


def deadline_s(trajectory: TrajectoryView) -> float:
    """The deadline, infinite where there is none."""
    return NEVER_S if trajectory.deadline_s is None else trajectory.deadline_s


def begin_s(draft: Draft, trajectory: TrajectoryView) -> float:
    """When the next task could start at the earliest."""
    return max(draft.view.now_s, trajectory.ready_s)


def is_late(draft: Draft, trajectory: TrajectoryView) -> bool:
    """Whether it misses its deadline even at its fastest width from now on."""
    if trajectory.deadline_s is None:
        return False
    best_s = draft.speeds.of(trajectory).best_s(trajectory)
    return begin_s(draft, trajectory) + best_s > trajectory.deadline_s


def by_deadline(draft: Draft, *, late_last: bool) -> list[TrajectoryView]:
    """Earliest deadline first; with `late_last` those that can no longer be in time stand behind all others."""
    return sorted(
        draft.view.trajectories,
        key=lambda t: (late_last and is_late(draft, t), deadline_s(t), t.arrival_s, t.request_id),
    )


class Want(NamedTuple):
    """A request and the ranks that its next task shall have. `num_steps` are the steps of the lease (None: one
    pulse), `seconds` how long it will keep the ranks (None: for the lease)."""

    trajectory: TrajectoryView
    width: int
    num_steps: int | None = None
    seconds: float | None = None

    def end_s(self, draft: Draft) -> float:
        """When it gives the ranks back, if it starts now."""
        if self.seconds is not None:
            return draft.view.now_s + self.seconds
        return draft.view.now_s + draft.lease_s(self.trajectory, self.width, self.num_steps)


def a_pulse(trajectory: TrajectoryView, width: int) -> Want:
    """The next pulse at this width; encode and decode take one rank."""
    return Want(trajectory, width if trajectory.stage is Stage.DENOISE else 1)


def a_stage(trajectory: TrajectoryView, width: int) -> Want:
    """The whole next stage at this width in one piece; encode and decode take one rank."""
    if trajectory.stage is not Stage.DENOISE:
        return a_pulse(trajectory, 1)
    return Want(trajectory, width, trajectory.num_steps - trajectory.step)


class _Gate:
    """The reservation of the first request that lacks ranks: others may pass it only on ranks that it does not
    need, or if they end before it could start (EASY backfilling, as batch systems do it)."""

    def __init__(self, draft: Draft, width: int) -> None:
        ends = sorted(
            draft.view.now_s if rank in draft.free else until_s for rank, until_s in draft.until_s.items()
        )
        self.at_s = ends[min(width, len(ends)) - 1]
        self.spare = sum(end <= self.at_s for end in ends) - width

    def lets_pass(self, width: int, end_s: float) -> bool:
        if end_s <= self.at_s:
            return True
        if width <= self.spare:
            self.spare -= width
            return True
        return False


def serve(draft: Draft, wants: Iterable[Want], *, hold: bool) -> None:
    """Start in this order what fits into the free ranks; with `hold` nobody delays the first that does not."""
    gate: _Gate | None = None
    num_tried = 0
    for want in wants:
        if not draft.free or num_tried > MAX_TRIED:
            return
        if want.width > len(draft.free):
            if hold and gate is None:
                gate = _Gate(draft, want.width)
        elif gate is None or gate.lets_pass(want.width, want.end_s(draft)):
            _start(draft, want)
        num_tried += gate is not None


def _start(draft: Draft, want: Want) -> None:
    end_s = want.end_s(draft)
    ranks = draft.nearest(want.trajectory, want.width, draft.free)
    draft.start(want.trajectory, ranks, num_steps=want.num_steps)
    for rank in ranks:
        draft.until_s[rank] = end_s


def serve_other_stages(draft: Draft, order: Iterable[TrajectoryView]) -> None:
    """Decodes, then encodes, on whatever rank is idle."""
    waiting = [t for t in order if t.stage is not Stage.DENOISE and draft.may_start(t)]
    waiting.sort(key=lambda t: t.stage is not Stage.DECODE)
    serve(draft, (a_pulse(t, 1) for t in waiting), hold=False)


def assemble(draft: Draft, layout: Iterable[tuple[TrajectoryView, int]], *, hold: bool) -> None:
    """Start what a layout of the whole pool allows now. A request whose ranks are not free yet keeps the free
    ones until they are, or without `hold` starts on fewer."""
    held: set[int] = set()
    for trajectory, width in layout:
        if not draft.may_start(trajectory):
            continue
        width = width if trajectory.stage is Stage.DENOISE else 1
        ranks = draft.nearest(trajectory, width, draft.free - held)
        if len(ranks) == width:
            draft.start(trajectory, ranks)
        elif hold:
            held.update(ranks)
        elif fitting := [each for each in draft.speeds.of(trajectory).widths if each <= len(ranks)]:
            draft.start(trajectory, draft.nearest(trajectory, fitting[-1], ranks))
