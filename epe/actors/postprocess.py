"""Makes files of decoded tensors in a thread pool, while the lane that decoded them already does something else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from epe.actors.core import Actor
from epe.actors.directory import Directory
from epe.actors.outcome import failure_of
from epe.errors import Overloaded
from epe.messages import Artifact, Decoded, Encoded, Offered, Received, Stage
from epe.transport import shared
from epe.transport.link import Parcel

# Pixels (frames, height, width, 3) and their message to an artifact; may take long, so it runs elsewhere.
Encode = Callable[[Any, Decoded], Artifact]
RunElsewhere = Callable[[Encode, Any, Decoded], Awaitable[Artifact]]


class Postprocess(Actor):
    """One for each leader. The planner bounds what waits here: pictures that are being encoded count as in work."""

    inbox = 1024
    # Between two tries to hand on what a full mailbox has not taken.
    PAUSE_S = 0.05

    def __init__(self, *, directory: Directory, encode: Encode, run_elsewhere: RunElsewhere) -> None:
        self.directory = directory
        self.encode = encode
        self.run_elsewhere = run_elsewhere
        self.tasks: set[asyncio.Task[None]] = set()

    async def receive(self, message: object) -> bool | None:
        match message:
            case Parcel(message=Decoded() as decoded, tensors=(pixels,)):
                self._begin(decoded, pixels)
            case Offered(decoded=decoded, pixels=note):
                try:
                    self._begin(decoded, shared.take(note))
                except OSError:
                    return False  # They are on another host.
                return True
        return None

    async def stopped(self, reason: str) -> None:
        for task in self.tasks:
            task.cancel()

    def _begin(self, decoded: Decoded, pixels: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(decoded, pixels))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _finish(self, decoded: Decoded, pixels: Any) -> None:
        await self._tell(self.directory.planner, Received(request_id=decoded.request_id))
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        failure = None
        try:
            artifact = await self.run_elsewhere(self.encode, pixels, decoded)
        except Exception as error:
            failure = failure_of(error, stage=Stage.FINISH)
        else:
            raw = (pixels,) if not artifact.data else ()
            await self._tell(self.directory.desk, Parcel(artifact, raw))
        encoded = Encoded(request_id=decoded.request_id, seconds=loop.time() - begin_s, failure=failure)
        await self._tell(self.directory.planner, encoded)

    async def _tell(self, address: str, message: Any) -> None:
        """Tell it, when there is room: without these messages a request would never end."""
        while True:
            try:
                return self.ref(address).tell(message)
            except Overloaded:
                await asyncio.sleep(self.PAUSE_S)
