"""What ranks agree on before a lane shares memory, without a GPU: whether it can, and torch's numbers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch
from torch.distributed import HashStore, PrefixStore, Store

from epe.errors import Gone
from epe.transport import symmetric
from epe.transport.fast import FastWires, LaneMemory
from epe.transport.symmetric import Members, connect

T = TypeVar("T")
CPU = torch.device("cpu")


def wanted() -> None:
    """Nobody has given the lane up."""


def given_up() -> None:
    raise Gone("it was given up")


def connected(store: Store, position: int, width: int, **options: Any) -> FastWires | str:
    ended: list[LaneMemory] = []
    return connect(
        store, position, width, device=CPU, **{"check_wanted": wanted, "end": ended.append, **options}
    )


def of_all(width: int, task: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(width) as pool:
        return list(pool.map(task, range(width)))


def test_ranks_without_gpus_are_told_why_and_all_the_same() -> None:
    store = HashStore()
    reasons = set(of_all(3, lambda position: connected(store, position, 3)))
    assert len(reasons) == 1
    assert "symmetric memory" in reasons.pop()


def test_what_hinders_one_rank_hinders_all() -> None:
    store = HashStore()
    problems = ["", "there is no Triton", "its GPU is old"]
    said = of_all(3, lambda position: Members(store, position, 3).first_problem("gpu", problems[position]))
    assert said == ["there is no Triton"] * 3


def test_ranks_of_two_hosts_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    store, names = HashStore(), iter(("one", "other"))
    lock = threading.Lock()

    def name() -> str:
        with lock:
            return next(names)

    monkeypatch.setattr(symmetric.socket, "gethostname", name)
    said = of_all(2, lambda position: connected(store, position, 2))
    assert said == ["its ranks are on 2 hosts"] * 2


class Torch:
    """torch of one process: what it tells others has the number of its calls in its name."""

    def __init__(self) -> None:
        self.number = 0
        self.fails = False

    def rendezvous(self, store: Store, position: int, width: int) -> list[str]:
        if self.fails:
            raise RuntimeError("no peer access")
        number, self.number = self.number, self.number + 1
        store.set(f"{number}/{position}", f"of {position}")
        return [store.get(f"{number}/{each}").decode() for each in range(width)]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Two, of which one has mapped three times before."""
    found = [SimpleNamespace(torch=Torch(), mapping=symmetric._Mapping()) for _ in range(2)]
    here = threading.local()

    def group(store: Store, position: int, width: int) -> tuple[Store, int, int]:
        here.group = store, position, width
        return here.group

    torches = {id(each.mapping): each.torch for each in found}
    mapped = symmetric._Mapping._map

    def with_own_torch(mapping: Any, memory: torch.Tensor, members: Members) -> Any:
        here.torch = torches[id(mapping)]
        return mapped(mapping, memory, members)

    monkeypatch.setattr(symmetric._Mapping, "_map", with_own_torch)
    monkeypatch.setattr(symmetric, "ProcessGroup", group)
    monkeypatch.setattr(symmetric, "torch_memory", lambda num_bytes, device: torch.empty(num_bytes))
    registry = SimpleNamespace(
        _register_process_group=lambda name, group: None, _unregister_process_group=lambda name: None
    )
    monkeypatch.setattr(symmetric, "c10d", registry)
    monkeypatch.setattr(
        symmetric.symmetric_memory, "rendezvous", lambda memory, name: here.torch.rendezvous(*here.group)
    )
    for number in range(3):
        store = PrefixStore(f"earlier{number}", HashStore())
        found[0].mapping.mapped(torch.empty(1), Members(store, 0, 1), number=number, check_wanted=wanted)
    return found


def test_ranks_that_have_mapped_more_and_less_often_find_each_other(processes: list[SimpleNamespace]) -> None:
    store = HashStore()
    numbers = [each.mapping.number for each in processes]
    assert numbers == [3, 0]

    def mapped(position: int) -> list[str]:
        members = Members(PrefixStore("lane", store), position, 2)
        return processes[position].mapping.mapped(
            torch.empty(1), members, number=max(numbers), check_wanted=wanted
        )

    assert of_all(2, mapped) == [["of 0", "of 1"]] * 2
    assert [each.mapping.number for each in processes] == [4, 4]


def test_a_process_whose_number_is_not_known_any_more_says_so(processes: list[SimpleNamespace]) -> None:
    process = processes[0]
    process.torch.fails = True
    with pytest.raises(RuntimeError, match="no peer access"):
        process.mapping.mapped(torch.empty(1), Members(HashStore(), 0, 1), number=0, check_wanted=wanted)
    assert "could not be mapped" in process.mapping.problem


