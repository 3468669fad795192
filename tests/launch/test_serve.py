"""Every way in which a parent and its children can end, with real processes and stand-in children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epe.errors import BadSetting
from epe.launch.limits import Limits
from epe.launch.parent import SAME_CTRL_C_S
from epe.launch.revivals import Revivals
from epe.launch.serve import run_serve
from epe.launch.spec import VARIABLE, read_spec
from tests.launch.service import Service, eventually, finish, is_alive


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_drains_and_ends_with_code_0(service: Service, number: signal.Signals) -> None:
    parent = service.start()
    service.wait_until_ready()
    parent.send_signal(number)
    code, said = finish(parent)
    assert (code, said) == (0, "epe: draining, at most 20 s; a second SIGINT ends at once\n")
    service.assert_no_child_lives()


def test_a_second_sigint_ends_at_once_with_code_130(service: Service) -> None:
    parent = service.start("leader=deaf")
    service.wait_until_ready()
    parent.send_signal(signal.SIGINT)
    time.sleep(SAME_CTRL_C_S + 0.2)
    assert parent.poll() is None
    parent.send_signal(signal.SIGINT)
    code, said = finish(parent)
    assert code == 130
    assert "second SIGINT" in said
    service.assert_no_child_lives()


def test_a_sigint_that_comes_twice_at_once_still_drains(service: Service) -> None:
    parent = service.start()
    service.wait_until_ready()
    os.kill(service.pid("leader"), signal.SIGSTOP)  # so that the drain lasts until both signals are here
    parent.send_signal(signal.SIGINT)
    assert parent.stderr is not None
    assert "draining" in parent.stderr.readline()
    parent.send_signal(signal.SIGINT)
    time.sleep(SAME_CTRL_C_S)
    os.kill(service.pid("leader"), signal.SIGCONT)
    assert finish(parent)[0] == 0
    service.assert_no_child_lives()


def test_a_drain_that_exceeds_its_limit_is_cut_off(service: Service) -> None:
    parent = service.start("leader=deaf", limits=Limits(drain_s=0.2, grace_s=0.2, terminate_s=0.3))
    service.wait_until_ready()
    parent.send_signal(signal.SIGTERM)
    code, said = finish(parent)
    assert code == 1
    assert "leader, rank 0, rank 1 did not end in time" in said
    service.assert_no_child_lives()


def test_a_rank_that_ignores_the_stop_and_sigterm_is_killed(service: Service) -> None:
    parent = service.start("rank 1=deaf")
    service.wait_until_ready()
    parent.send_signal(signal.SIGINT)
    code, said = finish(parent)
    assert code == 1
    assert "rank 1 did not end in time" in said
    service.assert_no_child_lives()


def test_a_leader_that_is_killed_before_it_serves_is_named_and_the_others_end(service: Service) -> None:
    parent = service.start("leader=mute", "rank 0=deaf")
    service.wait_until_ready()
    os.kill(service.pid("leader"), signal.SIGKILL)
    code, said = finish(parent)
    assert code == 1
    assert "epe: leader was ended by signal 9 (SIGKILL); ending the others" in said
    service.assert_no_child_lives()


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (signal.SIGKILL, "rank 1 was ended by signal 9 (SIGKILL); starting it again"),
        (signal.SIGSTOP, "rank 1 has not answered for"),
    ],
)
def test_a_rank_that_is_killed_or_stopped_is_started_again_and_the_others_stay(
    service: Service, number: signal.Signals, what: str
) -> None:
    parent = service.start("rank 1=beats")
    service.wait_until_ready()
    others = [service.pid("leader"), service.pid("rank 0")]
    os.kill(service.pid("rank 1"), number)
    eventually(lambda: (service.folder / "rank 1.ready").read_text() == "1", within_s=15)
    assert [service.pid("leader"), service.pid("rank 0")] == others
    parent.send_signal(signal.SIGTERM)
    code, said = finish(parent)
    assert code == 0
    assert what in said
    service.assert_no_child_lives()


def test_a_rank_that_makes_room_again_and_again_is_started_without_a_pause(service: Service) -> None:
    parent = service.start("rank 1=again@012")
    service.wait_until_ready()
    eventually(lambda: (service.folder / "rank 1.ready").read_text() == "3", within_s=60)
    parent.send_signal(signal.SIGTERM)
    code, said = finish(parent)
    assert code == 0
    assert said.count("rank 1 has made room; starting it again\n") == 3
    service.assert_no_child_lives()


def test_a_stage_file_that_becomes_wrong_while_ranks_come_back_does_not_end_the_service(
    service: Service,
) -> None:
    parent = service.start("rank 1=exit:2@1")
    service.wait_until_ready()
    os.kill(service.pid("rank 1"), signal.SIGKILL)
    eventually(lambda: (service.folder / "rank 1.ready").read_text() == "2", within_s=30)
    parent.send_signal(signal.SIGTERM)
    code, said = finish(parent)
    assert code == 0
    assert "rank 1 ended with exit code 2; starting it again in 1 s" in said
    service.assert_no_child_lives()


@pytest.mark.parametrize("number", [None, signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_again_while_it_comes_back_does_not_end_the_service(
    service: Service, number: signal.Signals | None
) -> None:
    parent = service.start("rank 1=loading@1" if number else "rank 1=exit:7@1")
    service.wait_until_ready()
    first = service.pid("rank 1")
    os.kill(first, signal.SIGKILL)
    if number:
        eventually(lambda: service.pid("rank 1") != first, within_s=15)
        os.kill(service.pid("rank 1"), number)
    eventually(lambda: (service.folder / "rank 1.ready").read_text() == "2", within_s=15)
    parent.send_signal(signal.SIGTERM)
    assert finish(parent)[0] == 0
    service.assert_no_child_lives()


def test_a_rank_that_hangs_while_it_comes_back_is_started_once_more(service: Service) -> None:
    limits = Limits(drain_s=20, grace_s=0.5, terminate_s=0.5, start_s=3)
    parent = service.start("rank 1=loading@1", limits=limits)
    service.wait_until_ready()
    os.kill(service.pid("rank 1"), signal.SIGKILL)
    eventually(lambda: (service.folder / "rank 1.ready").read_text() not in "01", within_s=30)
    parent.send_signal(signal.SIGTERM)
    code, said = finish(parent)
    assert code == 0
    assert "rank 1 has not come back within 3 s (service.start_s); killing it" in said
    service.assert_no_child_lives()


def test_a_rank_that_is_killed_during_a_drain_does_not_cut_it_off(service: Service) -> None:
    parent = service.start()
    service.wait_until_ready()
    os.kill(service.pid("leader"), signal.SIGSTOP)  # so that the drain lasts
    parent.send_signal(signal.SIGTERM)
    assert parent.stderr is not None
    assert "draining" in parent.stderr.readline()
    os.kill(service.pid("rank 1"), signal.SIGKILL)
    eventually(lambda: (service.folder / "rank 1.ready").read_text() == "1", within_s=15)
    os.kill(service.pid("leader"), signal.SIGCONT)
    assert finish(parent)[0] == 0
    service.assert_no_child_lives()


def test_a_rank_that_came_back_as_the_leader_was_ending_is_no_failure(service: Service) -> None:
    parent = service.start("leader=shut")
    service.wait_until_ready()
    os.kill(service.pid("rank 1"), signal.SIGKILL)
    eventually(lambda: (service.folder / "rank 1.ready").read_text() == "1", within_s=15)
    parent.send_signal(signal.SIGTERM)
    assert finish(parent)[0] == 0
    service.assert_no_child_lives()


def test_the_service_ends_in_order_while_a_rank_comes_back(service: Service) -> None:
    parent = service.start("rank 1=loading@1")
    service.wait_until_ready()
    first = service.pid("rank 1")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: service.pid("rank 1") != first, within_s=15)
    parent.send_signal(signal.SIGTERM)
    assert finish(parent)[0] == 0
    service.assert_no_child_lives()


def test_a_rank_that_dies_again_and_again_is_started_after_longer_and_longer_pauses() -> None:
    revivals = Revivals()
    pauses = [revivals.pause_s("rank 1", lived_s=5) for _ in range(9)]
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert revivals.pause_s("rank 0", lived_s=5) == 0
    assert revivals.pause_s("rank 1", lived_s=Revivals.LIVED_WELL_S) == 0
    assert revivals.pause_s("rank 1", lived_s=5) == 1


@pytest.mark.parametrize(("child_code", "parent_code"), [(7, 1), (2, 2)])
def test_a_rank_that_fails_while_it_starts_ends_all(
    service: Service, child_code: int, parent_code: int
) -> None:
    parent = service.start(f"rank 1=exit:{child_code}")
    code, said = finish(parent)
    assert code == parent_code
    assert f"rank 1 ended with exit code {child_code}; ending the others" in said
    service.assert_no_child_lives()


def test_a_leader_that_ends_by_itself_ends_the_service_with_code_0(service: Service) -> None:
    parent = service.start()
    service.wait_until_ready()
    os.kill(service.pid("leader"), signal.SIGTERM)
    assert finish(parent) == (0, "")
    service.assert_no_child_lives()


def test_a_signal_while_the_leader_loads_ends_all_with_code_0(service: Service) -> None:
    parent = service.start("leader=loading")
    service.wait_until_ready(but=("leader",))
    parent.send_signal(signal.SIGINT)
    assert finish(parent)[0] == 0
    service.assert_no_child_lives()


def test_no_child_outlives_a_parent_that_is_killed(service: Service) -> None:
    parent = service.start("rank 0=deaf", "rank 1=loading")
    service.wait_until_ready(but=("leader", "rank 1"))
    assert len(service.children()) == 3
    os.kill(service.pid("rank 0"), signal.SIGSTOP)  # hangs: only the kernel can end it
    parent.kill()
    service.assert_no_child_lives(within_s=5)


def test_what_a_rank_leaves_behind_in_its_group_ends_with_it(service: Service) -> None:
    parent = service.start("rank 1=parent_of_one")
    service.wait_until_ready()
    grandchild = service.pid("rank 1", kind="grandchild")
    assert is_alive(grandchild)
    parent.send_signal(signal.SIGINT)
    assert finish(parent)[0] == 0
    service.assert_no_child_lives(within_s=1)


def test_the_terminals_ctrl_c_reaches_only_the_parent(service: Service) -> None:
    parent = service.start()
    service.wait_until_ready()
    groups = {os.getpgid(service.pid(name)) for name in service.names}
    assert os.getpgid(parent.pid) not in groups
    assert len(groups) == 3


def test_a_port_in_use_is_one_sentence_and_code_2(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, said = finish(service.start(port=port))
    assert code == 2
    assert said == (
        f"epe: service: cannot listen on 127.0.0.1:{port}: the port is in use; "
        "choose another with --host, --port or in the stage file\n"
    )
    assert service.children() == []


def test_two_services_start_side_by_side(service: Service, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Service(tmp_path / "other")
    try:
        parents = [service.start(), other.start()]
        service.wait_until_ready()
        other.wait_until_ready()
        for parent in parents:
            parent.send_signal(signal.SIGTERM)
        assert [finish(parent)[0] for parent in parents] == [0, 0]
    finally:
        other.close()


def test_the_port_is_closed_once_the_leader_has_closed_it(service: Service) -> None:
    port = free_port()
    parent = service.start("rank 0=deaf", port=port, limits=Limits(drain_s=20, grace_s=20))
    service.wait_until_ready()
    with socket.create_connection(("127.0.0.1", port)):
        pass
    parent.send_signal(signal.SIGTERM)
    eventually(lambda: not is_alive(service.pid("leader")), within_s=5)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def start_as_launcher(service: Service, *behaviours: str) -> list[subprocess.Popen[str]]:
    """Four parents, as `torchrun` or `srun` start them, with the least that a launcher may say."""
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(service.num_ranks),
    }
    return [
        service.start(*behaviours, env={**meeting, "RANK": str(rank)}) for rank in range(service.num_ranks)
    ]


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path, num_ranks=4)
    yield service
    service.close()


def test_parents_of_a_launcher_end_by_the_leaders_word(launched: Service) -> None:
    parents = start_as_launcher(launched)
    launched.wait_until_ready()
    assert len(launched.children()) == 5
    os.kill(launched.pid("leader"), signal.SIGSTOP)
    for parent in parents:
        parent.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert all(is_alive(launched.pid(name)) for name in launched.names)  # they wait for that word
    os.kill(launched.pid("leader"), signal.SIGCONT)
    assert [finish(parent)[0] for parent in parents] == [0, 0, 0, 0]
    launched.assert_no_child_lives()


def test_a_signal_to_rank_0s_parent_alone_ends_all_parents(launched: Service) -> None:
    parents = start_as_launcher(launched)
    launched.wait_until_ready()
    parents[0].send_signal(signal.SIGINT)
    assert [finish(parent)[0] for parent in parents] == [0, 0, 0, 0]
    launched.assert_no_child_lives()


def test_a_launchers_parent_does_not_wait_for_a_word_that_cannot_come(launched: Service) -> None:
    loading = [f"rank {rank}=loading" for rank in range(1, 4)]
    parents = start_as_launcher(launched, *loading)
    launched.wait_until_ready(but=("leader", "rank 1", "rank 2", "rank 3"))
    parents[0].kill()
    for parent in parents[1:]:
        parent.send_signal(signal.SIGTERM)
    assert [finish(parent)[0] for parent in parents[1:]] == [0, 0, 0]
    launched.assert_no_child_lives(within_s=5)


def test_nothing_outlives_a_torchrun_that_is_killed(tmp_path: Path) -> None:
    service = Service(tmp_path, num_ranks=1)
    launcher = (sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])")
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none"}
    try:
        torchrun = service.start(env={**env, "MASTER_PORT": str(free_port())}, launcher=launcher)
        service.wait_until_ready()
        torchrun.kill()
        service.assert_no_child_lives(within_s=5)
    finally:
        service.close()


def test_a_wrong_number_of_processes_is_one_sentence_and_code_2(service: Service) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    code, said = finish(service.start(env=env))
    assert code == 2
    assert said.startswith("epe: gpu: names 2 devices, but WORLD_SIZE is 3;")
    assert said.count("\n") == 1


def write_stage(folder: Path) -> Path:
    (folder / "model_index.json").write_text('{"_class_name": "ZImagePipeline"}')
    stage = folder / "stage.yaml"
    stage.write_text(
        f"name: image\nfactory: zimage\ngpu: [0, 1]\nparallelism:\n  cp: {{world_size: 2}}\n"
        f"factory_args: {{model_path: {folder}}}\nservice: {{port: 0}}\n"
    )
    return stage


def test_a_stage_file_is_served_with_its_overrides(tmp_path: Path) -> None:
    stage = write_stage(tmp_path)
    child = [
        sys.executable,
        "-c",
        f"import os; open('{tmp_path}/' + str(os.getpid()), 'w').write(os.environ['EPE_CHILD'])",
    ]
    port = free_port()
    assert run_serve(stage, port=port, log_level="debug", env=os.environ, child_command=child) == 0
    specs = [read_spec({VARIABLE: path.read_text()}) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert {spec.name for spec in specs} == {"leader", "rank 0", "rank 1"}
    overridden = {(spec.stage_path, spec.host, spec.port, spec.log_level) for spec in specs}
    assert overridden == {(str(stage), "127.0.0.1", port, "debug")}


def test_a_stage_file_that_is_wrong_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadSetting):
        run_serve(tmp_path / "none.yaml", child_command=["never"])


def test_fast_numerics_without_a_gpu_start_nothing(tmp_path: Path) -> None:
    stage = write_stage(tmp_path)
    stage.write_text(stage.read_text() + "numerics: fast\n")
    with pytest.raises(BadSetting, match="numerics: fast numerics compile blocks for a GPU"):
        run_serve(stage, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, child_command=["never"])
