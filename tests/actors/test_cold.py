"""What the planner learns of passes that ran as they are before they were captured."""

from __future__ import annotations

from epe.families import family
from epe.messages import Lease, Stage
from epe.planning.calibration import Program
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, lease_seconds, request

TIMES_COLD = 3.5
STEPS = 4


class Cold:
    """The first lease of a size on several ranks takes longer."""

    def __init__(self) -> None:
        self.first: dict[int, int] = {}

    def __call__(self, lease: Lease, rank: int = 0) -> bool:
        if lease.stage is not Stage.DENOISE or lease.lane.width == 1:
            return False
        return self.first.setdefault(lease.request.height, lease.seq) == lease.seq

    def seconds(self, lease: Lease) -> float:
        return lease_seconds(lease) * (TIMES_COLD if self(lease) else 1.0)


def test_a_width_that_was_slow_before_its_passes_were_captured_is_used_again() -> None:
    """Seen on two GPUs: pictures of a size that the warm-up had not drawn were drawn by one rank for ever, since the
    first on two had run as it is."""
    cold, widths = Cold(), []
    program = Program(
        family=family("zimage"), sizes=((64, 64, 1), (256, 256, 1)), widths=(1, 2), world=2, num_steps=4
    )

    async def main() -> None:
        cluster = Cluster(world_size=2, warmup=program, seconds=cold.seconds, cold=cold)
        await cluster.start()
        await cluster.draw(*(request(f"q{i}", size=128, steps=STEPS) for i in range(4)), gap_s=10.0)
        widths.extend(
            (lease.request.id, lease.lane.width)
            for _, _, lease in cluster.world.visits
            if lease.stage is Stage.DENOISE and lease.request.height == 128
        )
        cluster.check_clean()
        await cluster.stop()

    run(main())
    assert {width for name, width in widths if name == "q3"} == {2}, widths
