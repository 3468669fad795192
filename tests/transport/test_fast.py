"""Exchanges over memory that ranks share, with threads of a CPU as ranks: bits, captured passes, parts, ends."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from epe.errors import Gone
from epe.graphs import Graphs
from epe.transport.exchange import Exchange
from epe.transport.fast import FastExchange
from tests.graphs.tape import TapeDevice
from tests.lanes import ThreadExchange, on_lane
from tests.transport.host_ring import host_lane, on_ranks

DTYPES = (torch.bfloat16, torch.float32, torch.uint8, torch.int64, torch.bool)
# Counts as they are after years: the next ones have another sign.
OLD = 2**31 - 2


def given(position: int, *shape: int, turn: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * turn + position)
    return torch.randn(*shape, generator=generator)


def everything(exchange: Exchange, dtype: torch.dtype = torch.float32, turn: int = 0) -> list[torch.Tensor]:
    """All that an exchange can do but sending to one, with sizes that differ, are odd, or nothing."""
    me, width = exchange.position, exchange.width
    sizes = tuple(5 * position % 7 for position in range(width))
    whole = exchange.gather(given(me, 3, sizes[me], 11, turn=turn).mul(40).to(dtype), sizes, dim=1)
    rows = [given(me, 1 + peer, 300 + me, turn=turn).to(dtype) for peer in range(width)]
    traded = exchange.all_to_all(rows, [(1 + me, 300 + peer) for peer in range(width)])
    pending = exchange.start_all_to_all(rows, [(1 + me, 300 + peer) for peer in range(width)])
    told = [exchange.broadcast(given(me, 257, turn=turn).to(dtype), source=source) for source in range(width)]
    return [whole, *traded, *pending(), *told]


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("begin", [0, OLD])
def test_bytes_arrive_as_over_any_other_connection(width: int, begin: int) -> None:
    lane = host_lane(tuple(range(width)), begin=begin)
    for dtype in DTYPES:
        found = on_ranks(lane, lambda exchange, dtype=dtype: everything(exchange, dtype))
        expected = on_lane(width, lambda exchange, dtype=dtype: everything(exchange, dtype))  # type: ignore[arg-type]
        for ours, theirs in zip(found, expected, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_one_rank_sends_to_another_while_the_third_does_nothing() -> None:
    def task(exchange: FastExchange) -> torch.Tensor | None:
        if exchange.position == 0:
            exchange.send(given(0, 1000), target=2)
        return exchange.receive(torch.empty(1000), source=0) if exchange.position == 2 else None

    assert torch.equal(on_ranks(host_lane((0, 1, 2)), task)[2], given(0, 1000))  # type: ignore[arg-type]


def of_parts(exchange: Exchange, args: tuple[Any, ...], _: dict[str, Any]) -> torch.Tensor:
    """A pass that trades within halves, with an exchange of all before and after it."""
    (part,) = args
    whole = exchange.gather(part * 2, (part.shape[0],) * exchange.width, dim=0)
    size = exchange.width // 2
    first = exchange.position // size * size
    half = exchange.narrow(tuple(range(first, first + size)))
    traded = half.gather(whole + half.position, (whole.shape[0],) * half.width, dim=0)
    return exchange.gather(traded.sum(dim=0, keepdim=True), (1,) * exchange.width, dim=0)


def test_a_pass_is_captured_as_one_graph_with_its_exchanges_inside() -> None:
    def task(exchange: FastExchange) -> list[tuple[torch.Tensor, torch.Tensor]]:
        device = TapeDevice()
        graphs, pairs = Graphs(device, budget_bytes=2**20), []
        for turn in range(4):
            part = given(exchange.position, 2, 5, turn=turn)
            pairs.append((graphs.run(of_parts, exchange, (part,), {}), of_parts(exchange, (part,), {})))
        assert (graphs.statistics.num_captured, graphs.statistics.num_replayed) == (1, 3)
        assert device.num_begun == 1
        return pairs

    for pairs in on_ranks(host_lane(tuple(range(6))), task):
        assert all(torch.equal(replayed, expected) for replayed, expected in pairs)


def test_what_was_captured_on_one_lane_is_replayed_on_others_of_its_width_and_position() -> None:
    lanes = [host_lane((0, 1)), host_lane((2, 3)), host_lane((1, 0))]
    graphs = [Graphs(TapeDevice(), budget_bytes=2**20) for _ in range(2)]

    def drawn(lane: list[FastExchange], turn: int) -> list[torch.Tensor]:
        def task(exchange: FastExchange) -> torch.Tensor:
            part = given(exchange.position, 2, 5, turn=turn)
            return graphs[exchange.position].run(of_parts, exchange, (part,), {})

        return on_ranks(lane, task)

    def expected(exchange: ThreadExchange, turn: int) -> torch.Tensor:
        return of_parts(exchange, (given(exchange.position, 2, 5, turn=turn),), {})  # type: ignore[arg-type]

    for turn, lane in enumerate([*lanes, *lanes]):
        wanted = on_lane(2, lambda exchange, turn=turn: expected(exchange, turn))
        assert all(torch.equal(*pair) for pair in zip(drawn(lane, turn), wanted, strict=True))
    assert all(each.statistics.num_captured == 1 for each in graphs)


def test_a_rank_that_replays_a_part_of_a_lane_meets_one_that_does_not() -> None:
    """Their turns are the same, though one knows the part as a lane by itself."""

    def task(exchange: FastExchange) -> list[torch.Tensor]:
        half = exchange.narrow((0, 1, 2) if exchange.position < 3 else (3, 4, 5))
        graphs, found = Graphs(TapeDevice(), budget_bytes=2**20), []

        def work(lane: Exchange, args: tuple[torch.Tensor], _: dict[str, Any]) -> torch.Tensor:
            return lane.gather(args[0], (3000,) * 3, dim=0)

        for turn in range(4):
            part = given(exchange.position, 3000, turn=turn)
            replays = exchange.position % 2 == 0
            found.append(graphs.run(work, half, (part,), {}) if replays else work(half, (part,), {}))
        return found

    for position, found in enumerate(on_ranks(host_lane(tuple(range(6))), task)):
        first = position // 3 * 3
        for turn, whole in enumerate(found):
            parts = [given(peer, 3000, turn=turn) for peer in range(first, first + 3)]
            assert torch.equal(whole, torch.cat(parts))


def test_whoever_waits_for_a_dead_rank_is_let_go_when_its_lane_is_closed() -> None:
    survivor, _ = host_lane((0, 1))
    graphs = Graphs(TapeDevice(), budget_bytes=2**20)
    said: list[str] = []

    def wait() -> None:
        survivor.gather(torch.ones(5000), (5000, 5000), dim=0)
        for work in (survivor.check, lambda: graphs.run(of_parts, survivor, (torch.ones(2, 5),), {})):
            with pytest.raises(Gone) as caught:
                work()
            said.append(str(caught.value))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.05)
    assert thread.is_alive()
    survivor.close()
    survivor.close()
    thread.join(10.0)
    assert not thread.is_alive()
    assert len(said) == 2
    assert all("closed" in each for each in said)


def test_a_captured_pass_does_not_begin_on_a_lane_that_was_closed() -> None:
    graphs = [Graphs(TapeDevice(), budget_bytes=2**20) for _ in range(2)]
    lane = host_lane((0, 1))
    for _ in range(2):
        on_ranks(lane, lambda each: graphs[each.position].run(of_parts, each, (torch.ones(2, 5),), {}))
    half = lane[0].narrow((0, 1))
    lane[0].close()
    with pytest.raises(Gone, match="was closed"):
        graphs[0].run(of_parts, half, (torch.ones(2, 5),), {})


def test_memory_is_counted_until_it_is_given_back() -> None:
    exchange, _ = host_lane((0, 1), num_blocks=2, slot_bytes=1024)
    assert exchange.wires.num_bytes == 2 * 2 * 1024 + 2 * 4 * 128
    exchange.close()
    assert exchange.wires.num_bytes == 0
