"""States on disk, on the virtual clock: only the newest is written, and none outlives its request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from epe.jobs.states import States
from epe.messages import Checkpoint, StateHeader
from epe.simulator.virtual_time import run
from epe.transport.link import Parcel

WRITE_S = 0.5


@dataclass
class MemoryFiles:
    """Files that end with the test; `faults` are the writes that fail."""

    states: dict[str, Parcel] = field(default_factory=dict)
    written: list[tuple[str, int]] = field(default_factory=list)
    faults: int = 0

    def write(self, header: StateHeader, tensors: dict[str, Any]) -> None:
        self.written.append((header.request_id, header.step))
        if self.faults:
            self.faults -= 1
            raise OSError("the disk is full")
        self.states[header.request_id] = Parcel(Checkpoint(seq=0, header=header), tuple(tensors.values()))

    def read(self, request_id: str) -> Parcel | None:
        return self.states.get(request_id)

    def remove(self, request_id: str) -> None:
        self.states.pop(request_id, None)

    def remove_others(self, request_ids: Iterable[str]) -> None:
        for name in self.states.keys() - set(request_ids):
            del self.states[name]

    @property
    def steps(self) -> dict[str, int]:
        return {name: parcel.message.header.step for name, parcel in self.states.items()}


async def slowly(work: Callable[..., Any], *args: Any) -> Any:
    """The disk takes its time."""
    await asyncio.sleep(WRITE_S)
    return work(*args)


def holdings(states: States) -> list[object]:
    """What it holds of requests, their names included."""
    return [value for value in vars(states).values() if isinstance(value, (dict, set))]


def offer(states: States, name: str, step: int) -> None:
    states.offer(StateHeader(request_id=name, step=step, names=("x",)), {"x": step})


def test_of_the_states_that_come_while_one_is_written_only_the_newest_is():
    async def main() -> None:
        files = MemoryFiles()
        states = States(files, run_elsewhere=slowly)
        states.want(["a", "b"])
        for step in range(100):
            offer(states, "a", step)
            offer(states, "b", step)
            offer(states, "nobody's", step)
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)
        assert files.steps == {"a": 99, "b": 99}
        assert (await states.load("a")).tensors == (99,)
        rounds = 10 / (States.EVERY_S + 2 * WRITE_S)
        assert len(files.written) <= 2 * (rounds + 2)
        await states.close()

    run(main())


def test_nothing_is_left_of_a_request_that_ended_whenever_it_did():
    async def main() -> None:
        for moment_s in (0.0, 0.1, WRITE_S - 0.01, WRITE_S + 0.01, 3.0):
            files = MemoryFiles()
            states = States(files, run_elsewhere=slowly)
            states.want(["a"])
            offer(states, "a", 1)
            await asyncio.sleep(moment_s)
            offer(states, "a", 2)
            states.forget(["a"])
            offer(states, "a", 3)
            await asyncio.sleep(20)
            assert files.steps == {}, moment_s
            await states.close()

    run(main())


def test_a_full_disk_costs_a_state_and_nothing_else():
    async def main() -> None:
        files = MemoryFiles(faults=1)
        states = States(files, run_elsewhere=slowly)
        states.want(["a"])
        offer(states, "a", 1)
        await asyncio.sleep(5)
        assert files.steps == {}
        offer(states, "a", 2)
        await asyncio.sleep(5)
        assert files.steps == {"a": 2}
        await states.close()

    run(main())


def test_a_new_life_keeps_the_states_of_open_jobs_alone():
    async def main() -> None:
        files = MemoryFiles()
        for name in ("a", "b"):
            files.write(StateHeader(request_id=name, step=1, names=("x",)), {"x": 1})
        states = States(files, run_elsewhere=slowly)
        await states.open(["b"])
        assert files.steps == {"b": 1}
        await states.close()

    run(main())


def test_without_files_nothing_is_kept():
    async def main() -> None:
        states = States()
        await states.open(["a"])
        states.want(["b"])
        for name in ("a", "b"):
            offer(states, name, 1)
        assert not any(holdings(states))
        states.forget(["a", "b"])
        assert not any(holdings(states))
        assert await states.load("a") is None
        await states.close()

    run(main())
