"""Costs that outlive the service: what is kept, and what a start makes of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from epe.actors.keeper import KEEPER, Keeper
from epe.families import family
from epe.messages import Stage, Transfer
from epe.planning.calibration import Program
from epe.planning.cost_set import CostSet
from epe.simulator.virtual_time import run
from epe.transport.link import Parcel
from tests.actors.cluster import Cluster, lease_seconds, request

PROGRAM = Program(family=family("zimage"), sizes=((256, 256, 1),), widths=(1, 2, 3, 4), world=4, num_steps=3)


class Shelf:
    """Keeps cost sets in memory, by fingerprint; a slow one never answers."""

    def __init__(self, *, slow: bool = False) -> None:
        self.kept: dict[str, CostSet] = {}
        self.slow = slow

    def cluster(self, **fields) -> Cluster:
        cluster = Cluster(warmup=PROGRAM, **fields)
        cluster.keeper = lambda: Keeper(
            directory=cluster.directory, read=self.kept.get, write=self._write, run_elsewhere=self._run
        )
        return cluster

    def _write(self, costs: CostSet) -> None:
        self.kept[costs.fingerprint] = costs

    async def _run(self, work: Callable, *args: object) -> object:
        await asyncio.sleep(1e6 if self.slow else 0.001)
        return work(*args)


def steps_drawn(cluster: Cluster) -> int:
    return sum(lease.num_steps for _, _, lease in cluster.world.visits)


def test_the_second_start_measures_nothing_and_knows_as_much():
    async def main() -> None:
        shelf = Shelf()
        first = shelf.cluster()
        await first.start()
        await asyncio.sleep(1)
        await first.stop()
        second = shelf.cluster()
        desk = await second.start()
        assert steps_drawn(first) > 0
        assert steps_drawn(second) == 0
        assert dict(second.planner.costs.measured) == dict(first.planner.costs.measured)
        assert second.planner.costs.moves.measured == first.planner.costs.moves.measured
        assert [(await each.desk.status()).costs.origin for each in (second,)] == ["kept"]
        assert (await desk.status()).costs.least_tokens == 128
        await second.stop()

    run(main())


def test_a_device_that_is_no_cpu_draws_each_twice_in_three_steps_before_a_client_comes():
    async def main() -> None:
        shelf = Shelf()
        for drawn in (None, {1: 24, 2: 12, 3: 6, 4: 6}):
            cluster = shelf.cluster(device="a GPU")
            await cluster.start()
            await asyncio.sleep(1)
            if drawn is not None:
                steps = Counter(
                    lease.lane.width for _, _, lease in cluster.world.visits if lease.stage is Stage.DENOISE
                )
                assert steps == drawn
                assert (await cluster.desk.status()).costs.origin == "kept"
            await cluster.stop()
        (kept,) = shelf.kept.values()
        assert {task.width for task in kept.tasks if task.stage == "denoise"} == {1, 2, 3, 4}

    run(main())


def test_a_wider_program_measures_only_what_was_not_kept():
    async def main() -> None:
        shelf = Shelf()
        cluster = shelf.cluster()
        await cluster.start()
        await asyncio.sleep(1)
        await cluster.stop()
        for kept in shelf.kept.values():
            rows = tuple(task for task in kept.tasks if (task.stage, task.width) != ("denoise", 3))
            shelf.kept[kept.fingerprint] = CostSet(
                name="less", fingerprint=kept.fingerprint, sizes=kept.sizes, tasks=rows, moves=kept.moves
            )
        again = shelf.cluster()
        await again.start()
        widths = {lease.lane.width for _, _, lease in again.world.visits if lease.stage is Stage.DENOISE}
        assert widths == {3}
        assert (await again.desk.status()).costs.origin == "measured"
        await again.stop()

    run(main())


def test_a_disk_that_hangs_does_not_hold_up_the_start():
    async def main() -> None:
        cluster = Shelf(slow=True).cluster()
        await cluster.start()
        assert steps_drawn(cluster) > 0
        # A late answer does not begin the warm-up a second time.
        assert [phase for phase, _ in cluster.phases] == ["warming", "running"]
        await cluster.draw(request("a"))
        await cluster.stop()

    run(main())


def test_what_service_corrects_is_kept():
    async def main() -> None:
        shelf = Shelf()
        slower = {"on": False}
        cluster = shelf.cluster(
            jitter=0.0, seconds=lambda lease: lease_seconds(lease) * (2 if slower["on"] else 1)
        )
        await cluster.start()
        await asyncio.sleep(1)
        (at_start,) = shelf.kept.values()
        slower["on"] = True
        for index in range(8):
            await cluster.draw(request(f"q{index}", steps=20))
        await asyncio.sleep(cluster.planner.opening.KEEP_EVERY_S + 1)
        (later,) = shelf.kept.values()
        changed = {
            (new.stage, new.width): new.seconds / old.seconds
            for new, old in zip(later.tasks, at_start.tasks, strict=True)
            if new.seconds > 1.5 * old.seconds
        }
        assert ("decode", 1) in changed
        assert any(stage == "denoise" for stage, _ in changed)
        await cluster.stop()

    run(main())


def test_the_warm_up_measures_the_moves_between_all_ranks_and_the_making_of_files():
    async def main() -> None:
        cluster = Cluster(warmup=PROGRAM)
        await cluster.start()
        costs = cluster.planner.costs
        assert set(costs.moves.measured) == {(a, b) for a in range(4) for b in range(4) if a != b}
        seconds = [s for sizes in costs.moves.measured.values() for s in sizes.values()]
        assert all(0 < each < 0.05 for each in seconds)
        assert any(key.stage is Stage.FINISH for key in costs.measured)
        await cluster.stop()

    run(main())


def test_a_move_is_priced_without_the_wait_for_the_step_before_it():
    async def main() -> None:
        cluster = Cluster(warmup=PROGRAM, seconds=lambda lease: 1.0)
        await cluster.start()
        moves = cluster.planner.costs.moves.measured
        assert all(seconds < 0.1 for sizes in moves.values() for seconds in sizes.values())
        await cluster.stop()

    run(main())


def test_a_keeper_that_crashes_costs_no_request():
    async def main() -> None:
        cluster = Cluster(warmup=PROGRAM)

        def crash(fingerprint: str) -> None:
            raise RuntimeError("the disk is on fire")

        async def here(work: Callable, *args: object) -> object:
            return work(*args)

        cluster.keeper = lambda: Keeper(
            directory=cluster.directory, read=crash, write=lambda costs: None, run_elsewhere=here
        )
        await cluster.start()
        (result,) = await cluster.draw(request("a"))
        assert result.data == b"png"
        assert KEEPER not in cluster.systems["leader"]._mailboxes
        await cluster.stop()

    run(main())


def test_the_picture_must_be_decoded_early_enough_for_its_file():
    async def main() -> None:
        cluster = Cluster(warmup=PROGRAM)
        desk = await cluster.start()
        handle = await desk.submit(request("a", deadline_s=9.0))
        trajectory = cluster.planner.trajectories["a"]
        finish_s = trajectory.finish_s
        assert 0 < finish_s < 0.1
        assert trajectory.view.deadline_s == trajectory.arrival_s + 9.0 - finish_s
        await handle.result()
        await cluster.stop()

    run(main())


def test_the_making_of_a_file_is_counted_from_its_decode_on():
    """The frames of a video are on their way to the leader for as long as their file takes there."""

    def brought_out_late(decoded: Parcel) -> asyncio.Future[Parcel]:
        coming: asyncio.Future[Parcel] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.5, coming.set_result, decoded)
        return coming

    async def main() -> None:
        cluster = Cluster(warmup=PROGRAM)
        for device in cluster.devices:
            device.bring_out = brought_out_late
        desk = await cluster.start()
        handle = await desk.submit(request("a", deadline_s=9.0))
        assert 0.5 < cluster.planner.trajectories["a"].finish_s < 0.6
        await handle.result()
        await cluster.stop()

    run(main())


def test_a_move_is_expected_from_its_own_pair_of_ranks():
    async def main() -> None:
        cluster = Cluster(warmup=PROGRAM)
        await cluster.start()
        costs = cluster.planner.costs
        trajectory = cluster.planner.leasing.admit(request("a"), now_s=5.0, for_client=True)
        costs.moves.enter((0, 3), trajectory.workload.state_bytes, 2.0)
        near, far = (Transfer(rank=rank, source=0) for rank in (1, 3))
        assert trajectory.state_s((), costs, now_s=5.0) == 5.0
        assert trajectory.state_s((near,), costs, now_s=5.0) < 5.1
        assert trajectory.state_s((near, far), costs, now_s=5.0) == 7.0
        await cluster.stop()

    run(main())
