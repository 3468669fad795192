"""How much memory a lease took at most on this rank, for the planner, who never plans what does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from epe.errors import BadSetting, OutOfMemory


class Meter(Protocol):
    """Measures from one `reset` to the next; bytes, 0 where nothing can be measured."""

    def reset(self) -> None: ...

    def peak_bytes(self) -> int:
        """The most that was in use since the last `reset`."""

    def resident_bytes(self) -> int:
        """What is in use now."""

    def reserved_bytes(self) -> int:
        """What is in use now, and what is kept for later use."""


class NoMeter:
    """Measures nothing, and costs nothing."""

    def reset(self) -> None:
        pass

    def peak_bytes(self) -> int:
        return 0

    def resident_bytes(self) -> int:
        return 0

    def reserved_bytes(self) -> int:
        return 0


class CudaMeter:
    """The tensors of this process on its GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int:
        return self._of("allocated_bytes", "peak")

    def resident_bytes(self) -> int:
        return self._of("allocated_bytes", "current")

    def reserved_bytes(self) -> int:
        return self._of("reserved_bytes", "current")

    def _of(self, kind: str, when: str) -> int:
        """As `torch.cuda.memory_allocated` and its like, which sort all figures for the one that is wanted."""
        figures = torch.cuda.memory_stats_as_nested_dict(self.device)
        return int(figures[kind]["all"][when]) if figures else 0


class HostMeter:
    """The whole process in host memory, as Linux counts it. A reset takes about a tenth of a millisecond."""

    STATUS = Path("/proc/self/status")
    CLEAR = Path("/proc/self/clear_refs")

    def reset(self) -> None:
        self.CLEAR.write_text("5")  # proc(5): sets the peak to what is resident now

    def peak_bytes(self) -> int:
        return self._of("VmHWM")

    def resident_bytes(self) -> int:
        return self._of("VmRSS")

    def reserved_bytes(self) -> int:
        return self.resident_bytes()

    def _of(self, field: str) -> int:
        found = re.search(rf"^{field}:\s+(\d+) kB$", self.STATUS.read_text(), re.MULTILINE)
        return 1024 * int(found[1]) if found else 0


def meter_for(device: torch.device, *, limit_bytes: int | None) -> Meter:
    """A GPU is always measured; host memory only where somebody has limited it and the system can tell."""
    if device.type == "cuda":
        return CudaMeter(device)
    if limit_bytes is None:
        return NoMeter()
    meter = HostMeter()
    try:
        meter.reset()
    except OSError:
        return NoMeter()
    return meter


# What the captured passes of a rank may keep of its GPU's memory: where the sizes that are asked for in turn do not
# find room together, each is captured anew whenever it comes.
GRAPH_SHARE = 0.1


def graph_bytes(device: torch.device, *, memory_mib: int | None) -> int:
    """What captured passes may keep: what the stage file says (2**20 bytes), or else a share of the GPU's memory."""
    if memory_mib is not None:
        return memory_mib * 2**20
    _, total = torch.cuda.mem_get_info(device)
    return int(GRAPH_SHARE * total)


# Kept free on a GPU: what the allocator cannot use for want of one large piece, and what libraries take later.
GPU_RESERVE = 0.05


def usable_bytes(device: torch.device, *, limit_bytes: int | None, graph_bytes: int = 0) -> int | None:
    """What a rank may use in all: the limit, or on a GPU what it holds and what is free on it, less a reserve; and less
    what its graphs may keep, which no lease is seen to use."""
    if limit_bytes is not None:
        return limit_bytes - graph_bytes
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - GPU_RESERVE * total) - graph_bytes


@contextmanager
def memory_for(what: str, *, advice: str) -> Iterator[None]:
    """Raises `OutOfMemory`, with `advice`, where the device has none for what is done in it, which is `what`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"the device has no memory for {what}; {advice} ({error})") from error


def check_room(memory_bytes: int | None, *, resident_bytes: int, graph_bytes: int) -> None:
    """Raises `BadSetting` where the model and what graphs may keep leave nothing of a device: each request would be
    refused for want of memory."""
    if graph_bytes and memory_bytes is not None and memory_bytes <= resident_bytes:
        left_mib = max(0, memory_bytes + graph_bytes - resident_bytes) >> 20
        raise BadSetting(
            f"{graph_bytes >> 20} MiB for captured passes leave nothing of the {left_mib} MiB beside the model; "
            "give less, or set capture.enabled to false",
            path="capture.memory_mib",
        )
