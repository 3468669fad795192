"""The phase of a service: when its doors are open, and who waits until nobody is inside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized

from epe.telemetry.log import get_logger

log = get_logger("planner")


class Doors:
    """Mutable, owned by the planner. Phases only go forward: loading, warming, running, draining, or failed, with the
    reason; `phase_changed` hears of each. `inside` are the requests in work."""

    def __init__(self, phase_changed: Callable[[str, str], None], *, inside: Sized) -> None:
        self.phase = "loading"
        self.reason = ""
        self._phase_changed = phase_changed
        self._inside = inside
        self._waiting: list[asyncio.Future[bool]] = []

    @property
    def plans(self) -> bool:
        """Whether ranks are given work in this phase."""
        return self.phase in ("warming", "running", "draining")

    def enter(self, phase: str, reason: str = "") -> None:
        """The next phase begins."""
        self.phase, self.reason = phase, reason
        log.info("service.changed_phase", phase=phase, reason=reason, num_requests=len(self._inside))
        self._phase_changed(phase, reason)

    def emptied(self) -> asyncio.Future[bool]:
        """Completed when nobody is inside any more."""
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return waiting

    def are_empty(self) -> None:
        """Nobody is inside: tell those who wait."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(True)
        self._waiting.clear()
