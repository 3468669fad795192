"""Jobs over several lives of a whole service, on the virtual clock: order, deadlines, and hours of work."""

from __future__ import annotations

import asyncio

from epe.actors.admission import Limits as Admission
from epe.cache import CacheRules, resolve
from epe.jobs.job import JobState
from epe.jobs.jobs import Jobs
from epe.jobs.open_job import Order
from epe.jobs.retention import Limits
from epe.jobs.states import States
from epe.jobs.store import MemoryStore
from epe.messages import FreeCache, Stage
from epe.planning.costs import Migration
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request
from tests.actors.test_service import Wanderer
from tests.cache.profiles import made_up
from tests.jobs.test_states import MemoryFiles, slowly


def ordered(name: str, **fields: object) -> Order:
    return Order(id=name, requests=(request(name, **fields),))


async def live(
    store: MemoryStore, *, files: MemoryFiles | None = None, **more: object
) -> tuple[Cluster, Jobs]:
    """A service with this store and these states, which takes requests."""
    states = States(files, run_elsewhere=slowly)
    cluster = Cluster(survives=True, seen=states.offer, **more)
    desk = await cluster.start()
    clock = asyncio.get_running_loop().time
    limits = Limits(max_age_s=7 * 86400.0)
    jobs = Jobs(store, engine=desk, made_for="zimage", clock=clock, limits=limits, states=states)
    await jobs.open()
    jobs.resume()
    return cluster, jobs


async def die(cluster: Cluster, jobs: Jobs) -> None:
    """The leader and all ranks are killed; what was in memory is gone, the store is not."""
    for task in list(jobs._tasks):
        task.cancel()
    await asyncio.gather(*jobs._tasks, return_exceptions=True)
    await jobs.states.close()
    for rank in range(cluster.world_size):
        cluster.kill(rank)
    await cluster.stop()


def test_a_job_goes_on_from_its_last_state_on_disk_and_encodes_nothing_again():
    async def main() -> None:
        store, files = MemoryStore(), MemoryFiles()
        cluster, jobs = await live(store, files=files)
        for name in ("a", "b", "c", "d", "e"):
            await jobs.submit(ordered(name, steps=400))
        await asyncio.sleep(8.0)
        await die(cluster, jobs)
        reached = files.steps
        assert len(reached) == 5
        assert max(reached.values()) > 0
        cluster, jobs = await live(store, files=files)
        ended = await asyncio.gather(*map(jobs.ended, reached))
        assert {job.state for job in ended} == {JobState.FINISHED}
        leases = [lease for _, _, lease in cluster.world.visits]
        assert Stage.ENCODE not in {lease.stage for lease in leases}
        first = {lease.request.id: lease.first_step for lease in reversed(leases)}
        assert first == reached
        assert {job.accounts[0].num_recoveries for job in ended} == {0}
        await asyncio.sleep(10)
        assert files.states == {}
        await jobs.close(in_order=True)
        cluster.check_clean()
        await cluster.stop()

    run(main())


def test_a_job_goes_on_with_the_plan_that_its_state_follows():
    """One of which something was let go would miss it under the plan with which it was taken."""

    async def main() -> None:
        store, files = MemoryStore(), MemoryFiles()
        slow = {"migration": Migration(bytes_per_s=1e4), "correct_costs": False}
        more = {"policy": Wanderer(1), "refreshes": True, **slow}
        reuse = resolve(FreeCache(fresh_budget=200), CacheRules(profile=made_up()), num_steps=400)
        cluster, jobs = await live(store, files=files, **more)
        await jobs.submit(ordered("a", steps=400, reuse=reuse))
        await asyncio.sleep(8.0)
        await die(cluster, jobs)
        (reached,) = files.steps.values()
        before = next(lease for _, _, lease in reversed(cluster.world.visits) if lease.first_step < reached)
        assert before.request.reuse.refreshed
        cluster, jobs = await live(store, files=files, **more)
        (name,) = files.steps
        assert (await jobs.ended(name)).state is JobState.FINISHED
        after = cluster.world.visits[0][2].request.reuse
        assert set(before.request.reuse.refreshed) <= set(after.refreshed)
        await jobs.close(in_order=True)
        await cluster.stop()

    run(main())