def test_while_a_lane_that_was_given_up_is_mapped_others_share_no_memory(
    processes: list[SimpleNamespace],
) -> None:
    process, store = processes[0], HashStore()
    absent = Members(store, 0, 2)
    thread = threading.Thread(
        target=lambda: process.mapping.mapped(torch.empty(1), absent, number=3, check_wanted=wanted),
        daemon=True,
    )
    assert process.mapping.problem == ""
    thread.start()
    store.wait(["memory/3/0"])
    assert "still being mapped" in process.mapping.problem
    store.set("memory/3/1", "of 1")
    thread.join(10.0)
    assert process.mapping.problem == ""


def test_a_lane_that_was_given_up_takes_no_number_that_a_later_one_has_told(
    processes: list[SimpleNamespace],
) -> None:
    """The members of the later one would wait for each other at different numbers, without a limit."""
    process = processes[0]
    with pytest.raises(Gone):
        process.mapping.mapped(torch.empty(1), Members(HashStore(), 0, 1), number=5, check_wanted=given_up)
    assert process.mapping.number == 3
    assert process.mapping.problem == ""


class WithGpu:
    """torch whose GPU is the CPU; what is recorded on it comes when `done`."""

    def __init__(self, *, done: bool) -> None:
        self.num_waits = 0
        stream = SimpleNamespace(synchronize=lambda: None)
        event = SimpleNamespace(record=lambda: None, query=lambda: done)
        self.cuda = SimpleNamespace(
            device=lambda device: nullcontext(),
            current_stream=lambda device: stream,
            synchronize=self._wait,
            Event=lambda: event,
        )

    def _wait(self, device: torch.device) -> None:
        self.num_waits += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class Freed:
    """Threads in which what this process has mapped was freed."""

    def __init__(self) -> None:
        self.by: list[threading.Thread] = []

    def torch_memory(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        weakref.finalize(memory, lambda: self.by.append(threading.current_thread()))
        return memory


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> Freed:
    """With ranks that find nothing against sharing memory."""
    freed = Freed()
    monkeypatch.setattr(symmetric, "_mapping", symmetric._Mapping())
    monkeypatch.setattr(symmetric, "_of_gpu", lambda device: "")
    monkeypatch.setattr(symmetric, "_word_on_host", lambda: torch.zeros(1, dtype=torch.int32))
    monkeypatch.setattr(symmetric, "torch_memory", freed.torch_memory)
    return freed


def in_another_thread(task: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(task).result()


def test_memory_that_could_not_be_shared_is_freed_by_the_thread_that_captures_alone(
    freed: Freed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch waits for the device when it frees, which ends the process in the middle of a capture."""
    gpu, ended = WithGpu(done=True), []
    monkeypatch.setattr(symmetric, "torch", gpu)
    said = in_another_thread(lambda: connected(HashStore(), 0, 1, check_wanted=given_up, end=ended.append))
    assert said == "memory cannot be shared: it was given up"
    (memory,) = ended
    assert memory.closed
    assert freed.by == []
    memory.free()
    assert gpu.num_waits == 1
    assert freed.by == [threading.current_thread()]


def test_what_waits_in_a_lane_that_is_given_up_while_it_is_tried_is_let_go_at_once(
    freed: Freed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the others have said how it went with them: one that died says nothing, and the GPU is kept busy."""
    store, ended, is_tried = HashStore(), [], threading.Event()
    store.set_timeout(timedelta(seconds=symmetric.TRIAL_LIMIT_S / 4))
    monkeypatch.setattr(symmetric, "torch", WithGpu(done=False))
    handle = SimpleNamespace(buffer_ptrs=[0, 0])
    monkeypatch.setattr(symmetric._Mapping, "mapped", lambda *_, **__: handle)
    monkeypatch.setattr(symmetric, "_launch", lambda *_: is_tried.set())
    told = {"host": symmetric.socket.gethostname(), "gpu": "", "number": "0"}
    for subject, said in told.items():
        store.set(f"{subject}/1", said)
    memories, made = [], symmetric.SymmetricMemory

    def memory(*args: Any, **options: Any) -> symmetric.SymmetricMemory:
        memories.append(made(*args, **options))
        return memories[0]

    def check() -> None:
        if is_tried.is_set():
            given_up()

    monkeypatch.setattr(symmetric, "SymmetricMemory", memory)
    thread = threading.Thread(
        target=lambda: connected(store, 0, 2, check_wanted=check, end=ended.append), daemon=True
    )
    thread.start()
    store.wait(["trial/0"])
    assert memories[0].closed
    assert ended == []
    store.set("trial/1", "")
    thread.join(10.0)
    assert ended == memories


def test_this_torch_has_the_names_that_shared_memory_stands_on() -> None:
    names = ("_register_process_group", "_unregister_process_group", "_SymmetricMemory")
    assert all(hasattr(symmetric.c10d, name) for name in names)
    memory = symmetric.c10d._SymmetricMemory
    assert all(hasattr(memory, name) for name in ("empty_strided_p2p", "buffer_ptrs", "multicast_ptr"))
    assert callable(symmetric.symmetric_memory.rendezvous)
    assert callable(symmetric.symmetric_memory.get_backend)
