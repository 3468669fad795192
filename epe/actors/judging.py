"""What a lease that has ended means: for its request, for what is known of costs, and for the ranks that ran it."""

from __future__ import annotations

from epe.actors.core import Actor
from epe.actors.directory import Directory
from epe.actors.ending import Endings
from epe.actors.leasing import Leasing
from epe.actors.ledger import Running
from epe.actors.recovery import blame, goes_leaner
from epe.actors.trajectory import Trajectory
from epe.messages import Lease, Progress, Stage
from epe.telemetry.log import get_logger

log = get_logger("planner")


class Judging:
    """Mutable, owned by the planner, in whose name it sends."""

    def __init__(self, planner: Actor, *, directory: Directory, leasing: Leasing, endings: Endings) -> None:
        self.planner = planner
        self.directory = directory
        self.leasing = leasing
        self.roster = leasing.roster
        self.endings = endings

    def judge(self, trajectory: Trajectory, ended: Running) -> None:
        """A lease that broke has run all the same if what it was for is there."""
        if ended.failed and not ended.broke and not self._goes_on(trajectory, ended):
            trajectory.failed(ended)
        elif ended.failed and not ended.has_run:
            trajectory.broke(ended)
        else:
            self._ran(trajectory, ended)

    def _goes_on(self, trajectory: Trajectory, ended: Running) -> bool:
        """Whether a request goes on after a failure: without memory where less is needed; after a batch alone, since
        another one of it may be the cause."""
        self.leasing.learning.failed(ended, trajectory.workload)
        if goes_leaner(trajectory, ended, widths=self.leasing.policy_widths):
            stage, ranks = ended.lease.stage, ended.lease.lane.ranks
            log.warning("request.goes_leaner", request=trajectory.request.id, stage=stage, ran_out_on=ranks)
            return True
        for rank, absence in blame(self.roster, ended):
            log.error("rank.was_quarantined", rank=rank, reason=absence.reason)
        if ended.lease.batch_size == 1:
            return False
        trajectory.alone = True
        return True

    def _ran(self, trajectory: Trajectory, ended: Running) -> None:
        lost = self.roster.gone
        self.endings.drop(trajectory, trajectory.ran(ended, now_s=self.planner.now_s, lost=lost))
        self.leasing.observe(ended)
        lease = ended.lease
        for report in ended.done:
            self.roster.worked(report.rank, report.use)
        if lease.stage is Stage.DECODE:
            trajectory.pixels_from = lease.lane.head
        if trajectory.for_client:
            self._tell_progress(lease)

    def _tell_progress(self, lease: Lease) -> None:
        self.planner.ref(self.directory.desk).tell(
            Progress(
                request_id=lease.request.id,
                stage=lease.stage,
                step=lease.first_step + lease.num_steps,
                num_steps=lease.request.num_steps,
                ranks=lease.lane.ranks,
            )
        )
