"""Which passes are captured, kept and let go, with graphs of the CPU."""

from __future__ import annotations

import gc
from random import Random
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from epe.errors import Gone
from epe.graphs import Graphs
from epe.graphs.capture import Pass
from epe.messages import GraphCounts
from epe.transport.exchange import Exchange, SoloExchange
from tests.graphs.tape import TapeDevice

WEIGHT = torch.arange(12.0).view(3, 4)


class Model:
    """A small pass that counts how often Python runs it."""

    def __init__(self) -> None:
        self.num_runs = 0

    def __call__(self, exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.num_runs += 1
        (rows,) = args
        return [torch.tanh(rows @ WEIGHT) * kwargs["scale"]]


def run(graphs: Graphs, work: Pass, rows: torch.Tensor, scale: torch.Tensor | float = 2.0) -> torch.Tensor:
    (output,) = graphs.run(work, SoloExchange(), (rows,), {"scale": scale})
    expected = torch.tanh(rows @ WEIGHT) * scale
    assert torch.equal(output, expected)
    return output


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, 3)


def graphs_of(device: TapeDevice | None = None, *, budget_bytes: int = 2**20) -> Graphs:
    return Graphs(device or TapeDevice(), budget_bytes=budget_bytes)


def test_a_shape_runs_once_as_it_is_is_captured_and_then_replayed_with_equal_bits() -> None:
    graphs, model = graphs_of(), Model()
    for _ in range(5):
        run(graphs, model, rows(4))
    assert model.num_runs == 2
    counts = graphs.statistics
    assert (counts.num_eager, counts.num_captured, counts.num_replayed) == (1, 1, 4)


def test_what_a_replay_gave_stays_when_others_follow() -> None:
    graphs, model = graphs_of(), Model()
    given = [rows(4) for _ in range(4)]
    outputs = [run(graphs, model, each) for each in given]
    assert all(torch.equal(o, torch.tanh(g @ WEIGHT) * 2.0) for o, g in zip(outputs, given, strict=True))


def test_a_value_that_is_no_tensor_has_a_graph_of_its_own() -> None:
    graphs, model = graphs_of(), Model()
    for scale in (2.0, 3.0) * 3:
        run(graphs, model, rows(4), scale)
    assert graphs.statistics.num_captured == 2


def test_a_value_in_a_tensor_needs_no_other_graph() -> None:
    graphs, model = graphs_of(), Model()
    for scale in (2.0, 3.0, 4.0):
        run(graphs, model, rows(4), torch.tensor(scale))
    assert graphs.statistics.num_captured == 1


def test_rows_laid_out_otherwise_have_a_graph_of_their_own() -> None:
    graphs, model = graphs_of(), Model()
    for _ in range(3):
        run(graphs, model, rows(4))
        run(graphs, model, torch.randn(3, 4).t())
    assert graphs.statistics.num_captured == 2


def test_beyond_the_budget_the_size_that_was_used_least_recently_goes() -> None:
    graphs, model = graphs_of(TapeDevice(pass_bytes=10), budget_bytes=25), Model()
    for count in (4, 5):
        run(graphs, model, rows(count))
        run(graphs, model, rows(count))
    run(graphs, model, rows(4))
    for _ in range(2):
        run(graphs, model, rows(6))
    assert (graphs.statistics.num_evicted, graphs.statistics.num_bytes) == (1, 20)
    num_runs = model.num_runs
    run(graphs, model, rows(4))
    assert model.num_runs == num_runs, "4 rows were used after 5, and are still here"
    run(graphs, model, rows(5))
    assert graphs.statistics.num_captured == 4, "5 rows were captured anew"


def test_prompts_of_many_lengths_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epe.graphs.shelf.MAX_PASSES", 2)
    graphs, model = graphs_of(), Model()
    for scale in (1.0, 2.0, 3.0):
        for _ in range(2):
            run(graphs, model, rows(4), scale)
    assert graphs.statistics.num_evicted == 1
    run(graphs, model, rows(4), 1.0)
    assert graphs.statistics.num_captured == 4


