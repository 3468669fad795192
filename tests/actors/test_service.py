"""The service's actors together, in virtual time: what the seeds name, and the invariants of leases."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random

import pytest

from epe.actors.admission import Limits
from epe.errors import Cancelled, Expired, Gone, NonFinite, Refused
from epe.families import family
from epe.messages import Stage
from epe.planning.calibration import Program
from epe.planning.static import StaticCp, StaticDp
from epe.planning.view import Assignment, View
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request


def test_a_request_is_encoded_denoised_decoded_and_finished_once():
    async def main() -> None:
        cluster = Cluster()
        await cluster.start()
        (result,) = await cluster.draw(request("a", steps=5))
        assert result.data == b"png"
        stages = [lease.stage for _, _, lease in cluster.world.visits]
        assert stages[0] is Stage.ENCODE
        assert stages[-1] is Stage.DECODE
        steps = [lease for _, _, lease in cluster.world.visits if lease.stage is Stage.DENOISE]
        assert [lease.first_step for lease in steps] == sorted({lease.first_step for lease in steps})
        assert sum(lease.num_steps for lease in steps) == 5
        await asyncio.sleep(1)
        cluster.check_clean()
        await cluster.stop()

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_many_requests_all_end_and_no_rank_is_in_two_lanes(seed: int):
    async def main() -> Cluster:
        cluster = Cluster(seed=seed)
        await cluster.start()
        rng = random.Random(seed)
        wanted = [
            request(f"q{i}", size=rng.choice((256, 512, 1024)), steps=rng.randint(1, 20)) for i in range(12)
        ]
        results = await cluster.draw(*wanted, gap_s=0.05)
        assert [result.data for result in results] == [b"png"] * 12
        await asyncio.sleep(1)
        cluster.check_clean()
        cluster.check_lanes()
        await cluster.stop()
        return cluster

    cluster = run(main())
    widths = {
        lease.request.id: {
            each.lane.width
            for _, _, each in cluster.world.visits
            if each.request.id == lease.request.id and each.stage is Stage.DENOISE
        }
        for _, _, lease in cluster.world.visits
    }
    assert any(len(each) > 1 for each in widths.values()), "no request ever changed its width"


def test_the_same_seed_gives_the_same_schedule():
    def trace(seed: int) -> list:
        async def main() -> list:
            cluster = Cluster(seed=seed)
            await cluster.start()
            await cluster.draw(*(request(f"q{i}", steps=4 + i) for i in range(6)), gap_s=0.03)
            await cluster.stop()
            return [(begin, lease.seq, lease.lane.ranks) for begin, _, lease in cluster.world.visits]

        return run(main())

    assert trace(3) == trace(3)
    assert trace(3) != trace(4)


class Wanderer:
    """Moves every request to another lane of another width at each step, and parks it now and then."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def plan(self, view: View) -> tuple[Assignment, ...]:
        rng = random.Random(f"{self.seed}-{view.now_s}")
        free = sorted(view.open_ranks)
        rng.shuffle(free)
        plan = []
        for trajectory in view.trajectories:
            width = rng.randint(1, 3) if trajectory.stage is Stage.DENOISE else 1
            if trajectory.num_leases or len(free) < width or (rng.random() < 0.2 and len(free) < 4):
                continue
            ranks, free = tuple(free[:width]), free[width:]
            steps = 1 if trajectory.stage is Stage.DENOISE else 0
            plan.append(Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=steps))
        return tuple(plan)


@pytest.mark.parametrize("seed", range(30))
def test_state_follows_a_request_that_moves_at_every_step(seed: int):
    async def main() -> None:
        cluster = Cluster(seed=seed, policy=Wanderer(seed))
        await cluster.start()
        async with asyncio.timeout(120):
            results = await cluster.draw(*(request(f"q{i}", steps=10) for i in range(5)), gap_s=0.01)
        assert [result.data for result in results] == [b"png"] * 5
        await asyncio.sleep(1)
        cluster.check_clean()
        cluster.check_lanes()
        await cluster.stop()

    run(main())


@pytest.mark.parametrize(
    "policy", [StaticCp(widths=(1, 2, 4), pulse_s=0.05, pulse_steps=1), StaticDp(pulse_s=0.05, pulse_steps=1)]
)
def test_the_static_policies_never_change_a_width(policy):
    async def main() -> set[int]:
        cluster = Cluster(policy=policy)
        await cluster.start()
        results = await cluster.draw(*(request(f"q{i}") for i in range(6)))
        assert [result.data for result in results] == [b"png"] * 6
        await cluster.stop()
        return {lease.lane.width for _, _, lease in cluster.world.visits if lease.stage is Stage.DENOISE}

    assert run(main()) == ({4} if isinstance(policy, StaticCp) else {1})


