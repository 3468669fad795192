"""How long a parent waits for its children, and when one of them is of no more use."""

from __future__ import annotations

from msgspec import Struct

from epe.launch.child import Child


class Limits(Struct, frozen=True, kw_only=True):
    """How long the parent waits: for work to drain, for an orderly end after it, for a signal to act. A child whose
    loop does not turn is killed: after `stopped_s` if a signal has stopped it, else after `silent_s`; `look_s` is
    between two looks. A rank that comes back has `start_s` until its loop turns for the first time."""

    drain_s: float
    grace_s: float = 5.0
    terminate_s: float = 3.0
    stopped_s: float = 1.5
    silent_s: float = 30.0
    look_s: float = 0.25
    start_s: float = 1800.0

    @property
    def close_s(self) -> float:
        """From the signal until the last child must have ended."""
        return self.drain_s + self.grace_s


def why_it_hangs(child: Child, limits: Limits) -> str | None:
    """Why a child is of no more use. At the first start the leader says what the world still waits for."""
    silent_s, start_s = child.silent_s(), limits.start_s
    if silent_s > (limits.stopped_s if child.is_stopped else limits.silent_s):
        return f"has not answered for {silent_s:.1f} s"
    if child.spec.life > 0 and not child.beats and child.age_s > start_s:
        return f"has not come back within {start_s:g} s (service.start_s)"
    return None
