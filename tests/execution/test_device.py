from __future__ import annotations

import asyncio
from concurrent.futures import Future

import msgspec
import numpy as np
import pytest
import torch

from epe.errors import BadRequest, Gone
from epe.execution.device import ThreadDevice
from epe.execution.memory import NoMeter
from epe.execution.run import SoloLanes
from epe.graphs import Graphs
from epe.messages import FailureKind, GraphCounts, Lane, Lease, LeaseDone, LeaseFailed, Stage, StateHeader
from epe.models.contract import State
from epe.transport.exchange import SoloExchange
from epe.transport.link import Parcel
from tests.execution.counting import CountingAdapter, lease, request
from tests.graphs.tape import TapeDevice


@pytest.fixture
async def device():
    device = ThreadDevice(CountingAdapter(), SoloLanes(), rank=0, device=torch.device("cpu"))
    yield device
    device.close()


async def test_leases_run_in_order_and_the_last_one_gives_the_picture(device):
    endings = [
        device.submit(lease(1, Stage.ENCODE), None),
        device.submit(lease(2, Stage.DENOISE, num_steps=3), None),
        device.submit(lease(3, Stage.DENOISE, first_step=3, num_steps=1), None),
        device.submit(lease(4, Stage.DECODE, first_step=4), None),
    ]
    outcomes = await asyncio.gather(*endings)
    assert [outcome.report.seq for outcome in outcomes] == [1, 2, 3, 4]
    assert [outcome.report.next_step for outcome in outcomes] == [0, 3, 4, 4]
    assert np.asarray(outcomes[3].decoded.tensors[0]).max() == 4


async def test_a_lease_without_memory_lets_the_captured_passes_go():
    def runs_out(name: str) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    graphs = Graphs(TapeDevice(), budget_bytes=2**20)
    for _ in range(2):
        graphs.run(lambda exchange, args, kwargs: args[0] + 1, SoloExchange(), (torch.ones(2),), {})
    assert graphs.statistics.num_bytes > 0
    cpu = torch.device("cpu")
    device = ThreadDevice(CountingAdapter(runs_out), SoloLanes(), rank=0, device=cpu, graphs=graphs)
    await device.submit(lease(1, Stage.ENCODE), None)
    await device.submit(lease(2, Stage.DENOISE, num_steps=1), None)
    device.close()
    assert graphs.statistics.num_bytes == 0


async def test_only_the_head_of_a_lane_hands_the_picture_on(device):
    await device.submit(lease(1, Stage.ENCODE), None)
    behind = msgspec.structs.replace(lease(2, Stage.DECODE), lane=Lane(ranks=(1, 0)))
    assert (await device.submit(behind, None)).decoded is None


async def test_a_lease_waits_for_its_state_and_those_behind_it_wait_too(device):
    incoming: Future[Parcel] = Future()
    moved = device.submit(lease(1, Stage.DENOISE, first_step=2, num_steps=1), incoming)
    behind = device.submit(lease(2, Stage.ENCODE, name="b"), None)
    await asyncio.sleep(0.05)
    assert not moved.done()
    assert not behind.done()
    header = StateHeader(request_id="a", step=2, names=("latents",))
    incoming.set_result(Parcel(header, (torch.full((2,), 2.0),)))
    report = (await moved).report
    assert report.next_step == 3
    assert report.fetch_s > 0.04
    assert isinstance((await behind).report, LeaseDone)


async def test_a_state_that_never_comes_fails_the_lease_as_a_consequence(device):
    incoming: Future[Parcel] = Future()
    incoming.set_exception(Gone("rank 3 is gone"))
    report = (await device.submit(lease(1, Stage.DENOISE, first_step=2, num_steps=1), incoming)).report
    assert isinstance(report, LeaseFailed)
    assert report.consequence
    assert "rank 3" in report.failure.message


async def test_another_rank_gets_the_state_once_the_step_is_reached(device):
    coming = device.export("a", 2)
    device.submit(lease(1, Stage.ENCODE), None)
    device.submit(lease(2, Stage.DENOISE, num_steps=2), None)
    parcel = await asyncio.wait_for(coming, 5)
    assert parcel.message.step == 2
    assert parcel.tensors[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("bare", "names"), [(False, ("latents", "kept_velocity_1")), (True, ("latents",))])