def test_a_lane_that_goes_on_has_its_next_lease_waiting():
    async def main() -> None:
        cluster = Cluster(jitter=0.0)
        await cluster.start()
        await cluster.draw(request("a", size=1024, steps=30))
        steps = [(b, e) for b, e, lease in cluster.world.visits if lease.stage is Stage.DENOISE]
        gaps = [begin - end for (_, end), (begin, _) in itertools.pairwise(steps)]
        # The first lease is planned while the encode runs; no later one waits for a message.
        assert max(gaps[1:]) < 1e-9
        await cluster.stop()

    run(main())


def test_lanes_that_exchange_no_ranks_run_through_when_others_meet():
    """No world barrier: a long lane never waits for the pulses of the short ones beside it."""

    async def main() -> None:
        cluster = Cluster(jitter=0.0, policy=StaticDp(pulse_s=0.05, pulse_steps=1))
        await cluster.start()
        await cluster.draw(
            request("long", size=1024, steps=20), *(request(f"s{i}", steps=3) for i in range(9))
        )
        steps = [
            (b, e)
            for b, e, lease in cluster.world.visits
            if lease.request.id == "long" and lease.stage is Stage.DENOISE
        ]
        assert all(begin - end < 1e-9 for (_, end), (begin, _) in itertools.pairwise(steps))
        await cluster.stop()

    run(main())


def test_an_idle_lane_pulls_the_next_request_before_others_end():
    async def main() -> None:
        cluster = Cluster(policy=StaticDp(pulse_s=0.05, pulse_steps=1))
        await cluster.start()
        wanted = [request("long", size=1024, steps=40), *(request(f"s{i}", steps=2) for i in range(8))]
        await cluster.draw(*wanted)
        ends = {lease.request.id: end for _, end, lease in cluster.world.visits}
        assert max(ends[f"s{i}"] for i in range(8)) < ends["long"]
        await cluster.stop()

    run(main())


def test_the_lane_is_free_while_its_picture_is_encoded():
    async def main() -> None:
        cluster = Cluster(world_size=1)
        await cluster.start()
        results = await cluster.draw(request("a", steps=2), request("b", steps=2))
        decode = [(b, e, lease) for b, e, lease in cluster.world.visits if lease.stage is Stage.DECODE]
        after = min(b for b, _, lease in cluster.world.visits if b >= decode[0][1] - 1e-9)
        assert after - decode[0][1] < results[0].account.finish_s
        await cluster.stop()

    run(main())


def test_a_cancelled_request_frees_its_lane_and_leaves_its_neighbour_alone():
    async def main() -> None:
        cluster = Cluster()
        desk = await cluster.start()
        victim = await desk.submit(request("victim", size=1024, steps=200))
        neighbour = await desk.submit(request("neighbour", steps=30))
        await asyncio.sleep(0.5)
        victim.cancel()
        with pytest.raises(Cancelled, match="cancelled"):
            await victim.result()
        done = max(lease.first_step for _, _, lease in cluster.world.visits if lease.request.id == "victim")
        assert done < 100
        assert (await neighbour.result()).data == b"png"
        await asyncio.sleep(1)
        cluster.check_clean()
        await cluster.stop()

    run(main())


@pytest.mark.parametrize("seed", range(10))
def test_after_hundreds_of_cancels_at_any_moment_all_others_are_drawn(seed: int):
    async def main() -> None:
        cluster = Cluster(seed=seed, limits=Limits(max_pending=1000))
        desk = await cluster.start()
        rng = random.Random(seed)

        async def fickle(index: int) -> None:
            await asyncio.sleep(rng.uniform(0, 8))
            handle = await desk.submit(request(f"c{index}", steps=rng.randint(1, 9)))
            await asyncio.sleep(rng.uniform(0, 0.6))
            handle.cancel()
            with contextlib.suppress(Cancelled):
                await handle.result()

        async def steady(index: int) -> bytes:
            await asyncio.sleep(rng.uniform(0, 8))
            handle = await desk.submit(request(f"n{index}", steps=rng.randint(1, 9)))
            return (await handle.result()).data

        async with asyncio.TaskGroup() as group:
            normal = [group.create_task(steady(i)) for i in range(50)]
            for i in range(50):
                group.create_task(fickle(i))
        assert [task.result() for task in normal] == [b"png"] * 50
        await asyncio.sleep(1)
        cluster.check_clean()
        cluster.check_lanes()
        await cluster.stop()

    run(main())


