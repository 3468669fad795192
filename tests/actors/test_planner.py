"""What the planner must not do when something else goes wrong, or comes at an odd moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from epe.actors.admission import Limits
from epe.actors.mailbox import MAX_BEHIND
from epe.actors.trajectory import Trajectory
from epe.errors import Gone, NonFinite
from epe.families import family
from epe.messages import Lease, Request, Stage
from epe.planning.calibration import Program
from epe.planning.costs import CostKey, Workload
from epe.planning.elastic import Elastic, ElasticSettings
from epe.planning.static import StaticDp
from epe.planning.view import MAX_LEASES, Assignment, View
from epe.planning.work import cost_key
from epe.simulator.virtual_time import run
from epe.transport.memory import MemoryNetwork
from tests.actors.cluster import Cluster, lease_seconds, request


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if holds():
                return
            await asyncio.sleep(0.001)


def alive(cluster: Cluster) -> list[Trajectory]:
    return list(cluster.planner.trajectories.values())


class Counting(Elastic):
    """Counts the plans that it is asked for."""

    num_plans = 0

    def plan(self, view: View) -> tuple[Assignment, ...]:
        self.num_plans += 1
        return super().plan(view)


def test_a_burst_of_arrivals_is_planned_once_and_not_once_for_each():
    async def main() -> None:
        policy = Counting(ElasticSettings(widths=(1, 2, 3, 4)))
        cluster = Cluster(policy=policy, limits=Limits(max_pending=1000))
        desk = await cluster.start()
        handles = await asyncio.gather(*(desk.submit(request(f"r{i}", steps=2)) for i in range(64)))
        assert policy.num_plans <= 1 + 64 // MAX_BEHIND
        for handle in handles:
            assert (await handle.result()).data == b"png"
        await cluster.stop()

    run(main())


def test_a_rank_whose_tasks_are_short_does_not_idle_until_the_planner_has_heard_of_each():
    async def main() -> None:
        policy = StaticDp(pulse_s=0.0, pulse_steps=1)
        cluster = Cluster(world_size=1, policy=policy, jitter=0.0)
        await cluster.start()
        await cluster.draw(request("first", size=128, steps=4))  # From it the planner knows what tasks take.
        cluster.world.visits.clear()
        await cluster.draw(request("second", size=128, steps=4))
        visits = cluster.world.visits
        assert [lease.stage for _, _, lease in visits] == [Stage.ENCODE, *4 * [Stage.DENOISE], Stage.DECODE]
        for (_, ended_s, _), (begun_s, _, _) in pairwise(visits):
            assert begun_s == pytest.approx(ended_s, abs=1e-6)
        await cluster.stop()

    run(main())


def test_a_rank_that_comes_to_be_free_soon_while_the_planner_looks_is_given_its_next_task_ahead():
    async def main() -> None:
        cluster = Cluster(
            world_size=1, policy=StaticDp(pulse_s=0.0, pulse_steps=1), jitter=0.0, seconds=lambda lease: 0.6
        )
        desk = await cluster.start()
        await cluster.draw(request("first", steps=3))  # From it the planner knows what tasks take.
        visits, loop = cluster.world.visits, asyncio.get_running_loop()
        looks = cluster.planner.leasing.next_leases

        def for_20_ms(*, now_s: float) -> list[Lease]:
            cluster.planner.leasing.next_leases = looks
            leases = list(looks(now_s=now_s))
            loop.work(0.02)
            return leases

        visits.clear()
        handles = [await desk.submit(request("second", steps=3))]
        await until(lambda: len(visits) == 1)
        # The rank is open from 50 ms before the end of each task on. Another request comes 10 ms before that.
        opens_s = visits[0][1] + 0.6 - 0.05
        await asyncio.sleep(opens_s - 0.01 - loop.time())
        cluster.planner.leasing.next_leases = for_20_ms
        handles.append(await desk.submit(request("third", steps=3)))
        for handle in handles:
            await handle.result()
        for (_, ended_s, _), (begun_s, _, _) in pairwise(visits):
            assert begun_s == pytest.approx(ended_s, abs=1e-6)
        await cluster.stop()

    run(main())


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
        rounds = Program(family=family("zimage"), sizes=((256, 256, 1),), widths=(1, 2), world=4, num_steps=3)
        cluster = Cluster(warmup=rounds)
        desk = await cluster.start()
        assert (await desk.status()).num_finished == 0
        await cluster.draw(request("a"))
        assert (await desk.status()).num_finished == 1
        await cluster.stop()

    run(main())


def test_requests_end_with_the_reason_when_files_can_no_longer_be_made():
    async def main() -> None:
        cluster = Cluster()
        desk = await cluster.start()
        handles = [await desk.submit(request(f"q{i}", steps=1 + i)) for i in range(8)]
        await until(lambda: any(t.stage is Stage.FINISH and t.leases for t in alive(cluster)))
        await cluster.systems["leader"].stop("postprocess")
        async with asyncio.timeout(60):
            for handle in handles:
                with pytest.raises(Gone, match="postprocess@leader is gone"):
                    await handle.result()
        assert cluster.phases[-1][0] == "failed"
        await cluster.stop()

    run(main())


def test_pictures_that_wait_to_be_encoded_take_room_among_the_requests_in_work():
    """Else decoded pixels would pile up in the leader's memory when encoding is slower than drawing."""

    async def main() -> None:
        cluster = Cluster(limits=Limits(max_inflight=3))
        await cluster.start()
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, sum(bool(t.lane) for t in alive(cluster)))
                await asyncio.sleep(0.0005)

        looking = asyncio.create_task(look())
        results = await cluster.draw(*(request(f"q{i}", steps=1) for i in range(12)))
        looking.cancel()
        assert [result.data for result in results] == [b"png"] * 12
        assert most == 3
        await cluster.stop()

    run(main())


