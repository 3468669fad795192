"""What those who watch a service hear, and what a request would cost if it came."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from epe.actors.admission import Limits
from epe.actors.desk import Desk
from epe.errors import Refused
from epe.messages import Admitted, Departed, Event, LayoutChanged, Progress, Stage, Turned
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request


async def fill(desk: Desk) -> None:
    """Hand in requests until no more are taken."""
    with contextlib.suppress(Refused):
        for index in range(100):
            await desk.submit(request(str(index), size=512, steps=20))


def test_a_listener_hears_the_whole_life_of_a_request_in_order():
    async def main() -> None:
        heard: list[Event] = []
        cluster = Cluster()
        desk = await cluster.start()
        desk.listen(heard.append)
        await cluster.draw(request("a", steps=8))
        await asyncio.sleep(1)
        of_request = [each for each in heard if not isinstance(each, LayoutChanged)]
        assert isinstance(of_request[0], Admitted)
        assert isinstance(of_request[-1], Departed)
        reports = of_request[1:-1]
        assert all(isinstance(each, Progress) for each in reports)
        assert [each.stage for each in reports][:: len(reports) - 1] == [Stage.ENCODE, Stage.DECODE]
        steps = [each.step for each in reports]
        assert steps == sorted(steps)
        assert steps[-1] == 8
        layouts = [each.lanes for each in heard if isinstance(each, LayoutChanged)]
        assert {lane.request_id for lanes in layouts for lane in lanes} == {"a"}
        assert layouts[-1] == ()
        await cluster.stop()

    run(main())


def test_a_listener_hears_who_was_turned_away_and_who_was_cancelled():
    async def main() -> None:
        heard: list[Event] = []
        cluster = Cluster(limits=Limits(max_pending=1))
        desk = await cluster.start()
        await fill(desk)
        desk.listen(heard.append)
        with pytest.raises(Refused):
            await desk.submit(request("too many"))
        desk.cancel("0")
        await asyncio.sleep(60)
        (turned,) = (each for each in heard if isinstance(each, Turned))
        assert (turned.request.id, turned.failure.kind) == ("too many", "refused")
        kinds = {each.request.id: each.ended.failure for each in heard if isinstance(each, Departed)}
        assert kinds.pop("0").kind == "cancelled"
        assert set(kinds.values()) == {None}
        await cluster.stop()

    run(main())


def test_the_requests_that_live_are_listed_with_their_last_report():
    async def main() -> None:
        cluster = Cluster()
        desk = await cluster.start()
        handles = [await desk.submit(request(name, size=512, steps=40)) for name in ("a", "b")]
        assert [live.progress for live in desk.requests()] == [None, None]
        await asyncio.sleep(0.5)
        assert [live.request.id for live in desk.requests()] == ["a", "b"]
        assert any(live.progress and live.progress.step > 0 for live in desk.requests())
        for handle in handles:
            await handle.result()
        assert list(desk.requests()) == []
        await cluster.stop()

    run(main())


def test_a_prediction_is_what_would_be_promised_and_leaves_nothing_behind():
    async def main() -> None:
        cluster = Cluster()
        desk = await cluster.start()
        predicted = await desk.predict([request("a"), request("b")])
        assert cluster.planner.trajectories == {}
        (alone,) = (await desk.predict([request("a")])).accepted
        handle = await desk.submit(request("a"))
        assert alone.predicted_s == pytest.approx(handle.accepted.predicted_s, rel=1e-9)
        assert [each.request_id for each in predicted.accepted] == ["a", "b"]
        assert [each.width for each in predicted.widths] == [1, 2, 3, 4]
        assert [each.rank_s for each in predicted.widths] == [
            each.denoise_s * each.width for each in predicted.widths
        ]
        assert predicted.encode_s > 0
        assert predicted.decode_s > 0
        await handle.result()
        await asyncio.sleep(1)
        cluster.check_clean()
        await cluster.stop()

    run(main())


def test_a_prediction_says_when_a_deadline_would_be_missed():
    async def main() -> None:
        cluster = Cluster()
        desk = await cluster.start()
        deadlines = (1e-3, 1e3)
        predicted = [await desk.predict([request("a", deadline_s=each)]) for each in deadlines]
        assert [each.accepted[0].late for each in predicted] == [True, False]
        await cluster.stop()

    run(main())


@pytest.mark.parametrize("drained", [False, True])
def test_a_prediction_is_refused_as_the_request_would_be(drained):
    async def main() -> None:
        cluster = Cluster(limits=Limits(max_pending=1))
        desk = await cluster.start()
        await fill(desk)
        if drained:
            await desk.drain(reason="the test ends it", timeout_s=500)
        with pytest.raises(Refused, match="draining" if drained else "waiting"):
            await desk.predict([request("a")])
        await cluster.stop()

    run(main())
