"""When a request that is not served starves.

What takes minutes may wait for minutes: were it served as often as what takes seconds, late videos would take the ranks
of those that are in time.
"""

from __future__ import annotations

# In latencies that the request could have alone.
STARVES_AFTER = 10.0


def endures_s(starvation_s: float, *, alone_s: float) -> float:
    """How long a request may go unserved: as long as the stage file says, or longer if it takes long by itself."""
    return max(starvation_s, STARVES_AFTER * alone_s)
