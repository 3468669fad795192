"""A pass that exchanges with others: its graphs lie between the exchanges, which are done anew at each replay."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from epe.graphs import Graphs
from epe.transport.exchange import Exchange
from tests.graphs.tape import TapeDevice, TapeGraph
from tests.lanes import ThreadExchange, on_lane


def every_exchange(exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Gathers, trades, and trades within halves, with work between them; equal on all ranks."""
    (part,) = args
    whole = exchange.gather(part * 2, (2, 3, 2, 3), dim=0)
    mine = whole.sum(dim=1, keepdim=True) + exchange.position
    parts = exchange.all_to_all([mine] * 4, [tuple(mine.shape)] * 4)
    half = exchange.narrow((0, 1) if exchange.position < 2 else (2, 3))
    pending = half.start_all_to_all([torch.cat(parts, dim=1)] * 2, [(10, 4)] * 2)
    alone = exchange.narrow((exchange.position,))
    return alone.gather(torch.stack(pending()).sum(dim=0), (10,), dim=0) + 1


def part_of(position: int, turn: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * turn + position)
    return torch.randn(2 + position % 2, 5, generator=generator)


def test_replays_exchange_what_the_ranks_have_then() -> None:
    def task(lane: ThreadExchange) -> list[tuple[torch.Tensor, torch.Tensor]]:
        graphs = Graphs(TapeDevice(), budget_bytes=2**20)
        pairs = []
        for turn in range(4):
            part = part_of(lane.position, turn)
            replayed = graphs.run(every_exchange, lane, (part,), {})  # type: ignore[arg-type]
            pairs.append((replayed, every_exchange(lane, (part,), {})))  # type: ignore[arg-type]
        assert (graphs.statistics.num_captured, graphs.statistics.num_replayed) == (1, 3)
        return pairs

    for pairs in on_lane(4, task):
        assert all(torch.equal(replayed, expected) for replayed, expected in pairs)


def test_a_rank_whose_capture_fails_half_way_goes_on_as_it_is_beside_one_that_replays() -> None:
    def task(lane: ThreadExchange) -> list[tuple[torch.Tensor, torch.Tensor]]:
        device = TapeDevice()
        if lane.position == 0:
            device.fails_with, device.fails_after = torch.OutOfMemoryError("no memory"), 2
        graphs = Graphs(device, budget_bytes=2**20)
        pairs = []
        for turn in range(4):
            part = part_of(lane.position, turn)
            drawn = graphs.run(every_exchange, lane, (part,), {})  # type: ignore[arg-type]
            pairs.append((drawn, every_exchange(lane, (part,), {})))  # type: ignore[arg-type]
        assert device.fails_with is None
        assert graphs.statistics.num_refused == (1 if lane.position == 0 else 0)
        assert graphs.statistics.num_eager == (4 if lane.position == 0 else 1)
        return pairs

    for pairs in on_lane(4, task):
        assert all(torch.equal(drawn, expected) for drawn, expected in pairs)


def test_what_lies_between_the_beginning_and_the_end_of_an_exchange_runs_meanwhile() -> None:
    def work(exchange: Exchange, args: tuple[torch.Tensor, ...], _: dict[str, Any]) -> torch.Tensor:
        take = exchange.start_all_to_all([args[0] + 1] * 2, [(3,)] * 2)
        inner = args[0] * 2
        return torch.stack([*take(), inner]).sum(dim=0)

    class Watched(TapeGraph):
        def replay(self) -> None:
            events.append("graph")
            super().replay()

    class Tapes(TapeDevice):
        def graph(self, pool: object) -> TapeGraph:
            return Watched(self)

    events: list[str] = []

    def task(lane: ThreadExchange) -> torch.Tensor:
        graphs = Graphs(Tapes() if lane.position == 0 else TapeDevice(), budget_bytes=2**20)
        start = lane.start_all_to_all

        def watched(parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> Any:
            take = start(parts, shapes)
            if lane.position == 0:
                events.append("begin")
            return lambda: events.append("end") or take() if lane.position == 0 else take()

        lane.start_all_to_all = watched  # type: ignore[method-assign]
        for turn in range(3):
            if lane.position == 0:
                events.clear()
            drawn = graphs.run(work, lane, (torch.full((3,), float(turn)),), {})  # type: ignore[arg-type]
        return drawn

    drawn, _ = on_lane(2, task)
    assert drawn.tolist() == [10.0] * 3
    assert events == ["graph", "begin", "graph", "end", "graph"]


def test_a_pass_is_captured_without_the_others() -> None:
    """One of two ranks captures and the other does not, and neither waits."""

    def task(lane: ThreadExchange) -> tuple[int, torch.Tensor]:
        graphs = Graphs(TapeDevice(), budget_bytes=2**20)
        given = torch.full((2, 2), float(lane.position))
        for _ in range(3):
            run = partial(graphs.run, gathered) if lane.position == 0 else gathered
            output = run(lane, (given,), {})  # type: ignore[arg-type]
        return lane.num_exchanges, output

    for num_exchanges, output in on_lane(2, task):
        assert num_exchanges == 3
        assert output.flatten().tolist() == [0.0] * 4 + [1.0] * 4


def gathered(exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return exchange.gather(args[0], (2, 2), dim=0)


def test_each_rank_captures_in_its_own_gaps_and_exchanges_nothing_meanwhile() -> None:
    def task(lane: ThreadExchange) -> list[tuple[torch.Tensor, torch.Tensor]]:
        graphs = Graphs(TapeDevice(), budget_bytes=2**20)
        graphs.in_gaps = True
        pairs = []
        for turn in range(4):
            part = part_of(lane.position, turn)
            drawn = graphs.run(every_exchange, lane, (part,), {})  # type: ignore[arg-type]
            pairs.append((drawn, every_exchange(lane, (part,), {})))  # type: ignore[arg-type]
            if turn == lane.position:
                graphs.capture_seen(goes_on=True)
        assert graphs.statistics.num_replayed == 3 - lane.position
        return pairs

    for pairs in on_lane(4, task):
        assert all(torch.equal(drawn, expected) for drawn, expected in pairs)
