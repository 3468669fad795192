"""Bytes between the ranks of one group, over gloo (host memory) or NCCL (one GPU a rank).

Both move everything as sends and receives between two ranks: sizes may differ, every rank waits on every
other directly (so a dead one is felt by all at once), and on gloo that is as fast as its collectives.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Store

from epe.errors import StartFailed
from epe.telemetry.log import drain, get_logger
from epe.transport.agent import reason_of
from epe.transport.exchange import Bytes

_TAG = 0
# Says what torch does when an exchange over NCCL fails; left alone it ends the process, since another rank is gone.
_ON_FAILURE = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_DO_NOTHING = "0"
# A communicator that cannot be aborted for so long keeps its device for ever.
ABORT_LIMIT_S = 3.0

log = get_logger("transport")


class GlooWires:
    """A gloo group in host memory; tensors on a GPU pass through it."""

    def __init__(self, store: Store, position: int, width: int, *, timeout_s: float, device: Any) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        options._threads = 1
        options._devices = [device]
        group = dist.ProcessGroupGloo(store, position, width, options)
        self._group: Any = group
        self._timeout_s = timeout_s

    @property
    def closed(self) -> bool:
        return self._group is None

    def start(self, outgoing: Bytes, incoming: Bytes) -> Callable[[], None]:
        # Another thread may close it meanwhile.
        group, end_s = _open(self._group), time.monotonic() + self._timeout_s
        landing = {peer: _in_host_memory(tensor) for peer, tensor in incoming.items()}
        works = [(peer, group.recv([tensor], peer, _TAG)) for peer, tensor in landing.items()]
        works += [(peer, group.send([tensor.cpu()], peer, _TAG)) for peer, tensor in outgoing.items()]

        def finish() -> None:
            try:
                for peer, work in works:
                    _wait(peer, work, end_s - time.monotonic())
            finally:
                works.clear()  # Whoever keeps the error would keep the connections by them, and the others waiting.
            for peer, tensor in incoming.items():
                if landing[peer] is not tensor:
                    tensor.copy_(landing[peer])

        return finish

    def close(self) -> None:
        self._group = None


class NcclWires:
    """An NCCL group; an exchange is over for the host when the current stream waits for it, as with NCCL's calls."""

    def __init__(
        self, store: Store, position: int, width: int, *, timeout_s: float, device: torch.device
    ) -> None:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        with failures_left_to_lanes():
            backend = dist.ProcessGroupNCCL(store, position, width, options)
        self._group: Any = ProcessGroup(store, position, width)
        self._group._set_default_backend(ProcessGroup.BackendType.NCCL)
        self._group._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, backend)
        self._device = device
        # The first call makes the communicator and must find all ranks in it.
        peers = [peer for peer in range(width) if peer != position]
        finish = self.start(
            {peer: torch.zeros(1, dtype=torch.uint8, device=device) for peer in peers},
            {peer: torch.zeros(1, dtype=torch.uint8, device=device) for peer in peers},
        )
        finish()
        torch.cuda.synchronize(device)

    @property
    def closed(self) -> bool:
        return self._group is None

    def start(self, outgoing: Bytes, incoming: Bytes) -> Callable[[], None]:
        if not outgoing and not incoming:
            return _nothing
        group = _open(self._group)
        group._start_coalescing(self._device)
        for peer, tensor in incoming.items():
            group.recv([tensor], peer, _TAG)
        for peer, tensor in outgoing.items():
            group.send([tensor], peer, _TAG)
        work = group._end_coalescing(self._device)

        def finish() -> None:
            work.wait()
            outgoing.clear()  # Kept until here: NCCL's stream reads them while the caller goes on.

        return finish

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            # Not destroyed: that would wait for the members that are gone.
            within(ABORT_LIMIT_S, group.abort, else_say="an NCCL communicator could not be aborted")


@contextmanager
def failures_left_to_lanes() -> Iterator[None]:
    """A group that is made within it survives the death of a member: its lane is closed, and this rank goes on in
    others. What the user has asked of torch holds."""
    if _ON_FAILURE in os.environ:
        yield
        return
    os.environ[_ON_FAILURE] = _DO_NOTHING
    try:
        yield
    finally:
        os.environ.pop(_ON_FAILURE, None)


def _nothing() -> None:
    pass


def _open(group: Any) -> Any:
    if group is None:
        raise RuntimeError("it was closed meanwhile")
    return group


def within(
    limit_s: float, action: Callable[[], None], *, else_say: str, leave: Callable[[int], Any] = os._exit
) -> None:
    """Call `action`, which may never return: then this process ends, and whoever watches it starts another one."""
    thread = threading.Thread(target=action, name="within", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        log.error("rank.left", reason=f"{else_say} within {limit_s:g} s")
        drain()
        leave(1)


def loopback_device(interface: str | None) -> Any:
    """The gloo device that groups share: on `interface`, else where this host's name leads."""
    if interface is None:
        return dist.ProcessGroupGloo.create_default_device()
    return dist.ProcessGroupGloo.create_device(interface=interface)


def check_seam(backend: Literal["gloo", "nccl", "fast"]) -> None:
    """Raise `StartFailed` if this torch lacks a private name that the groups stand on."""
    gloo = ("ProcessGroupGloo._Options", "ProcessGroupGloo.create_device", "ProcessGroupGloo.send")
    # A lane that cannot be fast is one over NCCL.
    nccl = ("ProcessGroupNCCL.Options", "ProcessGroup._register_backend", "ProcessGroup._end_coalescing")
    names = gloo if backend == "gloo" else nccl
    missing = [name for name in names if not _has(name)]
    if missing:
        raise StartFailed(
            f"torch {torch.__version__} lacks {', '.join(missing)}, which lanes over {backend} need; "
            "install torch 2.11 to 2.13"
        )


def _has(name: str) -> bool:
    owner: Any = dist
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return owner is not None


def _in_host_memory(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.device.type == "cpu" else torch.empty_like(tensor, device="cpu")


def _wait(peer: int, work: Any, left_s: float) -> None:
    try:
        work.wait(timedelta(seconds=max(left_s, 0.001)))
    except RuntimeError as error:
        # The traceback would keep `work`, and with it the connections, as long as anybody keeps the error.
        reason = reason_of(error)
        raise RuntimeError(f"position {peer} does not answer: {reason}") from error.with_traceback(None)