@pytest.mark.parametrize("stage", [Stage.ENCODE, Stage.DENOISE, Stage.DECODE])
def test_a_task_that_raises_on_one_rank_fails_that_request_alone(stage: Stage):
    def fault(lease, rank):
        if lease.request.id == "bad" and lease.stage is stage and rank == max(lease.lane.ranks):
            return NonFinite("latents hold NaN", stage=stage, step=lease.first_step)
        return None

    async def main() -> None:
        cluster = Cluster(fault=fault)
        await cluster.start()
        bad, *good = await cluster.draw(request("bad"), *(request(f"q{i}") for i in range(5)))
        assert isinstance(bad, NonFinite)
        assert stage in str(bad)
        assert [result.data for result in good] == [b"png"] * 5
        await asyncio.sleep(1)
        cluster.check_clean()
        await cluster.stop()

    run(main())


def test_a_deadline_that_asks_for_it_ends_the_request():
    async def main() -> None:
        cluster = Cluster()
        await cluster.start()
        late, kept = await cluster.draw(
            request("late", size=1024, steps=500, deadline_s=1.0, on_deadline="expire"),
            request("kept", steps=20, deadline_s=0.001),
        )
        assert isinstance(late, Expired)
        assert "deadline" in str(late)
        assert kept.data == b"png"
        await cluster.stop()

    run(main())


def test_a_full_queue_refuses_with_a_time_to_retry():
    async def main() -> None:
        cluster = Cluster(world_size=1, limits=Limits(max_pending=3))
        await cluster.start()
        results = await cluster.draw(*(request(f"q{i}", steps=50) for i in range(8)))
        refused = [result for result in results if isinstance(result, Refused)]
        assert 3 <= len(refused) <= 5
        assert all(result.retry_after_s >= 1 for result in refused)
        await cluster.stop()

    run(main())


def test_admission_refuses_a_deadline_that_cannot_be_met():
    async def main() -> None:
        cluster = Cluster(limits=Limits(refuse_late=True))
        await cluster.start()
        (hopeless,) = await cluster.draw(request("a", size=1024, steps=500, deadline_s=0.01))
        assert isinstance(hopeless, Refused)
        assert hopeless.retry_after_s is None
        await cluster.stop()

    run(main())


def test_the_warm_up_measures_every_width_before_the_doors_open():
    async def main() -> None:
        rounds = Program(
            family=family("zimage"), sizes=((256, 256, 1),), widths=(1, 2, 3, 4), world=4, num_steps=3
        )
        cluster = Cluster(warmup=rounds)
        await cluster.start()
        measured = {key.width for key in cluster.planner.costs.measured if key.stage is Stage.DENOISE}
        assert measured == {1, 2, 3, 4}
        assert [phase for phase, _ in cluster.phases] == ["warming", "running"]
        cluster.check_clean()
        await cluster.stop()

    run(main())


def test_requests_are_refused_while_the_ranks_load():
    async def main() -> None:
        cluster = Cluster()
        await cluster.start()
        cluster.planner.doors.phase = "loading"
        (refused,) = await cluster.draw(request("a"))
        assert isinstance(refused, Refused)
        assert refused.retry_after_s == 5.0
        await cluster.stop()

    run(main())


def test_a_lost_rank_ends_every_request_with_the_reason():
    async def main() -> None:
        cluster = Cluster()
        desk = await cluster.start()
        handles = [await desk.submit(request(f"q{i}", size=1024, steps=100)) for i in range(5)]
        await asyncio.sleep(0.3)
        cluster.network.kill("r2")
        for handle in handles:
            with pytest.raises(Gone, match="worker2@r2"):
                await handle.result()
        assert cluster.phases[-1][0] == "failed"
        await cluster.stop()

    run(main())


def test_what_a_drain_leaves_is_given_up_with_the_reason():
    async def main() -> None:
        cluster = Cluster()
        desk = await cluster.start()
        handle = await desk.submit(request("a", size=1024, steps=1000))
        with pytest.raises(TimeoutError):
            await desk.drain(reason="test", timeout_s=0.5)
        desk.give_up("not done within 0.5 s")
        with pytest.raises(Gone, match="not done within"):
            await handle.result()
        await cluster.stop()

    run(main())


def test_draining_ends_when_all_that_was_taken_has_ended():
    async def main() -> None:
        cluster = Cluster()
        desk = await cluster.start()
        handle = await desk.submit(request("a", steps=20))
        await desk.drain(reason="test", timeout_s=60)
        assert (await handle.result()).data == b"png"
        with pytest.raises(Refused, match="draining"):
            await desk.submit(request("b"))
        await cluster.stop()

    run(main())
