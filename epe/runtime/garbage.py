"""How the leader's garbage is collected: seldom, and without looking again at all that was there before."""

from __future__ import annotations

import gc

# Containers that are made before a look at the young ones, and looks at those before one at the older ones: a few
# milliseconds each. By Python's own numbers a leader under load looked at everything every few seconds, and answered
# nobody for 0.4 s.
_THRESHOLDS = (10_000, 5, 50)


def settle_garbage() -> None:
    """Call it once the service is ready: what is there now (torch alone has hundreds of thousands of objects) stays to
    the end, and no collection looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
