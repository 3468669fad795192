"""Kernels of our own, tried before they are used."""

from __future__ import annotations

from collections.abc import Callable

from epe.telemetry.log import get_logger

log = get_logger("parallel")


def kernel_runs(kernel: str, run: Callable[[], None]) -> bool:
    """Whether `run` does. If not, the log says what is done in several passes instead, whose last bits are others."""
    try:
        run()
    except Exception as error:  # Triton's have no common kind.
        log.warning("kernel.left_out", kernel=kernel, reason=f"{type(error).__name__}: {error}"[:200])
        return False
    return True
