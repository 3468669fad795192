"""No picture is drawn on a lane whose width gives other bits on some rank's device."""

from __future__ import annotations

import pytest

from epe.planning.static import StaticCp
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request


@pytest.mark.parametrize("is_static", [False, True])
def test_widths_that_give_other_bits_are_never_leased(is_static: bool):
    widths: set[int] = set()

    async def main() -> None:
        policy = StaticCp(widths=(1, 2, 3, 4), pulse_s=1.0, pulse_steps=1) if is_static else None
        cluster = Cluster(policy=policy, unlike_widths=(3, 4))
        await cluster.start()
        results = await cluster.draw(*(request(f"q{i}", steps=8) for i in range(3)), gap_s=30.0)
        assert [result.data for result in results] == [b"png"] * 3
        widths.update(lease.lane.width for _, _, lease in cluster.world.visits)
        cluster.check_clean()
        await cluster.stop()

    run(main())
    assert widths == {1, 2}
