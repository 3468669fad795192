"""What ranks agree on before a lane shares memory, without a GPU: whether it can, and torch's numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore, PrefixStore, Store

from epe.transport import symmetric
from epe.transport.symmetric import Members, connect

CPU = torch.device("cpu")


def of_all(width: int, task: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(width) as pool:
        return list(pool.map(task, range(width)))


def test_ranks_without_gpus_are_told_why_and_all_the_same() -> None:
    store = HashStore()
    reasons = set(of_all(3, lambda position: connect(store, position, 3, device=CPU)))
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
    said = of_all(2, lambda position: connect(store, position, 2, device=CPU))
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
        found[0].mapping.mapped(torch.empty(1), Members(store, 0, 1), number=number)
    return found


def test_ranks_that_have_mapped_more_and_less_often_find_each_other(processes: list[SimpleNamespace]) -> None:
    store = HashStore()
    numbers = [each.mapping.number for each in processes]
    assert numbers == [3, 0]

    def mapped(position: int) -> list[str]:
        members = Members(PrefixStore("lane", store), position, 2)
        return processes[position].mapping.mapped(torch.empty(1), members, number=max(numbers))

    assert of_all(2, mapped) == [["of 0", "of 1"]] * 2
    assert [each.mapping.number for each in processes] == [4, 4]


def test_a_process_whose_number_is_not_known_any_more_says_so(processes: list[SimpleNamespace]) -> None:
    process = processes[0]
    process.torch.fails = True
    with pytest.raises(RuntimeError, match="no peer access"):
        process.mapping.mapped(torch.empty(1), Members(HashStore(), 0, 1), number=0)
    assert "could not be mapped" in process.mapping.problem


def test_while_a_lane_that_was_given_up_is_mapped_others_share_no_memory(
    processes: list[SimpleNamespace],
) -> None:
    process, store = processes[0], HashStore()
    absent = Members(store, 0, 2)
    thread = threading.Thread(
        target=lambda: process.mapping.mapped(torch.empty(1), absent, number=3), daemon=True
    )
    assert process.mapping.problem == ""
    thread.start()
    store.wait(["memory/3/0"])
    assert "still being mapped" in process.mapping.problem
    store.set("memory/3/1", "of 1")
    thread.join(10.0)
    assert process.mapping.problem == ""


def test_this_torch_has_the_names_that_shared_memory_stands_on() -> None:
    names = ("_register_process_group", "_unregister_process_group", "_SymmetricMemory")
    assert all(hasattr(symmetric.c10d, name) for name in names)
    memory = symmetric.c10d._SymmetricMemory
    assert all(hasattr(memory, name) for name in ("empty_strided_p2p", "buffer_ptrs", "multicast_ptr"))
    assert callable(symmetric.symmetric_memory.rendezvous)
    assert callable(symmetric.symmetric_memory.get_backend)