def test_a_state_that_the_leader_has_no_room_for_is_drawn_again():
    async def main() -> None:
        store, files = MemoryStore(), MemoryFiles()
        cluster, jobs = await live(store, files=files)
        for name in ("a", "b"):
            await jobs.submit(ordered(name, steps=400))
        await asyncio.sleep(5.0)  # neither has ended
        await die(cluster, jobs)
        assert len(files.steps) == 2
        cluster, jobs = await live(store, files=files, limit_bytes=0)
        ended = await asyncio.gather(*map(jobs.ended, ("a", "b")))
        assert {job.state for job in ended} == {JobState.FINISHED}
        assert {lease.request.id for _, _, lease in cluster.world.visits if lease.stage is Stage.ENCODE} == {
            "a",
            "b",
        }
        await jobs.close(in_order=True)
        await cluster.stop()

    run(main())


def test_after_a_death_jobs_are_drawn_in_their_old_order_before_those_that_come_later():
    async def main() -> None:
        store = MemoryStore()
        cluster, jobs = await live(store, world_size=1)
        for name in ("c", "a", "b"):
            await jobs.submit(ordered(name, steps=200))
        await asyncio.sleep(0.5)
        await die(cluster, jobs)
        cluster, jobs = await live(store, world_size=1)
        await jobs.submit(ordered("new", steps=200))
        ended = await asyncio.gather(*map(jobs.ended, ("c", "a", "b", "new")))
        assert {job.state for job in ended} == {JobState.FINISHED}
        encoded = [lease.request.id for _, _, lease in cluster.world.visits if lease.stage is Stage.ENCODE]
        assert encoded == ["c", "a", "b", "new"]
        await jobs.close(in_order=True)
        await cluster.stop()

    run(main())


def test_deadlines_count_from_the_first_life_and_passed_ones_go_by_their_rule():
    async def main() -> None:
        store = MemoryStore()
        cluster, jobs = await live(store, world_size=1)
        await jobs.submit(ordered("long", steps=2000))
        for rule in ("expire", "continue"):
            await jobs.submit(ordered(rule, steps=400, deadline_s=60.0, on_deadline=rule))
        await jobs.submit(ordered("in time", deadline_s=1000.0, on_deadline="expire"))
        await asyncio.sleep(1.0)
        await die(cluster, jobs)
        await asyncio.sleep(100.0)
        cluster, jobs = await live(store, world_size=1)
        ended = {name: await jobs.ended(name) for name in ("long", "expire", "continue", "in time")}
        assert {name: job.state for name, job in ended.items()} == {
            "long": JobState.FINISHED,
            "expire": JobState.EXPIRED,
            "continue": JobState.FINISHED,
            "in time": JobState.FINISHED,
        }
        assert ended["in time"].accounts[0].total_s > 100.0
        drawn = {lease.request.id for _, _, lease in cluster.world.visits}
        assert drawn == {"long", "continue", "in time"}
        await jobs.close(in_order=True)
        await cluster.stop()

    run(main())


def test_accepted_jobs_are_taken_again_whatever_the_limits_say():
    async def main() -> None:
        store = MemoryStore()
        cluster, jobs = await live(store, world_size=1)
        names = [f"a{number}" for number in range(20)]
        for name in names:
            await jobs.submit(ordered(name, deadline_s=0.5))
        await die(cluster, jobs)
        await asyncio.sleep(100.0)
        cluster, jobs = await live(
            store, world_size=1, limits=Admission(max_pending=3, max_inflight=2, refuse_late=True)
        )
        ended = await asyncio.gather(*map(jobs.ended, names))
        assert {job.state for job in ended} == {JobState.FINISHED}
        await jobs.close(in_order=True)
        await cluster.stop()

    run(main())


def test_a_job_of_three_hours_is_still_there_days_after_its_client_has_gone():
    async def main() -> None:
        store = MemoryStore()
        cluster, jobs = await live(store, world_size=1, seconds=lambda lease: 5.5)
        await jobs.submit(ordered("film", steps=2000))
        job = await jobs.ended("film")
        assert asyncio.get_running_loop().time() > 10_800
        await asyncio.sleep(6 * 86400)
        assert await jobs.get("film") == job
        assert await jobs.read(job, job.files[0]) == b"png"
        await jobs.close(in_order=True)
        await cluster.stop()

    run(main())
