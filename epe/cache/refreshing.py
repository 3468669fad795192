"""What a request goes on with where that which was kept of it stays behind: one more computed step instead."""

from __future__ import annotations

from bisect import bisect_left, insort

from msgspec.structs import replace

from epe.cache.weights import even_levels, weights
from epe.messages.caching import Reuse


def refreshed(reuse: Reuse, step: int, *, num_steps: int) -> Reuse:
    """The plan of a request of which nothing is kept before `step`: the first step that would have used some of it is
    computed too, and what follows leads on from there. Behind it FreeCache holds, as in its first gap."""
    wanting = _wanting(reuse, step, num_steps)
    computed, pulls = list(reuse.computed), list(reuse.pulls)
    if wanting is not None:
        if pulls:
            pulls.insert(bisect_left(computed, wanting), 0.0)
        insort(computed, wanting)
    steps = tuple(sorted({*reuse.refreshed, step}))
    return replace(reuse, computed=tuple(computed), pulls=tuple(pulls), refreshed=steps)


def _wanting(reuse: Reuse, step: int, num_steps: int) -> int | None:
    """The first step from `step` on that would use what was kept before it."""
    if not reuse.is_static:
        return None if reuse.computes(step) else step
    levels = even_levels(num_steps)
    return next((each for each in range(step, num_steps) if min(weights(reuse, levels, each)) < step), None)
