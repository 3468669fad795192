"""What is wrong with a plan: it may come from a user's own policy, so nothing of it is taken for granted."""

from __future__ import annotations

from collections.abc import Mapping

from epe.messages import Stage
from epe.planning.view import MAX_LEASES, Assignment, TrajectoryView


def fault_among(
    trajectories: Mapping[str, TrajectoryView],
    plan: tuple[Assignment, ...],
    *,
    open_ranks: frozenset[int],
) -> str | None:
    """What is wrong with a plan, in one sentence, or None; `trajectories` are those that wait, by their ids."""
    if not isinstance(plan, tuple):
        return f"a plan is a tuple of assignments, not {plan!r}"
    taken: set[int] = set()
    seen: set[str] = set()
    for assignment in plan:
        if fault := _form_fault(assignment):
            return fault
        trajectory = trajectories.get(assignment.request_id)
        if trajectory is None or assignment.request_id in seen:
            return f"request {assignment.request_id!r} is not waiting for a lease, or is planned twice"
        if fault := _lease_fault(assignment, trajectory, open_ranks, taken):
            return f"request {assignment.request_id!r}: {fault}"
        taken.update(assignment.ranks)
        seen.add(assignment.request_id)
        for name in assignment.partners:
            partner = trajectories.get(name)
            if partner is None or name in seen or not _may_join(partner, trajectory, assignment.num_steps):
                return f"request {name!r} cannot be a partner of {assignment.request_id!r}"
            seen.add(name)
    return None


def _may_join(partner: TrajectoryView, leader: TrajectoryView, num_steps: int) -> bool:
    both = (partner, leader)
    return (
        (partner.shape, partner.workload) == (leader.shape, leader.workload)
        and all(t.stage is Stage.DENOISE and not t.alone and t.num_leases < MAX_LEASES for t in both)
        and partner.step + num_steps <= partner.num_steps
    )


def _form_fault(assignment: object) -> str | None:
    """A user's policy may put anything into a plan; what has the wrong type would be met in the middle of a lease."""
    if not isinstance(assignment, Assignment):
        return f"a plan holds assignments, not {assignment!r}"
    name, ranks, num_steps = assignment.request_id, assignment.ranks, assignment.num_steps
    if not isinstance(name, str):
        return f"request_id: {name!r} is not a string"
    if not isinstance(ranks, tuple) or not all(isinstance(rank, int) for rank in ranks):
        return f"request {name!r}: ranks: {ranks!r} is not a tuple of whole numbers"
    if not isinstance(num_steps, int):
        return f"request {name!r}: num_steps: {num_steps!r} is not a whole number"
    if not isinstance(partners := assignment.partners, tuple) or not all(
        isinstance(p, str) for p in partners
    ):
        return f"request {name!r}: partners: {partners!r} is not a tuple of strings"
    return None


def _lease_fault(
    assignment: Assignment, trajectory: TrajectoryView, open_ranks: frozenset[int], taken: set[int]
) -> str | None:
    ranks = set(assignment.ranks)
    remaining = trajectory.num_steps - trajectory.step
    if not ranks or len(ranks) != len(assignment.ranks):
        return f"lane {assignment.ranks} is empty or names a rank twice"
    if not ranks <= open_ranks:
        return f"ranks {sorted(ranks - open_ranks)} do not exist or already have {MAX_LEASES} leases"
    if ranks & taken:
        return f"ranks {sorted(ranks & taken)} are in two lanes"
    if trajectory.stage is Stage.DENOISE and len(ranks) > trajectory.workload.max_width:
        return (
            f"a lane of {len(ranks)} ranks is too wide for its {trajectory.workload.tokens} tokens; "
            f"at most {trajectory.workload.max_width} can share them"
        )
    if trajectory.stage is Stage.DENOISE and len(ranks) in trajectory.workload.barred:
        return f"lanes of {len(ranks)} ranks are barred to its steps: they lack memory, or give other bits"
    if trajectory.num_leases >= MAX_LEASES:
        return f"it already has {MAX_LEASES} leases"
    if trajectory.stage is Stage.DENOISE and not 1 <= assignment.num_steps <= remaining:
        return f"{assignment.num_steps} steps were planned; 1 to {remaining} remain"
    reuse, end = trajectory.reuse, trajectory.step + assignment.num_steps
    if (
        trajectory.stage is Stage.DENOISE
        and reuse is not None
        and not reuse.may_end(end, trajectory.num_steps)
    ):
        return f"its lease would end before step {end}, which uses what only a lease keeps"
    return None