def test_a_pass_that_has_no_room_beside_others_of_its_size_is_captured_when_it_comes_again() -> None:
    """It ran as it is for ever, and the log said that it needs what all of them did."""
    graphs, model = graphs_of(TapeDevice(pass_bytes=10), budget_bytes=25), Model()
    for scale in (1.0, 2.0, 3.0):
        for _ in range(2):
            run(graphs, model, rows(4), scale)
    assert (graphs.statistics.num_evicted, graphs.statistics.num_bytes) == (3, 0)
    for _ in range(2):
        run(graphs, model, rows(4), 3.0)
    assert (graphs.statistics.num_refused, graphs.statistics.num_bytes) == (0, 10)


def test_passes_of_one_size_that_have_no_room_together_do_not_push_each_other_out_at_every_step() -> None:
    """Both branches of guidance were captured anew in every step."""
    graphs, model = graphs_of(TapeDevice(pass_bytes=10), budget_bytes=15), Model()
    with capture_logs() as lines:
        for _ in range(40):
            for scale in (1.0, 2.0):
                run(graphs, model, rows(4), scale)
    assert graphs.statistics.num_captured == 5
    assert graphs.statistics.num_replayed > 30
    (refused,) = [line for line in lines if line["event"] == "graph.refused"]
    assert refused["reason"] == "it and 1 of its size need 20 bytes; graphs may have 15"


def test_prompts_of_many_lengths_that_come_again_are_captured_however_often_there_was_no_room() -> None:
    """The second time that one had no room beside the others it ran as it is for 64 steps, and the log warned."""
    graphs, model = graphs_of(TapeDevice(pass_bytes=10), budget_bytes=25), Model()
    for scale in (1.0, 2.0, 3.0, 3.0, 1.0, 2.0, 2.0, 1.0, 3.0, 3.0):
        for _ in range(4):
            run(graphs, model, rows(4), scale)
    assert graphs.statistics.num_refused == 0
    assert graphs.statistics.num_bytes == 10


def test_a_pass_too_large_for_the_budget_runs_as_it_is_and_the_log_says_so_once() -> None:
    graphs, model = graphs_of(TapeDevice(pass_bytes=100), budget_bytes=50), Model()
    with capture_logs() as lines:
        for _ in range(5):
            run(graphs, model, rows(4))
    assert (graphs.statistics.num_refused, graphs.statistics.num_bytes) == (1, 0)
    refused = [line for line in lines if line["event"] == "graph.refused"]
    assert len(refused) == 1
    assert "it needs 100 bytes; graphs may have 50" in refused[0]["reason"]


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no memory"), RuntimeError("not while capturing"), TypeError("no address")],
)
def test_a_capture_that_fails_falls_back_with_equal_bits_and_is_not_tried_again(error: Exception) -> None:
    device, model = TapeDevice(), Model()
    graphs = graphs_of(device)
    run(graphs, model, rows(4))
    device.fails_with = error
    for _ in range(4):
        run(graphs, model, rows(4))
    assert (graphs.statistics.num_refused, graphs.statistics.num_captured) == (1, 0)
    for _ in range(3):
        run(graphs, model, rows(5))
    assert graphs.statistics.num_captured == 1, "other shapes are captured"


