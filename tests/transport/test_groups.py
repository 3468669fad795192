from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore, PrefixStore

from epe.errors import Gone
from epe.messages import Lane
from epe.transport.exchange import GroupExchange, SoloExchange
from epe.transport.fast import FastWires
from epe.transport.groups import Groups, aligned_lanes
from tests.transport.host_ring import host_lane
from tests.world import RankContext, World

DTYPES = (
    torch.bfloat16,
    torch.float32,
    torch.float16,
    torch.uint8,
    torch.int64,
    torch.complex64,
    torch.bool,
)


def part_of(rank: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """A non-contiguous part with values that no other rank has."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(3, 5, rows, generator=generator).mul(50)
    return values.to(torch.uint8 if dtype == torch.uint8 else dtype).transpose(1, 2)


def lane_of(
    context: RankContext, groups: Groups, ranks: tuple[int, ...], incarnation: int = 0
) -> GroupExchange | None:
    if context.rank not in ranks:
        return None
    exchange = groups.exchange(Lane(ranks=ranks, incarnation=incarnation))
    assert isinstance(exchange, GroupExchange)
    return exchange


# --- on the ranks ---


def given_up_while_it_comes_together(context: RankContext) -> tuple[str, float]:
    """The other member never comes; another thread gives the lane up."""
    if context.rank != 0:
        return "", 0.0
    groups = context.groups(timeout_s=60.0)
    lane = Lane(ranks=(0, 1))
    threading.Timer(0.3, groups.drop, (lane,)).start()
    begin_s = time.monotonic()
    with pytest.raises(Gone) as caught:
        groups.exchange(lane)
    with pytest.raises(Gone, match="was dropped"):
        groups.exchange(lane)
    groups.close()
    return str(caught.value), time.monotonic() - begin_s


def given_up_while_it_connects(context: RankContext) -> tuple[str, float]:
    """The other member was here, and died before it connected; another thread gives the lane up."""
    if context.rank != 0:
        return "", 0.0
    groups = context.groups(timeout_s=60.0)
    lane = Lane(ranks=(0, 1))
    PrefixStore("0.1/0/lease0/here", PrefixStore("groups0", context.store)).set("1", "1")
    threading.Timer(0.5, groups.drop, (lane,)).start()
    begin_s = time.monotonic()
    with pytest.raises(Gone) as caught:
        groups.exchange(lane)
    groups.close()
    return str(caught.value), time.monotonic() - begin_s


def every_operation(context: RankContext, ranks: tuple[int, ...]) -> str:
    groups = context.groups()
    exchange = lane_of(context, groups, ranks)
    if exchange is None:
        return "not in the lane"
    assert exchange.position == ranks.index(context.rank)
    for dtype in DTYPES:
        check_gather(exchange, ranks, dtype)
        check_all_to_all(exchange, ranks, dtype)
        check_broadcast(exchange, ranks, dtype)
        check_send(exchange, ranks, dtype)
    groups.close()
    return "done"


def check_gather(exchange: GroupExchange, ranks: tuple[int, ...], dtype: torch.dtype) -> None:
    sizes = tuple((4, 0, 7, 1)[position] for position in range(len(ranks)))
    parts = [part_of(rank, size, dtype) for rank, size in zip(ranks, sizes, strict=True)]
    gathered = exchange.gather(parts[exchange.position], sizes, dim=1)
    assert torch.equal(gathered, torch.cat(parts, dim=1))
    assert gathered.dtype == dtype
    flat = exchange.gather(parts[exchange.position].transpose(0, 1), sizes, dim=0)
    assert torch.equal(flat, torch.cat(parts, dim=1).transpose(0, 1))


def check_all_to_all(exchange: GroupExchange, ranks: tuple[int, ...], dtype: torch.dtype) -> None:
    def piece(source: int, target: int) -> torch.Tensor:
        return part_of(10 * source + target, source + 2 * target, dtype)

    me = exchange.position
    wanted = [piece(source, me) for source in range(len(ranks))]
    outgoing = [piece(me, target) for target in range(len(ranks))]
    received = exchange.all_to_all(outgoing, [tuple(tensor.shape) for tensor in wanted])
    assert all(torch.equal(got, want) for got, want in zip(received, wanted, strict=True))


def check_broadcast(exchange: GroupExchange, ranks: tuple[int, ...], dtype: torch.dtype) -> None:
    for source, rank in enumerate(ranks):
        mine = part_of(exchange.lane.ranks[exchange.position], 6, dtype)
        assert torch.equal(exchange.broadcast(mine, source=source), part_of(rank, 6, dtype))


def check_send(exchange: GroupExchange, ranks: tuple[int, ...], dtype: torch.dtype) -> None:
    last = len(ranks) - 1
    if exchange.position == 0:
        exchange.send(part_of(7, 3, dtype), target=last)
    elif exchange.position == last:
        like = torch.empty_like(part_of(7, 3, dtype))
        assert torch.equal(exchange.receive(like, source=0), part_of(7, 3, dtype))


def a_scalar_and_an_empty_tensor(context: RankContext) -> None:
    groups = context.groups()
    exchange = groups.exchange(Lane(ranks=(0, 1, 2, 3)))
    assert exchange.broadcast(torch.tensor(3.5 + context.rank), source=2).item() == 5.5
    assert exchange.gather(torch.empty(0, 4), (0, 0, 0, 0), dim=0).shape == (0, 4)
    groups.close()


def both_halves(context: RankContext) -> tuple[float, int]:
    groups = context.groups()
    exchange = groups.exchange(Lane(ranks=(2, 0, 3, 1)))
    half = (0, 1) if exchange.position < 2 else (2, 3)
    part = exchange.narrow(half)
    assert exchange.narrow(half) is part
    total = part.gather(torch.tensor([float(context.rank)]), (1, 1), dim=0)
    # Columns across the halves, and a part of a part.
    column = exchange.narrow((exchange.position % 2, exchange.position % 2 + 2))
    across = column.gather(torch.tensor([float(context.rank)]), (1, 1), dim=0)
    assert across.tolist() == [
        exchange.lane.ranks[p] for p in (exchange.position % 2, exchange.position % 2 + 2)
    ]
    three = exchange.narrow((1, 2, 3)) if exchange.position else exchange.narrow((0,))
    pair = three.narrow((1, 2)) if exchange.position > 1 else three.narrow((0,))
    assert pair.gather(torch.tensor([7.0]), (1,) * pair.width, dim=0).tolist() == [7.0] * pair.width
    assert isinstance(exchange.narrow((exchange.position,)), SoloExchange)
    assert exchange.narrow((0, 1, 2, 3)) is exchange
    num_groups = groups.num_groups
    exchange.close()
    with pytest.raises(Gone, match="closed"):
        part.gather(torch.zeros(1), (1, 1), dim=0)
    groups.close()
    return total.sum().item(), num_groups


def one_rank_gives_up(context: RankContext) -> tuple[str, float]:
    """Rank 1 closes its exchange; the others stand in different operations."""
    groups = context.groups(timeout_s=30.0)
    exchange = groups.exchange(Lane(ranks=(0, 1, 2, 3)))
    exchange.gather(torch.ones(1), (1, 1, 1, 1), dim=0)
    if context.rank == 1:
        time.sleep(0.2)
        exchange.close()
        return "", 0.0
    begin_s = time.perf_counter()
    try:
        if context.rank == 0:
            exchange.receive(torch.empty(4), source=1)
        else:
            # These two wait for rank 0 alone, which lets them go by failing itself.
            exchange.receive(torch.empty(4), source=0)
    except Gone as error:
        context.kept["error"] = error  # kept on purpose: it must not keep the connections
        return str(error), time.perf_counter() - begin_s
    return "", -1.0


def a_lane_after_its_drop(context: RankContext) -> float:
    groups = context.groups()
    lane = Lane(ranks=(1, 3))
    if context.rank not in lane.ranks:
        return 0.0
    groups.exchange(lane)
    groups.drop(lane)
    assert groups.num_groups == 0
    with pytest.raises(Gone, match="dropped"):
        groups.exchange(lane)
    again = groups.exchange(Lane(ranks=(1, 3), incarnation=1))
    with pytest.raises(Gone, match="dropped"):
        groups.exchange(lane)
    total = again.gather(torch.tensor([float(context.rank)]), (1, 1), dim=0).sum().item()
    groups.close()
    return float(total)


def nobody_else_comes(context: RankContext) -> str:
    groups = context.groups(timeout_s=0.5)
    if context.rank != 0:
        return ""
    with pytest.raises(Gone) as caught:
        groups.exchange(Lane(ranks=(0, 2)))
    return str(caught.value)


def a_silent_peer(context: RankContext) -> str:
    groups = context.groups(timeout_s=0.5)
    lane = Lane(ranks=(0, 2))
    if context.rank not in lane.ranks:
        return ""
    exchange = groups.exchange(lane)
    if context.rank == 2:
        time.sleep(1.5)
        return ""
    with pytest.raises(Gone) as caught:
        exchange.gather(torch.ones(1), (1, 1), dim=0)
    return str(caught.value)


def a_rank_is_killed(context: RankContext) -> tuple[str, float]:
    groups = context.groups(timeout_s=30.0)
    exchange = groups.exchange(Lane(ranks=(0, 1, 2, 3)))
    begin_s = time.perf_counter()
    for round in range(10_000):
        if context.rank == 3 and round == 20:
            os.kill(os.getpid(), 9)
        if round == 20:
            begin_s = time.perf_counter()
        try:
            exchange.gather(torch.ones(1 << 16), (1 << 16,) * 4, dim=0)
        except Gone as error:
            return str(error), time.perf_counter() - begin_s
    return "", -1.0


def reshapes(context: RankContext) -> dict[str, tuple[int, int]]:
    """Lanes of width 1, 2, 4, 2 again and again; what the process holds before and after."""
    groups = context.groups()
    groups.prebuild(aligned_lanes(4, (1, 2, 4)))
    rank, pair = context.rank, (context.rank // 2 * 2, context.rank // 2 * 2 + 1)
    cycle = ((rank,), pair, (0, 1, 2, 3), pair)

    def go_round(rounds: int) -> None:
        for seq in range(rounds):
            ranks = cycle[seq % 4]
            exchange = groups.exchange(Lane(ranks=ranks), seq=seq)
            exchange.gather(torch.ones(512), (512,) * len(ranks), dim=0)

    go_round(40)
    before = held_by_process()
    go_round(500)
    after = held_by_process()
    assert groups.num_groups == 2
    groups.close()
    return {name: (before[name], after[name]) for name in before}


def other_lanes_come_and_go(context: RankContext) -> tuple[int, dict[str, tuple[int, int]]]:
    """Each rotation of the four ranks is a lane of its own; with `keep_leases` few of them stay."""
    groups = context.groups(keep_leases=2)
    rotations = [tuple((first + i) % 4 for i in range(4)) for first in range(4)]
    most, before = 0, {}
    for seq in range(60):
        exchange = groups.exchange(Lane(ranks=rotations[seq % 4]), seq=seq)
        gathered = exchange.gather(torch.tensor([context.rank]), (1, 1, 1, 1), dim=0)
        assert tuple(gathered.tolist()) == rotations[seq % 4]
        most = max(most, groups.num_groups)
        before = held_by_process() if seq == 20 else before
    after = held_by_process()
    groups.close()
    return most, {name: (before[name], after[name]) for name in before}


def held_by_process() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "fds": len(os.listdir("/proc/self/fd")),
        "rss_kib": pages * 4,
    }


# --- here ---


def test_aligned_lanes_start_at_multiples_of_their_width_and_leave_out_single_ranks() -> None:
    assert [lane.ranks for lane in aligned_lanes(4, (4, 1, 2))] == [(0, 1), (2, 3), (0, 1, 2, 3)]
    assert [lane.ranks for lane in aligned_lanes(5, (3,))] == [(0, 1, 2)]
    assert aligned_lanes(1, (1, 2, 4)) == ()


def test_aligned_lanes_span_all_planes_and_count_widths_in_one() -> None:
    lanes = aligned_lanes(8, (1, 2, 4), num_planes=2)
    assert [lane.ranks for lane in lanes] == [
        *((0, 4), (1, 5), (2, 6), (3, 7)),
        *((0, 1, 4, 5), (2, 3, 6, 7)),
        (0, 1, 2, 3, 4, 5, 6, 7),
    ]


@pytest.mark.world
@pytest.mark.parametrize("ranks", [(0, 1), (3, 1), (2, 0, 3), (3, 0, 2, 1)])
def test_every_operation_brings_exact_bytes_in_lane_order(world: World, ranks: tuple[int, ...]) -> None:
    results = world.run(every_operation, ranks)
    assert [rank for rank in range(4) if results[rank] == "done"] == sorted(ranks)


@pytest.mark.world
def test_a_scalar_and_an_empty_tensor_travel_too(world: World) -> None:
    world.run(a_scalar_and_an_empty_tensor)


@pytest.mark.world
def test_the_two_halves_of_a_lane_exchange_by_themselves(world: World) -> None:
    assert world.run(both_halves) == [(2.0, 1), (4.0, 1), (2.0, 1), (4.0, 1)]


@pytest.mark.world
def test_when_one_rank_closes_its_exchange_the_others_fail_long_before_the_time_limit(world: World) -> None:
    results = world.run(one_rank_gives_up)
    for rank in (0, 2, 3):
        text, waited_s = results[rank]
        assert f"receive on lane (0, 1, 2, 3) (incarnation 0) at position {rank}" in text
        assert 0 <= waited_s < 10
    assert "position 1 does not answer" in results[0][0]


@pytest.mark.world
def test_a_dropped_lane_comes_back_under_its_next_incarnation_alone(world: World) -> None:
    assert world.run(a_lane_after_its_drop) == [0.0, 4.0, 0.0, 4.0]


@pytest.mark.world
def test_a_lane_whose_other_members_do_not_come_is_gone_after_the_time_limit(world: World) -> None:
    text = world.run(nobody_else_comes)[0]
    assert "lane (0, 2) (incarnation 0) did not come together on rank 0" in text


@pytest.mark.world
def test_a_lane_that_waits_for_a_member_that_is_gone_can_be_given_up(world: World) -> None:
    text, waited_s = world.run(given_up_while_it_comes_together)[0]
    assert "given up before all came" in text
    assert waited_s < 30


@pytest.mark.world
def test_a_lane_whose_member_died_before_it_connected_can_be_given_up(world: World) -> None:
    text, waited_s = world.run(given_up_while_it_connects)[0]
    assert "given up before all came" in text
    assert waited_s < 30


@pytest.mark.world
def test_a_silent_peer_is_named_after_the_time_limit(world: World) -> None:
    text = world.run(a_silent_peer)[0]
    assert text.startswith("gather on lane (0, 2) (incarnation 0) at position 0: position 1 does not answer")


@pytest.mark.world
def test_500_reshapes_hold_no_more_threads_descriptors_and_memory(world: World) -> None:
    for held in world.run(reshapes):
        assert held["threads"][1] == held["threads"][0]
        assert held["fds"][1] == held["fds"][0]
        assert held["rss_kib"][1] < held["rss_kib"][0] + 16 * 1024


@pytest.mark.world
def test_lanes_that_are_no_longer_used_are_forgotten_by_all_members_at_the_same_lease(world: World) -> None:
    for most, held in world.run(other_lanes_come_and_go):
        assert most <= 3
        assert held["threads"][1] == held["threads"][0]
        assert held["fds"][1] == held["fds"][0]


@pytest.mark.world
def test_when_a_rank_is_killed_its_lane_fails_long_before_the_time_limit(world: World) -> None:
    results = world.run(a_rank_is_killed, dying=(3,))
    for rank in (0, 1, 2):
        text, waited_s = results[rank]
        assert text.startswith("gather on lane (0, 1, 2, 3)")
        assert 0 <= waited_s < 10


def test_what_was_dropped_is_freed_by_the_thread_that_launches_on_it() -> None:
    """Memory of a lane that goes while something is being launched on it would be a fault of the whole GPU."""
    groups = Groups(HashStore(), epoch=0, rank=0)
    exchange, _ = host_lane((0, 1))
    lane, memory = exchange.lane, exchange.wires.memory
    groups._held[lane.ranks] = exchange
    dropping = threading.Thread(target=groups.drop, args=(lane,))
    dropping.start()
    dropping.join()
    assert memory.closed
    assert memory.freed_by is None
    groups.exchange(Lane(ranks=(0,)), seq=1)
    assert memory.freed_by is threading.current_thread()


def test_what_a_lane_connects_after_it_was_given_up_is_freed_by_the_thread_that_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by the one that connects, which would free it in the middle of a capture."""
    (exchange, _), comes, wanted = host_lane((0, 1)), threading.Event(), []

    def connect(*_: object, check_wanted: Callable[[], None], **__: object) -> FastWires:
        comes.wait(10.0)
        with pytest.raises(Gone):
            check_wanted()
        wanted.append(False)
        return exchange.wires

    monkeypatch.setattr("epe.transport.groups.check_seam", lambda backend: None)
    monkeypatch.setattr("epe.transport.groups.symmetric.connect", connect)
    store = HashStore()
    groups = Groups(store, epoch=0, rank=0, backend="fast", timeout_s=10.0)
    PrefixStore("0.1/0/lease0/here", PrefixStore("groups0", store)).set("1", "1")
    threading.Timer(0.05, groups.drop, (exchange.lane,)).start()
    with pytest.raises(Gone):
        groups.exchange(exchange.lane)
    comes.set()
    for thread in threading.enumerate():
        if thread.name == "connect":
            thread.join(10.0)
    memory = exchange.wires.memory
    assert wanted == [False]
    assert memory.closed
    assert memory.freed_by is None
    groups.exchange(Lane(ranks=(0,)), seq=1)
    assert memory.freed_by is threading.current_thread()


def test_a_lane_that_is_dropped_just_as_it_is_there_is_closed_and_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rank would wait for one that is gone, and nobody would close what it waits in."""
    groups = Groups(HashStore(), epoch=0, rank=0)
    exchange, _ = host_lane((0, 1))

    def build(lane: Lane, name: str) -> GroupExchange:
        groups.drop(lane)
        return exchange

    monkeypatch.setattr(groups, "_build", build)
    with pytest.raises(Gone, match="given up"):
        groups.exchange(exchange.lane)
    assert exchange.closed
    assert groups.num_groups == 0
