"""Pixels on their way from a rank to the postprocess actor: in memory that both see, or as a parcel."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from epe.actors.core import Actor, ActorSystem
from epe.actors.directory import DESK, PLANNER, POSTPROCESS, Directory, worker_name
from epe.actors.postprocess import Postprocess
from epe.actors.worker import Loaded, Outcome, Worker
from epe.messages import (
    Artifact,
    Decoded,
    Encoded,
    Lane,
    Lease,
    LeaseDone,
    Offered,
    OutputFormat,
    RankReady,
    Request,
    Stage,
)
from epe.transport import shared
from epe.transport.link import Parcel
from epe.transport.memory import MemoryNetwork

NUM_PICTURES = 3


def picture(number: int, side: int) -> np.ndarray:
    return np.full((1, side, side, 3), number, dtype=np.uint8)


class Decoder:
    """A device that has decoded a picture as soon as it is leased one."""

    def __init__(self, side: int) -> None:
        self.side = side

    def submit(self, lease: Lease, incoming: Any) -> asyncio.Future[Outcome]:
        report = LeaseDone(seq=lease.seq, epoch=0, rank=0, next_step=0, seconds=0.0)
        decoded = Decoded(request_id=lease.request.id, output_format=OutputFormat.RAW, output_compression=100)
        ending: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        ending.set_result(Outcome(report, Parcel(decoded, (picture(lease.seq, self.side),))))
        return ending

    def bring_out(self, decoded: Parcel) -> asyncio.Future[Parcel]:
        brought: asyncio.Future[Parcel] = asyncio.get_running_loop().create_future()
        brought.set_result(decoded)
        return brought


class Leader(Actor):
    """Planner and desk in one: keeps what comes, and says when all pictures are there."""

    def __init__(self, came: list[Any], done: asyncio.Event) -> None:
        self.came, self.done = came, done

    async def receive(self, message: Any) -> None:
        self.came.append(message)
        if sum(isinstance(each, Encoded) for each in self.came) == NUM_PICTURES:
            self.done.set()


async def hand_over(side: int) -> tuple[list[Any], list[str]]:
    """What planner and desk get of three pictures, and the kinds of messages that the postprocess actor got."""
    network, came, kinds, done = MemoryNetwork(traced=True), [], [], asyncio.Event()
    directory = Directory(leader="leader", nodes=("r0",))
    systems = {node: ActorSystem(node) for node in ("leader", "r0")}
    for node, system in systems.items():
        system.attach(network.join(node, system))

    async def encode(_: Any, pixels: np.ndarray, decoded: Decoded) -> Artifact:
        assert np.array_equal(pixels, picture(int(decoded.request_id), side))
        return Artifact(request_id=decoded.request_id, media_type="image/png", data=b"png")

    class Watched(Postprocess):
        async def receive(self, message: Any) -> bool | None:
            kinds.append(type(message).__name__)
            return await super().receive(message)

    for name in (PLANNER, DESK):
        systems["leader"].spawn(name, lambda: Leader(came, done))
    systems["leader"].spawn(
        POSTPROCESS, lambda: Watched(directory=directory, encode=None, run_elsewhere=encode)
    )
    stopped = asyncio.get_running_loop().create_future()
    worker = systems["r0"].spawn(worker_name(0), lambda: Worker(0, directory=directory, stopped_by=stopped))
    worker.tell(
        Loaded(device=Decoder(side), ready=RankReady(rank=0, device="cpu", fingerprint="f", load_s=0.0))
    )
    for number in range(NUM_PICTURES):
        request = Request(
            id=str(number),
            prompt="a cat",
            height=side,
            width=side,
            num_steps=1,
            guidance_scale=1.0,
            seed=0,
            output_format=OutputFormat.RAW,
        )
        worker.tell(Lease(seq=number, epoch=0, lane=Lane(ranks=(0,)), stage=Stage.DECODE, request=request))
        await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        await done.wait()
    for system in systems.values():
        await system.stop()
    return came, kinds


def num_encoded(came: list[Any]) -> int:
    return sum(isinstance(message, Encoded) and message.failure is None for message in came)


async def test_large_pictures_are_shared_and_not_sent() -> None:
    came, kinds = await hand_over(side=640)
    assert num_encoded(came) == NUM_PICTURES
    assert kinds == [Offered.__name__] * NUM_PICTURES


async def test_small_pictures_are_sent() -> None:
    came, kinds = await hand_over(side=64)
    assert num_encoded(came) == NUM_PICTURES
    assert kinds == [Parcel.__name__] * NUM_PICTURES


async def test_a_leader_on_another_host_gets_every_picture_and_is_offered_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(_: Any) -> np.ndarray:
        raise FileNotFoundError("no such process")

    monkeypatch.setattr(shared, "take", unreachable)
    came, kinds = await hand_over(side=640)
    assert num_encoded(came) == NUM_PICTURES
    assert kinds == [Offered.__name__] + [Parcel.__name__] * NUM_PICTURES


async def test_a_rank_without_memory_to_share_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(shared.Offer, "__init__", full)
    came, kinds = await hand_over(side=640)
    assert num_encoded(came) == NUM_PICTURES
    assert kinds == [Parcel.__name__] * NUM_PICTURES
