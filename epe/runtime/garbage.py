"""What becomes of the memory of a service's processes: garbage is collected seldom, without looking again at all that
was there before; the leader's buffers of pictures go back to the system when they are freed."""

from __future__ import annotations

import ctypes
import gc

# Containers that are made before a look at the young ones, and looks at those before one at the older ones: a few
# milliseconds each. By Python's own numbers a leader under load looked at everything every few seconds, and answered
# nobody for 0.4 s, and a rank stood still for 0.3 s in the middle of a step.
_THRESHOLDS = (10_000, 5, 50)

# glibc's number for the size from which a buffer has pages of its own, and that size.
_M_MMAP_THRESHOLD = -3
_OWN_PAGES_BYTES = 256 * 1024


def settle_garbage() -> None:
    """Call it once a process has what it works with: what is there now (torch alone has hundreds of thousands of
    objects) stays to the end, and no collection looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def return_freed_memory() -> None:
    """Have large buffers freed to the system, and not to be used again. By itself glibc soon keeps all of up to 32 MiB,
    and between them the holes that pictures of mixed sizes leave. Another C library stays as it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES_BYTES)