def test_a_larger_priority_begins_first_however_long_the_queue_is():
    async def main() -> None:
        cluster = Cluster(world_size=1, limits=Limits(max_inflight=2))
        desk = await cluster.start()
        many = [await desk.submit(request(f"q{i}", steps=20)) for i in range(10)]
        urgent = await desk.submit(request("urgent", steps=20, priority=5))
        await urgent.result()
        still = {trajectory.request.id for trajectory in alive(cluster)}
        assert sum(handle.request_id in still for handle in many) >= 8
        await cluster.stop()

    run(main())


class OneLane:
    """A user's policy: all requests share one lane of all ranks, lease by lease."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        world = tuple(rank.rank for rank in view.ranks)
        for trajectory in sorted(view.trajectories, key=lambda t: (t.num_leases, t.served_s)):
            ranks = world if trajectory.stage is Stage.DENOISE else world[:1]
            if trajectory.num_leases < MAX_LEASES and view.open_ranks.issuperset(ranks):
                return (Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=1),)
        return ()


def test_a_lane_that_breaks_under_one_request_fails_no_other_that_waits_for_it():
    """The ranks drop a lane's group after an error, and refuse what was leased on it before they did."""
    broken: Counter[tuple[int, ...]] = Counter()

    def fault(lease: Lease, rank: int) -> Gone | NonFinite | None:
        lane = lease.lane
        if lane.width > 1 and lane.incarnation < broken[lane.ranks]:
            return Gone(f"lane {lane.ranks} (incarnation {lane.incarnation}) was dropped after an error")
        if lease.request.id.startswith("bad") and lane.width > 1 and lease.first_step == 3:
            broken[lane.ranks] = lane.incarnation + 1
            return NonFinite("latents hold NaN", stage=lease.stage, step=lease.first_step)
        return None

    async def main() -> None:
        cluster = Cluster(world_size=2, policy=OneLane(), fault=fault)
        await cluster.start()
        names = ["bad0", "q0", "q1", "bad1", "q2", "q3"]
        results = dict(zip(names, await cluster.draw(*map(request, names)), strict=True))
        assert {name: type(result).__name__ for name, result in results.items()} == {
            name: "NonFinite" if name.startswith("bad") else "Result" for name in names
        }
        cluster.check_lanes()
        await cluster.stop()

    run(main())


