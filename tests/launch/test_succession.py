"""A leader that is lost has a successor, with all ranks anew and the port that clients know."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from epe.launch.revivals import Revivals
from epe.launch.spec import ChildSpec
from epe.launch.succession import MAX_IN_A_ROW, Succession
from tests.launch.service import Service, eventually, finish, is_alive
from tests.launch.test_serve import free_port, start_as_launcher


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.close()


def wait_for_epoch(service: Service, epoch: int) -> None:
    """All children of this world have joined."""
    wanted = {"leader": str(epoch), **{f"rank {rank}": f"{epoch}.0" for rank in range(service.num_ranks)}}
    eventually(
        lambda: all((service.folder / f"{name}.ready").read_text() == text for name, text in wanted.items()),
        within_s=30,
    )


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (signal.SIGKILL, "epe: leader was ended by signal 9 (SIGKILL); starting all again\n"),
        (signal.SIGSTOP, "epe: leader has not answered for "),
    ],
)
def test_a_leader_that_is_killed_or_stopped_is_started_again_with_all_ranks_on_its_port(
    service: Service, number: signal.Signals, what: str
) -> None:
    port = free_port()
    parent = service.start("rank 0=deaf", port=port)
    service.wait_until_ready()
    first = [service.pid(name) for name in service.names]
    os.kill(service.pid("leader"), number)
    wait_for_epoch(service, 1)
    with socket.create_connection(("127.0.0.1", port)):
        pass
    second = [service.pid(name) for name in service.names]
    assert not set(first) & set(second)
    assert not any(map(is_alive, first))
    os.kill(service.pid("rank 1"), signal.SIGKILL)
    eventually(lambda: (service.folder / "rank 1.ready").read_text() == "1.1", within_s=15)
    parent.send_signal(signal.SIGTERM)
    code, said = finish(parent, within_s=30)
    assert what in said
    assert code == 1, "rank 0 is deaf, and has to be killed"
    service.assert_no_child_lives()


def test_between_two_leaders_the_port_stays_and_a_service_that_is_asked_to_ends_with_code_0(
    service: Service,
) -> None:
    port = free_port()
    parent = service.start(port=port)
    service.wait_until_ready()
    os.kill(service.pid("leader"), signal.SIGKILL)
    wait_for_epoch(service, 1)
    os.kill(service.pid("leader"), signal.SIGKILL)  # the next one comes after a pause
    eventually(lambda: not any(map(is_alive, service.children())), within_s=10)
    with socket.create_connection(("127.0.0.1", port)):
        pass  # whoever comes now waits for the next leader
    parent.send_signal(signal.SIGTERM)
    code, said = finish(parent)
    assert code == 0
    assert "leader was ended by signal 9 (SIGKILL); starting all again in 1 s" in said
    service.assert_no_child_lives()


def test_a_rank_that_was_coming_back_when_its_leader_died_does_not_come(service: Service) -> None:
    parent = service.start("rank 1=loading@1")
    service.wait_until_ready()
    first = service.pid("rank 1")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: service.pid("rank 1") != first, within_s=15)
    os.kill(service.pid("leader"), signal.SIGKILL)
    wait_for_epoch(service, 1)
    parent.send_signal(signal.SIGTERM)
    assert finish(parent)[0] == 0
    service.assert_no_child_lives()


def test_a_killed_leader_under_a_launcher_ends_its_parents_since_the_launcher_starts_them_again(
    tmp_path: Path,
) -> None:
    service = Service(tmp_path, num_ranks=2)
    try:
        parents = start_as_launcher(service)
        service.wait_until_ready()
        os.kill(service.pid("leader"), signal.SIGKILL)
        assert finish(parents[0])[0] == 1
        assert finish(parents[1])[0] == 1
        service.assert_no_child_lives()
    finally:
        service.close()


@dataclass
class LostLeader:
    served_s: float
    name: str = "leader"


def succession(*, num_ranks: int = 1) -> Succession:
    common = ChildSpec(
        role="leader",
        world_size=num_ranks,
        stage_path="stage.yaml",
        host="127.0.0.1",
        port=1,
        store_host="127.0.0.1",
        store_port=2,
        trace_path="trace.jsonl",
    )
    return Succession([common, ChildSpec(**{**_fields(common), "role": "rank", "rank": 0})], Revivals())


def _fields(spec: ChildSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def test_a_leader_that_is_lost_again_and_again_has_no_successor() -> None:
    worlds = succession()
    pauses = [worlds.pause_s(LostLeader(served_s=2.0)) for _ in range(MAX_IN_A_ROW + 1)]
    assert pauses == [0, 1, 2, 4, 8, None]


def test_one_that_served_well_for_a_while_is_forgiven() -> None:
    worlds = succession()
    pauses = [worlds.pause_s(LostLeader(served_s=s)) for s in (2.0, 2.0, 2.0, 120.0, 2.0)]
    assert pauses == [0, 1, 2, 0, 1]


def test_each_world_has_an_epoch_and_a_trace_of_its_own() -> None:
    worlds = succession()
    assert [spec.epoch for spec in worlds.begin()] == [1, 1]
    assert [spec.trace_path for spec in worlds.begin()] == ["trace.jsonl.2", "trace.jsonl.2"]


def test_a_parent_without_all_ranks_starts_no_world() -> None:
    assert succession(num_ranks=1).is_possible
    assert not succession(num_ranks=2).is_possible
