"""What the planner must not do when something else goes wrong, or comes at an odd moment."""

from __future__ import annotations

from epe.families import family
from epe.planning.calibration import program
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request


def test_an_old_deadline_does_not_end_a_later_request_of_the_same_id():
    async def main() -> None:
        cluster = Cluster()
        await cluster.start()
        (first,) = await cluster.draw(request("a", deadline_s=5.0, on_deadline="expire"))
        (again,) = await cluster.draw(request("a", size=1024, steps=200))
        assert again.account.total_s > 5.0
        assert (first.data, again.data) == (b"png", b"png")
        await cluster.stop()

    run(main())


def test_the_warm_up_is_not_counted_among_the_finished_requests():
    async def main() -> None:
        rounds = program(family("zimage"), sizes=((256, 256),), widths=(1, 2), world=4, num_steps=3)
        cluster = Cluster(warmup=rounds)
        desk = await cluster.start()
        assert (await desk.status()).num_finished == 0
        await cluster.draw(request("a"))
        assert (await desk.status()).num_finished == 1
        await cluster.stop()

    run(main())
