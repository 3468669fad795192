"""Makes previews of the checkpoints that come to the leader anyway: no rank does anything for them.

A plain object of the leader's loop, with one owner, the desk; what takes long is handed to `run_elsewhere`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from epe.messages import Palette, Preview, Request, StateHeader
from epe.telemetry.log import get_logger

LATENTS = "latents"

log = get_logger("previews")


class Render(Protocol):
    """The file of a preview, from latents on their way and the noise that they were: may take long."""

    def __call__(self, latents: Any, noise: Any, palette: Palette, request: Request) -> bytes: ...


def whole(latents: Any) -> Any:
    """Latents of which all is seen."""
    return latents


class _Wanted:
    def __init__(self, request: Request, num_previews: int, tell: Callable[[Preview], None]) -> None:
        self.request = request
        self.tell = tell
        parts = num_previews + 1
        self.steps = [max(1, request.num_steps * part // parts) for part in range(1, parts)]
        self.num_begun = 0
        self.noise: Any = None
        self.work: asyncio.Task[None] | None = None


class Previews:
    """Without a palette, which a rank sends, and without checkpoints there are none. `part` is what is looked at of
    latents: of a video so little that the rest need not be kept."""

    def __init__(
        self,
        *,
        render: Render,
        run_elsewhere: Callable[..., Awaitable[bytes]],
        part: Callable[[Any], Any] = whole,
    ) -> None:
        self.palette: Palette | None = None
        self._part = part
        self._render = render
        self._run_elsewhere = run_elsewhere
        self._wanted: dict[str, _Wanted] = {}

    def begin(self, request: Request, *, num_previews: int, tell: Callable[[Preview], None]) -> None:
        """From now on `tell` is called with up to so many previews of the request, spread evenly over its steps."""
        if num_previews > 0:
            self._wanted[request.id] = _Wanted(request, num_previews, tell)

    def end(self, request_id: str) -> None:
        """Nobody wants more."""
        wanted = self._wanted.pop(request_id, None)
        if wanted is not None and wanted.work is not None:
            wanted.work.cancel()

    def see(self, header: StateHeader, tensors: Mapping[str, Any]) -> None:
        """A checkpoint has come. One that comes while a preview is made is let pass."""
        wanted, latents = self._wanted.get(header.request_id), tensors.get(LATENTS)
        if wanted is None or self.palette is None or latents is None:
            return
        if header.step == 0:
            wanted.noise = self._part(latents)
        elif wanted.noise is not None and (wanted.work is None or wanted.work.done()):
            due = [step for step in wanted.steps if step <= header.step]
            if len(due) > wanted.num_begun:
                wanted.num_begun = len(due)
                making = self._make(wanted, header.step, self._part(latents), self.palette)
                wanted.work = asyncio.get_running_loop().create_task(making)

    async def _make(self, wanted: _Wanted, step: int, latents: Any, palette: Palette) -> None:
        index, request = wanted.num_begun - 1, wanted.request
        try:
            data = await self._run_elsewhere(self._render, latents, wanted.noise, palette, request)
        except Exception as error:  # a preview that cannot be made costs nobody his picture
            log.error("preview.failed", request=request.id, reason=f"{type(error).__name__}: {error}")
            self.end(request.id)
        else:
            wanted.tell(Preview(request_id=request.id, index=index, step=step, data=data))
