"""DDiT's greedy allocation (arXiv 2506.13497): a request starts on what is free and grows at its step boundaries.

Known from the abstract and from notes on the paper; its optimal-but-offline allocation is not built here.
"""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.draft import Draft
from epe.planning.order import by_arrival
from epe.planning.speeds import Speed
from epe.planning.view import Assignment, TrajectoryView, View
from epe.simulator.baselines.settings import BaselineSettings

# A doubling of the width pays while it saves this share of a step (the paper: up to the last one that pays).
PAYS = 0.1


class Ddit:
    """The best width of a class is the last doubling that pays. A request starts denoising, first come first
    served, on as many ranks as are free, up to its best width; nobody takes them away. Ranks that are left at a
    step boundary go to the hungry request with the largest starvation: steps since its last grant times the
    seconds that a step takes longer than at the best width. Encode and decode take one rank.

    State between calls: the step at which each running request got its present width; it can be read from the
    views in order, so the same view twice gives the same plan.
    """

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings
        self._granted: dict[str, tuple[tuple[int, ...], int]] = {}

    def plan(self, view: View) -> tuple[Assignment, ...]:
        self._note(view)
        draft = self.settings.draft(view)
        if not draft.free:
            return ()
        order = [t for t in by_arrival(view) if draft.may_start(t)]
        boundary = _at_boundary(draft, order)
        widths = {t.request_id: len(t.lane) for t in boundary}
        waiting = [t for t in order if t.request_id not in widths]
        spare = self._start_waiting(draft, waiting, widths, len(draft.free) - sum(widths.values()))
        self._feed(draft, boundary, widths, spare)
        draft.start_all([(t, widths[t.request_id]) for t in order if t.request_id in widths])
        return draft.plan

    def _note(self, view: View) -> None:
        granted = {}
        for trajectory in view.trajectories:
            if _denoising(trajectory):
                known = self._granted.get(trajectory.request_id)
                if known is None or known[0] != trajectory.lane:
                    known = (trajectory.lane, trajectory.step)
                granted[trajectory.request_id] = known
        self._granted = granted

    def _start_waiting(
        self, draft: Draft, waiting: list[TrajectoryView], widths: dict[str, int], spare: int
    ) -> int:
        """Decodes, encodes and first steps; returns the ranks that are left."""
        for trajectory in sorted(waiting, key=lambda t: t.stage is not Stage.DECODE):
            if spare <= 0:
                break
            width = 1
            if trajectory.stage is Stage.DENOISE:
                speed = draft.speeds.of(trajectory)
                fitting = [each for each in _paying(speed) if each <= spare]
                width = fitting[-1] if fitting else 0
            if 0 < width <= spare:
                widths[trajectory.request_id] = width
                spare -= width
        return spare

    def _feed(self, draft: Draft, boundary: list[TrajectoryView], widths: dict[str, int], spare: int) -> None:
        for trajectory in sorted(boundary, key=lambda t: -self._starvation_s(draft, t)):
            width = widths[trajectory.request_id]
            wider = [each for each in _paying(draft.speeds.of(trajectory)) if width < each <= width + spare]
            if wider:
                widths[trajectory.request_id] = wider[-1]
                spare -= wider[-1] - width

    def _starvation_s(self, draft: Draft, trajectory: TrajectoryView) -> float:
        speed = draft.speeds.of(trajectory)
        since = trajectory.step - self._granted[trajectory.request_id][1]
        return since * (speed.step_s(len(trajectory.lane)) - speed.step_s(_paying(speed)[-1]))


def _at_boundary(draft: Draft, order: list[TrajectoryView]) -> list[TrajectoryView]:
    """Requests between two steps whose lane is theirs still."""
    free, boundary = set(draft.free), []
    for trajectory in order:
        if _denoising(trajectory) and free.issuperset(trajectory.lane):
            free.difference_update(trajectory.lane)
            boundary.append(trajectory)
    return boundary


def _denoising(trajectory: TrajectoryView) -> bool:
    """Between two of its steps, on the lane of the last one."""
    return trajectory.stage is Stage.DENOISE and trajectory.step > 0


def _paying(speed: Speed) -> tuple[int, ...]:
    """The widths up to the best one; each saves enough over the one before."""
    paying = [speed.ladder[0]]
    for width in speed.ladder[1:]:
        if speed.step_s(width) > (1 - PAYS) * speed.step_s(paying[-1]):
            break
        paying.append(width)
    return tuple(paying)
