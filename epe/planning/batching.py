"""Requests that ride along: of a plan's leases, which take others of the same size as one batch.

It comes after the policy, whichever that is: lanes are chosen for requests one by one, and then those that got none may
join one that is going anyway. Pure, as a policy is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from epe.messages import Stage
from epe.planning.costs import Basis, CostTable, Workload
from epe.planning.view import MAX_LEASES, Assignment, TrajectoryView, View
from epe.planning.work import cost_key, step_s

# Who is ready this much later than the lane may still join: it is the time of a rank's report.
WAIT_S = 2e-3

Kind = tuple[tuple[int, ...], Workload]


def with_partners(view: View, plan: Sequence[Assignment], *, max_batch: int) -> tuple[Assignment, ...]:
    """The plan, in which leases of steps have partners where a batch pays.

    Where one would pay with a request that is not encoded yet, the ranks of the lane encode it first.
    """
    if max_batch == 1:
        return tuple(plan)
    trajectories = {trajectory.request_id: trajectory for trajectory in view.trajectories}
    waiting = _waiting(view, {assignment.request_id for assignment in plan})
    result: list[Assignment] = []
    for assignment in plan:
        leader = trajectories[assignment.request_id]
        if leader.stage is not Stage.DENOISE or leader.alone:
            result.append(assignment)
            continue
        alike = waiting[_kind(leader)]
        riders = _riders(view, assignment, leader, alike, max_batch=max_batch)
        taken = list(_led(view, assignment, leader, riders))
        result += taken
        names = {name for each in taken for name in (each.request_id, *each.partners)}
        alike[:] = [trajectory for trajectory in alike if trajectory.request_id not in names]
    return tuple(result)


def _kind(trajectory: TrajectoryView) -> Kind:
    """What must be equal in a batch."""
    return trajectory.shape, trajectory.workload


def _waiting(view: View, planned: set[str]) -> defaultdict[Kind, list[TrajectoryView]]:
    """The requests that got no lane and could join one, most urgent first."""
    kinds: defaultdict[Kind, list[TrajectoryView]] = defaultdict(list)
    for trajectory in view.trajectories:
        free = trajectory.num_leases < (MAX_LEASES if trajectory.stage is Stage.DENOISE else 1)
        if free and not trajectory.alone and trajectory.request_id not in planned:
            kinds[_kind(trajectory)].append(trajectory)
    for alike in kinds.values():
        alike.sort(key=lambda t: (-t.priority, t.deadline_s or math.inf, t.arrival_s, t.request_id))
    return kinds


def _riders(
    view: View,
    assignment: Assignment,
    leader: TrajectoryView,
    alike: Sequence[TrajectoryView],
    *,
    max_batch: int,
) -> list[TrajectoryView]:
    """The most requests that may ride along and with whom the batch pays."""
    width = len(assignment.ranks)
    begins_s = max([leader.ready_s, *(r.free_s for r in view.ranks if r.rank in assignment.ranks)])
    able = [t for t in alike if t.stage is Stage.ENCODE or _is_ready(t, begins_s=begins_s)]
    for size in range(min(max_batch, 1 + len(able)), 1, -1):
        riders = able[: size - 1]
        if _pays(view.costs, leader.workload, width, size) and all(
            _is_in_time(view, trajectory, width, size) for trajectory in (leader, *riders)
        ):
            return riders
    return []


def _is_ready(trajectory: TrajectoryView, *, begins_s: float) -> bool:
    return trajectory.stage is Stage.DENOISE and trajectory.ready_s <= begins_s + WAIT_S


def _pays(costs: CostTable, workload: Workload, width: int, size: int) -> bool:
    """Whether requests end sooner in the mean as a batch than one after the other, by what was measured.

    One after the other, n requests of T seconds end after T, 2T ... nT: after (n + 1) / 2 T in the mean.
    """
    key = cost_key(workload, Stage.DENOISE, width, batch=size)
    if costs.fit(key).basis is not Basis.MEASURED or not costs.fits(key):
        return False
    return costs.seconds(key) < (size + 1) / 2 * step_s(costs, workload, width)


def _is_in_time(view: View, trajectory: TrajectoryView, width: int, size: int) -> bool:
    """Whether a batch keeps a deadline that the request could keep alone on this lane."""
    if trajectory.deadline_s is None:
        return True
    costs, workload = view.costs, trajectory.workload
    decode_s = costs.seconds(cost_key(workload, Stage.DECODE, 1))
    left_s = trajectory.deadline_s - max(view.now_s, trajectory.ready_s) - decode_s
    num_steps = trajectory.num_computed_left
    together_s = num_steps * costs.seconds(cost_key(workload, Stage.DENOISE, width, batch=size))
    return together_s <= left_s or num_steps * step_s(costs, workload, width) > left_s


def _led(
    view: View, assignment: Assignment, leader: TrajectoryView, riders: Sequence[TrajectoryView]
) -> Iterator[Assignment]:
    """The batch; or the encoding of those who would join it, a rank each, and the batch in the next plan."""
    unread = [trajectory for trajectory in riders if trajectory.stage is Stage.ENCODE]
    if unread:
        for trajectory, rank in zip(unread, assignment.ranks, strict=False):
            yield Assignment(request_id=trajectory.request_id, ranks=(rank,))
    else:
        yield _joined(view.costs, assignment, leader, riders)


def _joined(
    costs: CostTable, assignment: Assignment, leader: TrajectoryView, riders: Sequence[TrajectoryView]
) -> Assignment:
    """A batch takes as many steps as the lease would have had time for, and as each has left."""
    if not riders:
        return assignment
    width, size = len(assignment.ranks), 1 + len(riders)
    together_s = costs.seconds(cost_key(leader.workload, Stage.DENOISE, width, batch=size))
    num_computed = leader.num_computed(assignment.num_steps)
    fitting = leader.steps_with(
        max(1, int(num_computed * step_s(costs, leader.workload, width) / together_s))
    )
    left = min(trajectory.num_steps - trajectory.step for trajectory in (leader, *riders))
    partners = tuple(trajectory.request_id for trajectory in riders)
    return replace(assignment, num_steps=min(max(1, fitting), left), partners=partners)
