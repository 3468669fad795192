"""The memory of a lane whose ranks have GPUs of one host that reach each other's: torch's symmetric memory.

No multicast, no kernel and no barrier of torch's are used: only its way to map the memory of other processes.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, ProcessGroup, Store
from torch.distributed import _symmetric_memory as symmetric_memory

from epe.transport.agent import reason_of
from epe.transport.fast import FastWires, LaneMemory
from epe.transport.ring import Layout
from epe.transport.wires import within

NUM_BLOCKS = 64
SLOT_BYTES = 64 << 10
# For so long ranks try each other's memory.
TRIAL_LIMIT_S = 45.0
# Of a trial: more than all slots hold, less than a word, and a word.
TRIAL_BYTES = (3 * NUM_BLOCKS * SLOT_BYTES, 4099, 16)
# torch is to set up no multicast, and not to refuse ranks that see one GPU each: to all of them it is the first.
_WITHOUT = ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES")
# A GPU that works for so long on what it was given before a lane was closed is one that hangs.
RELEASE_LIMIT_S = 60.0
_POLL_S = 0.001


def connect(
    store: Store,
    position: int,
    width: int,
    *,
    device: torch.device,
    check_wanted: Callable[[], None],
    end: Callable[[LaneMemory], None],
) -> FastWires | str:
    """The wires of a lane, whose ranks all call this; or why it has none, which is the same on all of them. Raises
    `RuntimeError` where one of them does not answer. `check_wanted` raises once the lane was given up, which other work
    of this process does not wait for. Memory that nobody will use is closed, and `end` has it to be freed."""
    members = Members(store, position, width)
    if problem := _of_hosts(members):
        return problem
    if problem := members.first_problem("gpu", _of_gpu(device)):
        return problem
    number = max(map(int, members.told("number", str(_mapping.number))))
    with ExitStack() as failing:
        memory = SymmetricMemory(width, device=device)
        failing.callback(end, memory)
        failing.callback(memory.close)
        if problem := members.first_problem(
            "trial", _of_memory(memory, members, number=number, check_wanted=check_wanted)
        ):
            return problem
        failing.pop_all()
    return FastWires(memory, _launch, position=position)


class Members:
    """What the ranks of a lane tell each other while they connect it."""

    def __init__(self, store: Store, position: int, width: int) -> None:
        self.store, self.position, self.width = store, position, width

    def told(self, subject: str, said: str) -> list[str]:
        """What all say, by position."""
        keys = [f"{subject}/{position}" for position in range(self.width)]
        self.store.set(keys[self.position], said)
        return [self.store.get(key).decode() for key in keys]

    def first_problem(self, subject: str, problem: str) -> str:
        """Empty if nobody has any."""
        return next((said for said in self.told(subject, problem) if said), "")


class SymmetricMemory:
    """A `LaneMemory`, once it is mapped."""

    table: torch.Tensor

    def __init__(self, width: int, *, device: torch.device) -> None:
        self.layout = Layout(width=width, num_blocks=NUM_BLOCKS, slot_bytes=SLOT_BYTES)
        self.closed = False
        self._device = device
        # What torch gives, which nobody else may hold: it goes when this is emptied, on the thread that does so.
        self._mapped: list[Any] = []
        self._stop = _word_on_host()

    def map(self, members: Members, *, number: int, check_wanted: Callable[[], None]) -> None:
        """With all `members`, once they have come to the same `number` of mappings. Raises `RuntimeError`."""
        with torch.cuda.device(self._device):
            self._mapped.append(torch_memory(self.layout.num_bytes, self._device))
            self._mapped[0].zero_()
            # Not the device, on which another thread may be capturing if the lane was given up.
            torch.cuda.current_stream(self._device).synchronize()
            handle = _mapping.mapped(self._mapped[0], members, number=number, check_wanted=check_wanted)
            self._mapped.append(handle)
            rows = self.layout.table(members.position, handle.buffer_ptrs, stop=self._stop.data_ptr())
            self.table = torch.tensor(rows, dtype=torch.int64, device=self._device)

    def close(self) -> None:
        self.closed = True
        self._stop.fill_(1)

    def free(self) -> None:
        """What was launched may still be at it, with a step behind. torch waits for that without a limit; and where a
        thread captures meanwhile, it ends the process."""
        wait = partial(torch.cuda.synchronize, self._device)
        within(RELEASE_LIMIT_S, wait, else_say="the GPU did not end what a closed lane had begun")
        self._mapped.clear()


class _Mapping:
    """Maps memory, which torch numbers by process: what it tells other ranks meanwhile has the number in its name, so
    all members of a lane must be at the same one."""

    def __init__(self) -> None:
        self.number = 0
        self.failed = False
        self._lock = threading.Lock()

    @property
    def problem(self) -> str:
        """Why no more can be mapped, for now or ever."""
        if self.failed:
            return "the memory of an earlier lane could not be mapped"
        # By a lane that was given up meanwhile: torch waits for its members without a limit.
        return "the memory of an earlier lane is still being mapped" if self._lock.locked() else ""

    def mapped(
        self, memory: torch.Tensor, members: Members, *, number: int, check_wanted: Callable[[], None]
    ) -> Any:
        """The handle of `memory` and its like of all members. Raises `RuntimeError`, and what `check_wanted` does."""
        with self._lock:
            # A lane that was given up must not take a number that one after it has told its members by now.
            check_wanted()
            while self.number < number:
                store = PrefixStore(f"alone/{members.position}/{self.number}", members.store)
                self._map(memory, Members(store, 0, 1))
            return self._map(memory, members)

    def _map(self, memory: torch.Tensor, members: Members) -> Any:
        name = f"epe-{secrets.token_hex(8)}"
        group = ProcessGroup(PrefixStore("memory", members.store), members.position, members.width)
        c10d._register_process_group(name, group)
        try:
            handle = symmetric_memory.rendezvous(memory, name)
        except Exception:
            self.failed = True  # At a number that nobody knows.
            raise
        finally:
            c10d._unregister_process_group(name)
        self.number += 1
        return handle


_mapping = _Mapping()


def torch_memory(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Memory that can be mapped. Not by torch's `empty`, which takes it from a pool: that keeps what was mapped, and
    ranks would have to take the same places in it."""
    return c10d._SymmetricMemory.empty_strided_p2p((num_bytes,), (1,), torch.uint8, device)


