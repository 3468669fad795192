"""A policy of one's own, as a host application would write it.

Name it in the stage file by its dotted path; this folder must be importable (PYTHONPATH):

    parallelism:
      scheduler:
        policy: own_policy.PicturesFirst

It is called without arguments. `plan` is pure: the same view gives the same plan. Test it against the contract
(docs/policies.md), and try it on a load before it serves: `epe simulate --policy own_policy.PicturesFirst,elastic`.
"""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.view import Assignment, TrajectoryView, View
from epe.planning.work import steps_for


class PicturesFirst:
    """What is small goes first, each request on one rank; a request that is alone gets every idle rank."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        open_ranks = sorted(view.open_ranks)
        waiting = [t for t in view.trajectories if t.num_leases == 0]
        waiting.sort(key=lambda t: (t.workload.tokens * (t.num_steps - t.step), t.arrival_s, t.request_id))
        if len(waiting) == len(view.trajectories) == 1 and len(open_ranks) == len(view.ranks):
            return (assignment(view, waiting[0], tuple(open_ranks)),)
        return tuple(assignment(view, t, (rank,)) for t, rank in zip(waiting, open_ranks, strict=False))


def assignment(view: View, trajectory: TrajectoryView, ranks: tuple[int, ...]) -> Assignment:
    """A lease of 100 ms at least, so that a change of mind takes effect soon; encode and decode take one rank."""
    if trajectory.stage is not Stage.DENOISE:
        ranks = ranks[:1]
    # A power of two is among the lane widths that every stage file allows, if it divides the world.
    width = min(1 << (len(ranks).bit_length() - 1), trajectory.workload.max_width)
    steps = steps_for(view.costs, trajectory, width, pulse_s=0.1, pulse_steps=1)
    return Assignment(request_id=trajectory.request_id, ranks=ranks[:width], num_steps=steps)