async def test_what_flexcache_keeps_leaves_with_a_state_unless_it_is_asked_for_bare(device, bare, names):
    tensors = {"latents": torch.ones(2), "kept_velocity_1": torch.zeros(2)}
    device.states.put(State(request("a"), 2, tensors))
    parcel = await device.export("a", 2, bare=bare)
    assert parcel.message.names == names
    assert len(parcel.tensors) == len(names)
    assert device.states.take("a", 2).tensors is tensors


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("prompt is too long", param="prompt"), FailureKind.BAD_REQUEST),
        (RuntimeError("kernel"), FailureKind.TASK_RAISED),
        (torch.OutOfMemoryError("CUDA out of memory"), FailureKind.OUT_OF_MEMORY),
    ],
)
async def test_an_error_fails_the_lease_alone_and_the_device_goes_on(device, error, kind):
    def raises(state):
        if state.step == 1:
            raise error

    device.adapter.before_step = raises
    device.submit(lease(1, Stage.ENCODE), None)
    report = (await device.submit(lease(2, Stage.DENOISE, num_steps=4), None)).report
    assert report.failure.kind is kind
    assert report.failure.stage is Stage.DENOISE
    device.adapter.before_step = lambda state: None
    device.submit(lease(3, Stage.ENCODE, name="b"), None)
    good = (await device.submit(lease(4, Stage.DENOISE, num_steps=4, name="b"), None)).report
    assert good.next_step == 4
    # A request without memory may go on elsewhere from where it was.
    assert len(device.states) == 1 + (kind is FailureKind.OUT_OF_MEMORY)


async def test_nan_in_the_latents_is_a_failure_and_never_a_picture(device):
    def poison(state):
        if state.step == 2:
            state.tensors["latents"][0] = float("nan")

    device.adapter.before_step = poison
    device.submit(lease(1, Stage.ENCODE), None)
    report = (await device.submit(lease(2, Stage.DENOISE, num_steps=4), None)).report
    assert report.failure.kind is FailureKind.NON_FINITE


async def test_a_dropped_request_leaves_nothing(device):
    await device.submit(lease(1, Stage.ENCODE), None)
    device.drop(("a",))
    assert len(device.states) == 0
    report = (await device.submit(lease(2, Stage.DENOISE, num_steps=1), None)).report
    assert report.consequence


def batch(seq: int, *names: str, first_step: int = 0, num_steps: int = 2) -> list[Lease]:
    """Leases that run together."""
    return [
        msgspec.structs.replace(
            lease(seq + place, Stage.DENOISE, first_step=first_step, num_steps=num_steps, name=name),
            batch_size=len(names),
            batch_place=place,
        )
        for place, name in enumerate(names)
    ]


async def test_a_batch_waits_for_all_of_its_leases_and_takes_their_steps_at_once(device):
    for seq, name in enumerate("abc"):
        await device.submit(lease(seq, Stage.ENCODE, name=name), None)
    first, second, third = batch(3, "a", "b", "c")
    early = [device.submit(first, None), device.submit(second, None)]
    await asyncio.sleep(0.05)
    assert not any(ending.done() for ending in early)
    reports = [outcome.report for outcome in await asyncio.gather(*early, device.submit(third, None))]
    assert [(report.seq, report.next_step) for report in reports] == [(3, 2), (4, 2), (5, 2)]
    assert len({report.seconds for report in reports}) == 1
    assert device.adapter.batches == [("a", "b", "c")] * 2
    # It goes on, and one of them alone.
    (alone,) = batch(6, "b", first_step=2, num_steps=1)
    assert (await device.submit(alone, None)).report.next_step == 3
    assert device.adapter.batches == [("a", "b", "c")] * 2


async def test_a_batch_that_fails_keeps_the_states_from_which_each_goes_on_alone():
    def fails_for_b(state):
        if state.request.id == "b" and state.step == 1:
            raise ValueError("b is broken")

    device = ThreadDevice(CountingAdapter(fails_for_b), SoloLanes(), rank=0, device=torch.device("cpu"))
    for seq, name in enumerate("ab"):
        await device.submit(lease(seq, Stage.ENCODE, name=name), None)
    behind = lease(4, Stage.DENOISE, first_step=2, num_steps=1)
    waiting = device.export("a", 2)
    await asyncio.sleep(0)
    endings = [device.submit(each, None) for each in (*batch(2, "a", "b"), behind)]
    reports = [outcome.report for outcome in await asyncio.gather(*endings)]
    assert all(isinstance(report, LeaseFailed) for report in reports)
    assert [report.consequence for report in reports] == [False, False, True]
    with pytest.raises(Gone, match="b is broken"):
        await waiting
    retry = lease(5, Stage.DENOISE, num_steps=2)
    assert (await device.submit(retry, None)).report.next_step == 2
    failed = (await device.submit(msgspec.structs.replace(retry, seq=6, request=request("b")), None)).report
    assert failed.failure.message.endswith("b is broken")
    device.close()


