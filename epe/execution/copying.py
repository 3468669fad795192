"""Copies of states and pixels to host memory, beside the steps of the device thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")


def in_host_memory(pixels: torch.Tensor) -> np.ndarray:
    """Through pinned memory where they come from a GPU, so that the copy runs beside its kernels; on the current
    stream, and awaited."""
    copied = pixels.to("cpu", non_blocking=True)
    if pixels.is_cuda:
        torch.cuda.current_stream(pixels.device).synchronize()
    return copied.numpy()


class Copying:
    """One for each device. On a GPU copies run one after the other in a thread of their own, so that the loop does not
    wait for them, and on a stream of their own: on that of the device thread a copy would wait for all that the
    thread has queued meanwhile, which may be the whole of the next lease. What is copied must be complete.

    On a CPU all of it is in host memory already.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._thread: ThreadPoolExecutor | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="copying")

    async def run(self, copy: Callable[[], T]) -> T:
        """What `copy` gives, once it is in host memory; copies end in the order in which they were asked for."""
        if self._thread is None:
            return copy()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._on_stream, copy)

    def close(self) -> None:
        """End the thread after the copy in hand."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _on_stream(self, copy: Callable[[], T]) -> T:
        with torch.cuda.stream(self._stream):
            return copy()
