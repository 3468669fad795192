"""A lane that may choose its teams tries them, and all of its ranks choose alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from epe.parallel.choosing import SAMPLES, Chooser
from epe.transport.exchange import Exchange
from tests.lanes import ThreadExchange, on_lane

CPU = torch.device("cpu")
SIZES = (1, 2)
# Seconds that a call takes on a rank, by its position and the size of teams.
Seconds = Callable[[int, int], float]


class Bench:
    """One rank whose attention takes the seconds that it is told, on a clock of its own."""

    def __init__(self, exchange: Exchange, seconds: Seconds) -> None:
        self.chooser = Chooser(clock=lambda device: self.now_s)
        self.exchange = exchange
        self.seconds = seconds
        self.now_s = 0.0
        self.tried: list[int] = []

    def work(self, size: int) -> torch.Tensor:
        self.tried.append(size)
        self.now_s += self.seconds(self.exchange.position, size)
        return torch.zeros(1)

    def passes(self, count: int, *, num_layers: int, shape: str = "a") -> None:
        for _ in range(count):
            for _ in range(num_layers):
                self.chooser.attend(self.work, sizes=SIZES, exchange=self.exchange, shape=shape, device=CPU)
            self.chooser.end_pass(self.exchange)


def _tried(width: int, seconds: Seconds, *, num_layers: int, count: int) -> list[list[int]]:
    def run(exchange: ThreadExchange) -> list[int]:
        bench = Bench(exchange, seconds)  # type: ignore[arg-type]
        bench.passes(count, num_layers=num_layers)
        return bench.tried

    return on_lane(width, run)


@pytest.mark.parametrize(("faster", "slower"), [(1, 2), (2, 1)])
def test_what_takes_less_time_is_kept_from_the_next_pass_on(faster: int, slower: int) -> None:
    (tried, other) = _tried(2, lambda _, size: 1.0 if size == faster else 1.5, num_layers=10, count=3)
    assert tried == other
    assert tried[:10] == [1, 2] * 5
    assert tried[10:] == [faster] * 20


def test_ranks_that_measure_differently_choose_alike_by_what_all_took() -> None:
    # Teams of two are faster on three of four ranks, but much slower on the fourth.
    tried = _tried(4, lambda rank, size: {1: 1.0, 2: 4.0 if rank == 3 else 0.8}[size], num_layers=10, count=2)
    assert all(each[10:] == [1] * 10 for each in tried)


def test_few_layers_are_tried_over_several_passes() -> None:
    (tried, _) = _tried(2, lambda _, size: float(size), num_layers=3, count=5)
    assert tried[: 2 * SAMPLES] == [1, 2] * SAMPLES
    assert tried[9:] == [1] * 6


def test_the_first_call_of_each_does_not_count() -> None:
    calls: list[int] = []

    def seconds(rank: int, size: int) -> float:
        calls.append(size)
        return 100.0 if calls.count(1) == 1 and size == 1 else float(size)

    def run(exchange: ThreadExchange) -> list[int]:
        bench = Bench(exchange, seconds)  # type: ignore[arg-type]
        bench.passes(2, num_layers=8)
        return bench.tried

    (tried,) = on_lane(1, run)
    assert tried[8:] == [1] * 8


def test_another_shape_and_another_lane_are_tried_anew() -> None:
    def run(exchange: ThreadExchange) -> list[int]:
        bench = Bench(exchange, lambda _, size: float(size))  # type: ignore[arg-type]
        bench.passes(2, num_layers=8)
        bench.tried.clear()
        bench.passes(1, num_layers=4, shape="b")
        bench.exchange = ThreadExchange(exchange._meeting, exchange.position, exchange.width)  # type: ignore[assignment]
        bench.passes(1, num_layers=4)
        return bench.tried

    assert on_lane(2, run) == [[1, 2] * 4] * 2


def test_one_size_is_taken_without_a_trial() -> None:
    chooser, taken = Chooser(clock=lambda device: pytest.fail("nothing is to be measured")), []
    exchange = ThreadExchange(None, 0, 2)  # type: ignore[arg-type]

    def work(size: int) -> torch.Tensor:
        taken.append(size)
        return torch.zeros(1)

    for _ in range(20):
        chooser.attend(work, sizes=(2,), exchange=exchange, shape="a", device=CPU)  # type: ignore[arg-type]
        chooser.end_pass(exchange)  # type: ignore[arg-type]
    assert taken == [2] * 20
