"""Pixels go to host memory beside the steps of the leases that follow. The stream of a GPU is stood in for."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import pytest
import torch

from epe.execution import device as device_thread
from epe.execution.copying import Copying
from epe.execution.device import ThreadDevice
from epe.execution.run import SoloLanes
from epe.messages import Stage
from tests.execution.counting import CountingAdapter, lease

LIMIT_S = 30.0


@pytest.fixture
def entered(monkeypatch):
    """The threads that went onto the copies' own stream, in order."""
    names: list[str] = []

    @contextmanager
    def on_stream(stream):
        assert stream == "its own"
        names.append(threading.current_thread().name)
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "its own")
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    return names


async def test_the_next_request_is_drawn_while_a_pictures_pixels_are_on_their_way(entered, monkeypatch):
    let_go, copy = threading.Event(), device_thread.in_host_memory

    def held_up(pixels):
        assert let_go.wait(LIMIT_S)
        return copy(pixels)

    monkeypatch.setattr(device_thread, "in_host_memory", held_up)
    device = ThreadDevice(CountingAdapter(), SoloLanes(), rank=0, device=torch.device("cpu"))
    device._copying = Copying(torch.device("cuda"))
    try:
        decoded = (await draw(device, "a"))[-1].decoded
        on_its_way = device.bring_out(decoded)
        outcomes = await asyncio.wait_for(draw(device, "b"), LIMIT_S)
        assert outcomes[-1].report.next_step == 3
        assert not on_its_way.done()
        let_go.set()
        brought = await asyncio.wait_for(on_its_way, LIMIT_S)
    finally:
        let_go.set()
        device.close()
    assert (brought.tensors[0] == decoded.tensors[0].numpy()).all()
    assert [name.rpartition("_")[0] for name in entered] == ["copying"]


async def test_copies_end_in_the_order_in_which_they_were_asked_for(entered):
    copying = Copying(torch.device("cuda"))
    first_may_end, ended = threading.Event(), []

    def first() -> None:
        assert first_may_end.wait(LIMIT_S)
        ended.append("first")

    both = asyncio.gather(copying.run(first), copying.run(lambda: ended.append("second")))
    await asyncio.sleep(0)  # the loop is free, and the second copy is behind the first
    assert ended == []
    first_may_end.set()
    await asyncio.wait_for(both, LIMIT_S)
    copying.close()
    assert ended == ["first", "second"]
    assert len(set(entered)) == 1


async def draw(device: ThreadDevice, name: str):
    """The outcomes of one request's encode, three steps and decode."""
    leases = (
        lease(1, Stage.ENCODE, name=name),
        lease(2, Stage.DENOISE, num_steps=3, name=name),
        lease(3, Stage.DECODE, first_step=3, name=name),
    )
    return await asyncio.gather(*(device.submit(each, None) for each in leases))
