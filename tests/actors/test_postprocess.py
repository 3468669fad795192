"""The postprocess actor: whatever the mailboxes of others hold, a picture that was made ends its request."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from epe.actors.core import Actor, ActorSystem
from epe.actors.directory import DESK, PLANNER, POSTPROCESS, Directory
from epe.actors.postprocess import Postprocess
from epe.messages import Artifact, Decoded, Encoded, Inspect, OutputFormat, Received
from epe.simulator.virtual_time import run
from epe.transport.link import Parcel


class Busy(Actor):
    """Takes one message in a while, and has room for one more."""

    inbox: ClassVar[int] = 1

    def __init__(self, came: list[Any]) -> None:
        self.came = came

    async def receive(self, message: Any) -> None:
        await asyncio.sleep(1.0)
        self.came.append(message)


@pytest.mark.parametrize("full", [PLANNER, DESK])
def test_the_end_of_a_picture_waits_for_room_in_a_full_mailbox(full: str):
    came: dict[str, list[Any]] = {PLANNER: [], DESK: []}

    async def main() -> None:
        system = ActorSystem("leader")
        directory = Directory(leader="leader", nodes=("r0",))

        async def encode_elsewhere(encode: Any, pixels: Any, decoded: Decoded) -> Artifact:
            return Artifact(request_id=decoded.request_id, media_type="image/png", data=b"png")

        for name in (PLANNER, DESK):
            system.spawn(name, lambda name=name: Busy(came[name]))
        post = system.spawn(
            POSTPROCESS,
            lambda: Postprocess(directory=directory, encode=None, run_elsewhere=encode_elsewhere),
        )
        system.ref(full).tell(Inspect())
        await asyncio.sleep(0.1)
        system.ref(full).tell(Inspect())
        decoded = Decoded(request_id="a", output_format=OutputFormat.PNG, output_compression=100)
        for _ in range(2):
            post.tell(Parcel(decoded, (b"",)))
        await asyncio.sleep(20)
        await system.stop()

    run(main())
    for kind in (Received, Encoded):
        assert sum(isinstance(message, kind) for message in came[PLANNER]) == 2
    assert sum(isinstance(message, Parcel) for message in came[DESK]) == 2
