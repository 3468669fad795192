"""How requests end, each exactly once: with their picture, early, or with the world."""

from __future__ import annotations

from epe.actors.core import Actor
from epe.actors.directory import Directory
from epe.actors.doors import Doors
from epe.actors.leasing import Leasing
from epe.actors.lines import log_ended
from epe.actors.opening import Opening
from epe.actors.trajectory import Trajectory
from epe.messages import Drop, Ended, Failure, FailureKind


class Endings:
    """Mutable, owned by the planner, in whose name it sends."""

    def __init__(
        self, planner: Actor, *, directory: Directory, leasing: Leasing, doors: Doors, opening: Opening
    ) -> None:
        self.planner = planner
        self.directory = directory
        self.settings = leasing.settings
        self.ledger = leasing.ledger
        self.trajectories = leasing.trajectories
        self.doors = doors
        self.opening = opening
        self.num_finished = 0

    def end_if_done(self, trajectory: Trajectory) -> None:
        """Nothing ends before its last lease has: a rank's report may come after the picture."""
        if trajectory.leases:
            return
        if trajectory.ending is not None:
            self._end(trajectory, trajectory.ending)
        elif trajectory.encoded is not None:
            self._end(trajectory, trajectory.encoded.failure)

    def end_early(self, request_id: str, kind: FailureKind, message: str) -> bool:
        """Cancelled or expired: at once if nothing runs, else when the leases that were sent have run. False if it has
        ended, or is about to."""
        trajectory = self.trajectories.get(request_id)
        if trajectory is None or trajectory.ending is not None:
            return False
        stage = trajectory.leases[0].lease.stage if trajectory.leases else trajectory.stage
        trajectory.ending = Failure(kind=kind, message=message, stage=stage, step=trajectory.step)
        self.end_if_done(trajectory)
        return True

    def end_all(self, reason: str) -> None:
        """The world cannot go on: every request ends, and whoever started the service hears why."""
        if self.doors.phase == "failed":
            return
        self.doors.enter("failed", reason)
        self.ledger.running.clear()
        for trajectory in list(self.trajectories.values()):
            trajectory.traces = set()
            self._end(
                trajectory,
                Failure(kind=FailureKind.RANK_LOST, message=reason, stage=trajectory.stage),
            )

    def drop(self, trajectory: Trajectory, ranks: set[int]) -> None:
        """Have these ranks free what they hold of a request."""
        for rank in sorted(ranks):
            self.planner.ref(self.directory.worker(rank)).tell(Drop(request_ids=(trajectory.request.id,)))

    def _end(self, trajectory: Trajectory, failure: Failure | None) -> None:
        del self.trajectories[trajectory.request.id]
        if trajectory.expiry is not None:
            trajectory.expiry.cancel()
        self.drop(trajectory, trajectory.traces)
        if self.settings.checkpoints and (trajectory.lane or trajectory.first_seq is not None):
            self.planner.ref(self.directory.checkpoints).tell(Drop(request_ids=(trajectory.request.id,)))
        if trajectory.for_client:
            self._tell_client(trajectory, failure)
        elif failure is not None:
            self.end_all(f"the warm-up failed: {failure.message}")
        if not self.trajectories and self.doors.phase == "warming":
            self.opening.draw_round()
        if not self.trajectories:
            self.doors.are_empty()

    def _tell_client(self, trajectory: Trajectory, failure: Failure | None) -> None:
        self.num_finished += failure is None
        account = trajectory.accounting.account(now_s=self.planner.now_s)
        ended = Ended(request_id=trajectory.request.id, account=account, failure=failure)
        self.planner.ref(self.directory.desk).tell(ended)
        log_ended(account, failure)