async def test_an_adapter_that_draws_one_at_a_time_refuses_a_batch(device):
    class OneByOne(CountingAdapter):
        step_together = None

    device.adapter = OneByOne()
    for seq, name in enumerate("ab"):
        await device.submit(lease(seq, Stage.ENCODE, name=name), None)
    outcomes = await asyncio.gather(*(device.submit(each, None) for each in batch(2, "a", "b")))
    assert "draws one request at a time" in outcomes[0].report.failure.message


async def test_a_checkpoint_brings_out_what_has_changed_or_the_whole_where_it_was_lost(device):
    prompt = torch.zeros(3)
    states = [
        State(request=request(), step=step, tensors={"prompt": prompt, "latents": torch.full((2,), step)})
        for step in range(3)
    ]
    device.adapter.export_state = lambda state: (
        StateHeader(request_id="a", step=state.step, names=tuple(state.tensors)),
        tuple(state.tensors.values()),
    )
    first, change, whole = [
        (await device.pack(state, whole=whole)).message
        for state, whole in zip(states, (False, False, True), strict=True)
    ]
    assert (first.names, first.unchanged) == (("prompt", "latents"), ())
    assert (change.names, change.unchanged) == (("latents",), ("prompt",))
    assert (whole.names, whole.unchanged) == (("prompt", "latents"), ())


async def test_a_shape_is_captured_between_two_leases_of_its_request_and_reports_count_it():
    graphs = Graphs(TapeDevice(pass_bytes=7), budget_bytes=2**20)

    def passes(state: State) -> None:
        graphs.run(lambda exchange, args, kwargs: args[0] + 1, SoloExchange(), (torch.ones(2),), {})

    cpu = torch.device("cpu")
    device = ThreadDevice(CountingAdapter(passes), SoloLanes(), rank=0, device=cpu, graphs=graphs)
    outcomes = [
        await device.submit(lease(1, Stage.ENCODE), None),
        await device.submit(lease(2, Stage.DENOISE, num_steps=2), None),
        await device.submit(lease(3, Stage.DENOISE, first_step=2, num_steps=2), None),
    ]
    device.close()
    first, last = (outcome.report.use.graphs for outcome in outcomes[1:])
    assert (first.num_eager, first.num_captured) == (2, 0)
    assert last == GraphCounts(num_eager=2, num_captured=1, num_replayed=2, num_bytes=7)


async def test_what_graphs_hold_for_requests_is_no_peak_of_a_lease():
    """It would be taken for what each request of that size needs."""

    class Held:
        nbytes = 1000

    class Full(NoMeter):
        def peak_bytes(self) -> int:
            return 1500

    graphs = Graphs(TapeDevice(), budget_bytes=2**20)

    def passes(state: State) -> None:
        work, rows = (lambda exchange, args, kwargs: args[0] + 1), torch.ones(2)
        graphs.run(work, SoloExchange(), (rows,), {}, memory=held)

    held, cpu = Held(), torch.device("cpu")
    device = ThreadDevice(
        CountingAdapter(passes), SoloLanes(), rank=0, device=cpu, graphs=graphs, meter=Full()
    )
    outcomes = [
        await device.submit(lease(1, Stage.ENCODE), None),
        await device.submit(lease(2, Stage.DENOISE, num_steps=2), None),
        await device.submit(lease(3, Stage.DENOISE, first_step=2, num_steps=2), None),
    ]
    device.close()
    assert [outcome.report.peak_bytes for outcome in outcomes] == [1500, 1500, 500]


async def test_pixels_are_brought_out_as_they_were_decoded(device):
    await device.submit(lease(1, Stage.ENCODE), None)
    outcome = await device.submit(lease(2, Stage.DECODE), None)
    parcel = await device.bring_out(outcome.decoded)
    assert parcel.message is outcome.decoded.message
    (pixels,) = parcel.tensors
    assert isinstance(pixels, np.ndarray)
    assert np.array_equal(pixels, outcome.decoded.tensors[0].numpy())