def _word_on_host() -> torch.Tensor:
    """Setting it waits for nothing that the device does."""
    return torch.zeros(1, dtype=torch.int32, pin_memory=True)


def _of_hosts(members: Members) -> str:
    """The same for all."""
    hosts = members.told("host", socket.gethostname())
    return "" if len(set(hosts)) == 1 else f"its ranks are on {len(set(hosts))} hosts"


def _of_gpu(device: torch.device) -> str:
    """What this process lacks."""
    for name in _WITHOUT:
        os.environ.setdefault(name, "1")
    if problem := _mapping.problem:
        return problem
    backend = symmetric_memory.get_backend(device)
    if backend != "CUDA":
        return f"torch takes {backend} for symmetric memory, and CUDA is needed"
    try:
        import epe.transport.ring_kernel  # noqa: F401
    except ImportError as error:
        return f"there is no Triton: {error}"
    return ""


def _launch(*args: Any) -> None:
    from epe.transport.ring_kernel import launch

    launch(*args)


def _of_memory(
    memory: SymmetricMemory, members: Members, *, number: int, check_wanted: Callable[[], None]
) -> str:
    """Whether it can be mapped, and bytes arrive in it."""
    try:
        memory.map(members, number=number, check_wanted=check_wanted)
        wires = FastWires(memory, _launch, position=members.position)
        problem = _of_trial(wires, members, check_wanted)
    except Exception as error:  # Of torch, the driver, or Triton, whose errors have no common kind.
        problem = f"memory cannot be shared: {reason_of(error)}"
    if problem:
        memory.close()  # Before the others are told: what waits in it keeps the GPU from all other work.
    return problem


def _of_trial(wires: FastWires, members: Members, check_wanted: Callable[[], None]) -> str:
    """Whether bytes of all kinds arrive: many and few, and such as words do not fit."""
    device, positions = wires.table.device, range(members.width)
    peers = [peer for peer in positions if peer != members.position]
    for num_bytes in TRIAL_BYTES:
        sent = {peer: _pattern(num_bytes, members.position, peer, device) for peer in peers}
        received = {peer: torch.empty(num_bytes, dtype=torch.uint8, device=device) for peer in peers}
        with torch.cuda.device(device):
            wires.start(sent, received)()
            done = torch.cuda.Event()
            done.record()
        end_s = time.monotonic() + TRIAL_LIMIT_S
        while not done.query():
            check_wanted()
            if time.monotonic() > end_s:
                return f"nothing arrives within {TRIAL_LIMIT_S:g} s"
            time.sleep(_POLL_S)
        for peer in peers:
            if not torch.equal(received[peer], _pattern(num_bytes, peer, members.position, device)):
                return f"{num_bytes} bytes do not arrive as they were sent"
    return ""


def _pattern(num_bytes: int, source: int, target: int, device: torch.device) -> torch.Tensor:
    """Bytes that no other pair of positions sends, and that stand nowhere else alike."""
    factor = 0x61C88647 * (514 * source + 2 * target + 1) % 2**31 | 1
    numbers = torch.arange(num_bytes, dtype=torch.int32, device=device)
    # The high bits of products that overflow look random.
    return numbers.mul_(factor).bitwise_right_shift_(24).bitwise_and_(255).to(torch.uint8)
