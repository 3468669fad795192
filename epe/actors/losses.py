"""What becomes of requests when ranks go: they go on elsewhere, from what is left of their state, or begin anew."""

from __future__ import annotations

from epe.actors.core import Actor
from epe.actors.directory import Directory
from epe.actors.ending import Endings
from epe.actors.leasing import Leasing
from epe.actors.recovery import Loss, given_up, lost_rank
from epe.actors.roster import Gone
from epe.actors.trajectory import Trajectory
from epe.actors.upkeep import Upkeep
from epe.messages import Checkpointed, Drop, LeaseFailed
from epe.telemetry.log import get_logger

log = get_logger("planner")


class Losses:
    """Mutable, owned by the planner, in whose name it sends."""

    def __init__(
        self, planner: Actor, *, directory: Directory, leasing: Leasing, upkeep: Upkeep, endings: Endings
    ) -> None:
        self.planner = planner
        self.directory = directory
        self.ledger = leasing.ledger
        self.roster = leasing.roster
        self.trajectories = leasing.trajectories
        self.upkeep = upkeep
        self.endings = endings

    def take_out(self, rank: int, reason: str, *, state: Gone) -> tuple[LeaseFailed, ...]:
        """A rank is gone; gives the reports that it owes. Lanes without it do not notice. `go_on` comes after these."""
        loss = lost_rank(self.ledger, rank, reason)
        self.roster.lose(rank, reason, state=state)
        self.upkeep.lost(rank)
        if state == "lost":
            log.warning("rank.was_lost", rank=rank, reason=reason, request=loss.request_id)
        else:
            log.info("rank.was_restarted", rank=rank)
        self._break_lanes(rank, loss)
        return loss.reports

    def _break_lanes(self, rank: int, loss: Loss) -> None:
        if loss.lease is not None:
            self.trajectories[loss.lease.request.id].lost_under(loss.lease)
        for other, abandon in loss.abandoned:
            self.planner.ref(self.directory.worker(other)).tell(abandon)
        for trajectory in self.trajectories.values():
            trajectory.lose(rank)

    def go_on(self) -> None:
        """Whatever the ranks that are gone were in goes on elsewhere."""
        self.outlive()
        for trajectory in list(self.trajectories.values()):
            self._settle(trajectory)

    def outlive(self) -> None:
        """Have requests begin anew whose weights are gone for good: there are ranks, and none of them has those."""
        kinds = self.roster.kinds
        for trajectory in list(self.trajectories.values()):
            if kinds and trajectory.weights is not None and trajectory.weights not in kinds:
                self.endings.drop(trajectory, trajectory.traces)
                trajectory.outlive()
                self._settle(trajectory)

    def resume(self, trajectory: Trajectory) -> None:
        """Have a request go on whose lane broke or whose holders are gone, unless that happens again and again."""
        before = trajectory.accounting.num_repeated_steps
        if not trajectory.resume():
            return
        log.info(
            "request.resumed",
            request=trajectory.request.id,
            stage=trajectory.stage,
            step=trajectory.step,
            repeated_steps=trajectory.accounting.num_repeated_steps - before,
        )
        trajectory.ending = given_up(trajectory)

    def checkpointed(self, message: Checkpointed) -> None:
        """The leader has a state of a request, or no longer has it."""
        trajectory = self.trajectories.get(message.request_id)
        if trajectory is None:
            # It came after the request's end. That of an earlier request of this id may have been replaced by now.
            dropped = Drop(request_ids=(message.request_id,))
            self.planner.ref(self.directory.checkpoints).tell(dropped)
        elif trajectory.checkpointed(message) and trajectory.checkpoint_step is None:
            self.resume(trajectory)

    def _settle(self, trajectory: Trajectory) -> None:
        self.resume(trajectory)
        self.endings.end_if_done(trajectory)
