from __future__ import annotations

import os
import time

import pytest

from tests.world import ADAPTERS, RankContext, RankFailed, World

pytestmark = pytest.mark.world


def who(context: RankContext, greeting: str) -> str:
    return f"{greeting} {context.rank} of {context.world_size}"


def meet(context: RankContext) -> list[str]:
    assert not context.store.check([str(context.rank)])
    context.store.set(str(context.rank), f"rank {context.rank}")
    return [context.store.get(str(rank)).decode() for rank in range(context.world_size)]


def count(context: RankContext) -> int:
    context.kept["count"] = context.kept.get("count", 0) + 1
    return context.kept["count"]


def tell_and_die(context: RankContext) -> None:
    for number in range(2):
        context.tell(number)
    os.kill(os.getpid(), 9)


def rank_1_raises(context: RankContext) -> None:
    if context.rank == 1:
        raise ValueError("rank 1 has a bug")


def rank_1_hangs_and_rank_0_dies(context: RankContext) -> None:
    if context.rank == 0:
        os.kill(os.getpid(), 9)
    time.sleep(600)


def test_each_rank_runs_the_function_and_the_results_come_by_rank(world: World) -> None:
    assert world.run("tests.test_world:who", "hello") == [f"hello {rank} of 4" for rank in range(4)]


def test_the_ranks_share_a_store_that_is_empty_for_each_run(world: World) -> None:
    expected = [[f"rank {rank}" for rank in range(4)]] * 4
    assert world.run(meet) == expected
    assert world.run(meet) == expected


def test_processes_and_what_they_keep_outlive_a_run_and_a_raise(world: World) -> None:
    before = world.run(count)
    with pytest.raises(RankFailed, match=r"(?s)rank 1 raised.*ValueError: rank 1 has a bug"):
        world.run(rank_1_raises)
    assert world.run(count) == [number + 1 for number in before]


def test_a_death_and_a_hang_are_told_apart_and_the_world_starts_again() -> None:
    small = World(2, grace_s=0.1, preload=ADAPTERS)
    with pytest.raises(RankFailed, match=r"(?s)rank 0 died.*rank 1 did not end in time"):
        small.run(rank_1_hangs_and_rank_0_dies, timeout_s=60)
    assert small.run(count) == [1, 1]
    small.close()


def test_what_ranks_told_is_known_though_they_gave_nothing() -> None:
    small, heard = World(2, grace_s=60.0, preload=ADAPTERS), list[tuple[int, int]]()
    with pytest.raises(RankFailed, match="rank 0 died"):
        small.run(tell_and_die, timeout_s=60.0, heard=lambda rank, told: heard.append((rank, told)))
    assert sorted(heard) == [(rank, number) for rank in range(2) for number in range(2)]
    small.close()