class WideThenNarrow:
    """Steps in turn on the whole world and on its first rank, each leased while the one before still runs."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        world = tuple(rank.rank for rank in view.ranks)
        for trajectory in sorted(view.trajectories, key=lambda t: t.request_id):
            is_wide = trajectory.stage is Stage.DENOISE and trajectory.step % 2 == 0
            ranks = world if is_wide else world[:1]
            if trajectory.num_leases < MAX_LEASES and view.open_ranks.issuperset(ranks):
                return (Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=1),)
        return ()


def step_key(drawn: Request, *, width: int) -> CostKey:
    """Of its steps on a lane."""
    kind = family("zimage")
    workload = Workload(
        tokens=kind.num_tokens(height=drawn.height, width=drawn.width),
        conditions=kind.num_conditions(drawn.guidance_scale),
    )
    return cost_key(workload, Stage.DENOISE, width)


class Beside:
    """The steps of `wide` on all ranks, those of others on the first rank beside them."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        world = tuple(rank.rank for rank in view.ranks)
        for trajectory in view.trajectories:
            is_wide = trajectory.stage is Stage.DENOISE and trajectory.request_id == "wide"
            ranks = world if is_wide else world[:1]
            if trajectory.num_leases == 0 and view.open_ranks.issuperset(ranks):
                return (Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=1),)
        return ()


def test_a_lane_that_waits_for_a_rank_at_other_work_does_not_learn_that_its_steps_take_longer():
    """Else the busier a service is, the dearer its wide lanes seem, until none is formed any more."""

    async def main() -> None:
        cluster = Cluster(world_size=2, policy=Beside(), jitter=0.0)
        await cluster.start()
        await cluster.draw(request("wide", steps=20), request("narrow", steps=20))
        wide = next(lease for _, _, lease in cluster.world.visits if lease.lane.width == 2)
        key = step_key(wide.request, width=2)
        assert cluster.planner.leasing.costs.safe_s(key) == pytest.approx(cluster.seconds(wide), rel=0.01)
        await cluster.stop()

    run(main())


@pytest.mark.parametrize("times", [1.3, 3.0, 12.0])
def test_costs_follow_when_steps_of_a_size_that_nobody_measured_become_cheaper_once_they_are_captured(
    times: float,
):
    """Those before take what Python needs to launch them, and so they enter the table."""

    def seconds(lease: Lease) -> float:
        is_cold = lease.stage is Stage.DENOISE and lease.request.id == "first" and lease.first_step < 3
        return lease_seconds(lease) * (times if is_cold else 1.0)

    async def main() -> None:
        cluster = Cluster(world_size=2, policy=WideThenNarrow(), seconds=seconds, jitter=0.0)
        await cluster.start()
        await cluster.draw(request("first", steps=12))
        await cluster.draw(request("second", steps=70))
        costs = cluster.planner.leasing.costs
        for width in (1, 2):
            lease = next(
                each
                for _, _, each in reversed(cluster.world.visits)
                if each.lane.width == width and each.stage is Stage.DENOISE
            )
            key = step_key(lease.request, width=width)
            assert costs.seconds(key) == pytest.approx(lease_seconds(lease), rel=0.01)
            assert costs.safe_s(key) == pytest.approx(lease_seconds(lease), rel=0.01)
        await cluster.stop()

    run(main())


@pytest.mark.parametrize("seed", range(12))
def test_a_report_that_comes_after_those_of_later_leases_or_after_the_picture_is_no_surprise(seed: int):
    """A rank of a wide lane may report when the narrow lease behind it, and even the file, are long done."""

    async def main() -> None:
        cluster = Cluster(world_size=3, seed=seed, policy=WideThenNarrow(), seconds=lambda lease: 1e-4)
        cluster.network = MemoryNetwork(seed=seed, latency_s=(0.0002, 0.08))
        await cluster.start()
        results = await cluster.draw(*(request(f"q{index}", steps=7) for index in range(4)))
        assert [type(result).__name__ for result in results] == ["Result"] * 4
        assert cluster.planner.leasing.deciding.policy.__class__ is WideThenNarrow
        await asyncio.sleep(1)  # the last messages arrive
        cluster.check_clean()
        cluster.check_lanes()
        await cluster.stop()

    run(main())


@pytest.mark.parametrize("checkpoints", [True, False])
def test_no_message_is_sent_to_an_actor_that_this_world_does_not_have(checkpoints: bool):
    """A command that draws one picture keeps no checkpoints, and warned of a dropped message at its end."""

    async def main() -> None:
        cluster = Cluster(world_size=2, checkpoints=checkpoints)
        await cluster.start()
        await cluster.draw(request("a"), request("b"))
        await asyncio.sleep(1)
        assert [system.statistics().dead_letters for system in cluster.systems.values()] == [0, 0, 0]
        await cluster.stop()

    run(main())