@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_while_a_pass_is_captured(fails: bool) -> None:
    collects: list[bool] = []

    def watched(exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        collects.append(gc.isenabled())
        if fails and not gc.isenabled():
            raise RuntimeError("not while capturing")
        return [torch.tanh(args[0] @ WEIGHT) * kwargs["scale"]]

    graphs = graphs_of()
    for _ in range(2):
        run(graphs, watched, rows(4))
    assert collects == [True, False, True][: 2 + fails]
    assert gc.isenabled()


@pytest.mark.parametrize("times", [1, 3, 4])
def test_a_capture_that_others_broke_off_is_tried_again_a_few_times(times: int) -> None:
    """Seen in a service on two GPUs: states moved meanwhile, and the shape ran as it is from then on."""
    device, model = TapeDevice(), Model()
    graphs = in_gaps(device)
    for turn in range(times + 2):
        if turn < times:
            device.fails_with = RuntimeError("CUDA error: see `cudaErrorStreamCaptureInvalidated'")
        run(graphs, model, rows(4))
        graphs.capture_seen(goes_on=True)
    assert (graphs.statistics.num_captured, graphs.statistics.num_refused) == (
        (1, 0) if times < 4 else (0, 1)
    )


def test_a_pass_that_asks_for_a_value_is_refused_and_right() -> None:
    def branching(exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        (each,) = args
        return [torch.tanh(each @ WEIGHT) * kwargs["scale"] if each.sum() > -1e9 else each]

    graphs = graphs_of()
    for _ in range(3):
        run(graphs, branching, rows(4))
    assert graphs.statistics.num_refused == 1


def test_an_error_of_the_pass_itself_is_raised() -> None:
    def broken(exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise ValueError("rows are not what they should be")

    with pytest.raises(ValueError, match="not what they should be"):
        graphs_of().run(broken, SoloExchange(), (rows(4),), {})


def test_after_clearing_a_shape_is_captured_anew() -> None:
    graphs, model = graphs_of(), Model()
    for _ in range(3):
        run(graphs, model, rows(4))
    graphs.clear()
    assert graphs.statistics.num_bytes == 0
    run(graphs, model, rows(4))
    assert graphs.statistics.num_captured == 2


def in_gaps(device: TapeDevice | None = None, *, budget_bytes: int = 2**20) -> Graphs:
    graphs = graphs_of(device, budget_bytes=budget_bytes)
    graphs.in_gaps = True
    return graphs


def test_no_pass_waits_for_a_capture_that_has_time_between_leases() -> None:
    graphs, model = in_gaps(), Model()
    for _ in range(3):
        run(graphs, model, rows(4))
    assert (graphs.statistics.num_eager, graphs.statistics.num_captured) == (3, 0)
    assert graphs.has_seen
    graphs.capture_seen(goes_on=False)
    run(graphs, model, rows(4))
    assert not graphs.has_seen
    assert (graphs.statistics.num_captured, graphs.statistics.num_replayed) == (1, 1)


def test_a_shape_that_came_once_is_captured_if_its_request_goes_on_and_else_when_it_comes_again() -> None:
    graphs, model = in_gaps(), Model()
    run(graphs, model, rows(4))
    graphs.capture_seen(goes_on=True)
    run(graphs, model, rows(5))
    graphs.capture_seen(goes_on=False)
    assert graphs.statistics.num_captured == 1
    run(graphs, model, rows(5))
    graphs.capture_seen(goes_on=False)
    run(graphs, model, rows(5))
    run(graphs, model, rows(4))
    counts = graphs.statistics
    assert (counts.num_eager, counts.num_captured, counts.num_replayed) == (3, 2, 2)


def test_without_memory_in_a_gap_a_shape_falls_back_once_and_says_so() -> None:
    device, model = TapeDevice(), Model()
    graphs, may_be_captured = in_gaps(device), []
    with capture_logs() as lines:
        for _ in range(4):
            device.fails_with = torch.OutOfMemoryError("CUDA out of memory: tried to allocate 2 GiB")
            run(graphs, model, rows(4))
            may_be_captured.append(graphs.has_seen)
            graphs.capture_seen(goes_on=True)
    assert may_be_captured == [True, False, False, False]
    (said,) = (line for line in lines if line["event"] == "graph.refused")
    assert "out of memory" in said["reason"]
    assert graphs.statistics.counts == GraphCounts(num_eager=4, num_refused=1)


def test_a_shape_that_had_no_memory_is_captured_when_there_is_some_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shape that was refused while another process had filled the card ran as it is from then on."""
    monkeypatch.setattr("epe.graphs.retries.TRIED_AGAIN_AFTER", 3)
    device, model = TapeDevice(), Model()
    graphs, tries = in_gaps(device), []
    with capture_logs() as lines:
        for turn in range(12):
            device.fails_with = torch.OutOfMemoryError("CUDA out of memory") if turn < 9 else None
            run(graphs, model, rows(4))
            if graphs.has_seen:
                tries.append(turn)
            graphs.capture_seen(goes_on=True)
    assert tries == [0, 3, 9]
    assert graphs.statistics.counts == GraphCounts(
        num_eager=10, num_refused=2, num_captured=1, num_replayed=2, num_bytes=1
    )
    assert [line["event"] for line in lines] == ["graph.refused", "graph.captured"]


def test_a_shape_that_is_tried_again_and_refused_for_another_reason_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log had the lack of memory as the last word on a shape that has no other chance."""
    monkeypatch.setattr("epe.graphs.retries.TRIED_AGAIN_AFTER", 3)
    device, model = TapeDevice(), Model()
    graphs = in_gaps(device)
    with capture_logs() as lines:
        for turn in range(12):
            device.fails_with = RuntimeError("not allowed") if turn else torch.OutOfMemoryError("no memory")
            run(graphs, model, rows(4))
            graphs.capture_seen(goes_on=True)
    assert [line["reason"] for line in lines] == ["no memory", "not allowed"]
    assert graphs.statistics.counts == GraphCounts(num_eager=12, num_refused=2)


def test_what_ran_on_a_lane_that_was_given_up_is_captured_on_the_next_one() -> None:
    class GivenUp(SoloExchange):
        def check(self) -> None:
            raise Gone("the lane was closed")

    graphs, model = in_gaps(), Model()
    graphs.run(model, GivenUp(), (rows(4),), {"scale": 2.0})
    graphs.capture_seen(goes_on=True)
    assert graphs.statistics.counts == GraphCounts(num_eager=1)
    run(graphs, model, rows(4))
    graphs.capture_seen(goes_on=True)
    assert graphs.statistics.num_captured == 1


def test_a_lane_that_is_given_up_while_a_pass_is_captured_leaves_the_shape_to_the_next_one() -> None:
    """A rank that died meanwhile had its shape run as it is from then on, on every lane."""
    graphs, model, num_ends = graphs_of(), Model(), 0

    def ends_once(exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal num_ends
        if model.num_runs == 1 and num_ends == 0:
            num_ends += 1
            raise Gone("gather on lane (0, 1): it is closed")
        return model(exchange, args, kwargs)

    for _ in range(4):
        run(graphs, ends_once, rows(4))
    counts = graphs.statistics.counts
    assert (num_ends, counts.num_refused) == (1, 0)
    assert (counts.num_eager, counts.num_captured, counts.num_replayed) == (2, 1, 2)


def test_a_new_size_costs_its_first_passes_alone() -> None:
    """Public complaint: every change of resolution took seconds to minutes, also back to one that was drawn before."""
    graphs, model = in_gaps(), Model()
    for turn in range(4):
        num_before = model.num_runs
        for count in (4, 5, 6, 7, 8):
            run(graphs, model, rows(count))
            graphs.capture_seen(goes_on=True)
        if turn:
            assert model.num_runs == num_before


def test_twenty_identical_requests_keep_as_much_memory_as_one() -> None:
    """Public complaint: the second identical request ran out of memory."""
    device, model = TapeDevice(pass_bytes=10), Model()
    graphs = in_gaps(device)
    kept = []
    for _ in range(20):
        for step in range(4):
            run(graphs, model, rows(4))
            graphs.capture_seen(goes_on=step < 3)
        kept.append(graphs.statistics.num_bytes)
    assert kept == [10] * 20


def test_a_soak_of_mixed_sizes_keeps_within_the_budget() -> None:
    """Public complaint: device memory grew from 20 to 56 GB over hours of mixed sizes."""
    device, model = TapeDevice(pass_bytes=10), Model()
    graphs, source = in_gaps(device, budget_bytes=45), Random(3)
    for _ in range(500):
        count = source.randint(1, 12)
        for step in range(4):
            run(graphs, model, rows(count))
            graphs.capture_seen(goes_on=step < 3)
            assert graphs.statistics.num_bytes <= 45
    counts = graphs.statistics
    assert counts.num_refused == 0
    assert 10 * (counts.num_captured - counts.num_evicted) == counts.num_bytes
    assert counts.num_replayed > counts.num_eager


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_a_pass_is_captured_in_the_modes_that_it_ran_in(mode: Any) -> None:
    """Seen on an H200: captured with gradients in a gap, a pass of 300 MB kept 3 GB, and most were refused."""
    modes: list[tuple[bool, bool]] = []

    def noting(exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return args[0] * 2

    graphs = in_gaps()
    for _ in range(3):
        with mode():
            graphs.run(noting, SoloExchange(), (rows(4),), {})
        graphs.capture_seen(goes_on=True)
    assert graphs.statistics.num_replayed == 2
    assert len(modes) == 2
    assert modes[0] == modes[1]
