from __future__ import annotations

import pytest
from msgspec.structs import replace

from epe.errors import BadSetting
from epe.launch.environment import Placement, read_placement
from epe.launch.spec import VARIABLE, ChildSpec, read_spec, write_spec
from epe.launch.topology import Meeting, ServeSettings, check_world, child_environment, plan_children

SETTINGS = ServeSettings(
    stage_path="/stages/a.yaml", gpu=(4, 5, 6, 7), host="127.0.0.1", port=0, drain_s=1, device="cpu"
)
MEETING = Meeting(
    host="127.0.0.1", port=18200, store_host="127.0.0.1", store_port=4711, http_fd=7, store_fd=8
)
PLAIN = Placement(launcher="plain", rank=2, local_rank=2, world_size=4, local_world_size=4, master_port=4711)
ELSEWHERE = Meeting(host="127.0.0.1", port=18200, store_host="127.0.0.1", store_port=4711)


def plan(placement: Placement, *, meeting: Meeting = MEETING, **env: str) -> tuple[ChildSpec, ...]:
    return plan_children(SETTINGS, placement=placement, meeting=meeting, env=env)


def test_without_a_launcher_one_parent_starts_the_leader_and_all_ranks() -> None:
    leader, *ranks = plan(Placement())
    assert (leader.name, leader.rank, leader.device_index) == ("leader", None, None)
    assert leader.hosts_store
    assert leader.fds == (7, 8)
    assert [rank.name for rank in ranks] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert [rank.device_index for rank in ranks] == [4, 5, 6, 7]
    assert all(rank.fds == () and not rank.hosts_store for rank in ranks)
    assert {spec.world_size for spec in (leader, *ranks)} == {4}


def test_under_a_launcher_each_parent_starts_its_rank_and_rank_0s_the_leader() -> None:
    assert [spec.name for spec in plan(replace(PLAIN, rank=0))] == ["leader", "rank 0"]
    assert [spec.name for spec in plan(PLAIN, meeting=ELSEWHERE)] == ["rank 2"]


def test_the_launchers_store_is_not_hosted_twice() -> None:
    leader, rank = plan(replace(PLAIN, rank=0, attempt=3), meeting=replace(ELSEWHERE, http_fd=7))
    assert not leader.hosts_store
    assert (leader.store_port, rank.store_port, leader.attempt, rank.attempt) == (4711, 4711, 3, 3)


def test_a_device_that_the_launcher_has_picked_is_the_only_one_that_the_rank_sees() -> None:
    assert plan(PLAIN, meeting=ELSEWHERE, CUDA_VISIBLE_DEVICES="6")[0].device_index == 0
    assert plan(PLAIN, meeting=ELSEWHERE, CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7")[0].device_index == 6
    assert plan(Placement(), CUDA_VISIBLE_DEVICES="6")[1].device_index == 4


def test_a_rank_of_another_host_has_the_device_of_its_place_there() -> None:
    """Where a launcher deals ranks out in turn, both ranks of a host of two GPUs had the same one."""
    there = {rank: replace(PLAIN, rank=rank, local_rank=rank // 2, local_world_size=2) for rank in range(4)}
    specs = [plan(placement, meeting=ELSEWHERE)[-1] for placement in there.values()]
    assert [(spec.rank, spec.device_index) for spec in specs] == [(0, 4), (1, 4), (2, 5), (3, 5)]


def test_a_world_of_another_size_than_the_stage_names_both_numbers() -> None:
    with pytest.raises(BadSetting, match=r"^gpu: names 4 devices, but WORLD_SIZE is 3; start one process"):
        check_world(SETTINGS, replace(PLAIN, world_size=3))
    check_world(SETTINGS, PLAIN)
    check_world(SETTINGS, Placement())


def environment(placement: Placement, *, settings: ServeSettings = SETTINGS, **env: str) -> dict[str, str]:
    return child_environment(env, settings=settings, placement=placement)


def test_what_the_launcher_said_does_not_reach_the_children() -> None:
    said = {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "LOCAL_RANK": "0",
        "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    kept = environment(read_placement(said), **said, HOME="/root")
    assert kept["HOME"] == "/root"
    assert not kept.keys() & said.keys()


def test_ranks_on_one_cpu_get_one_thread_each_unless_the_user_says_otherwise() -> None:
    assert environment(Placement())["OMP_NUM_THREADS"] == "1"
    assert environment(Placement(), OMP_NUM_THREADS="3")["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in environment(Placement(), settings=replace(SETTINGS, gpu=(0,)))
    assert "OMP_NUM_THREADS" not in environment(Placement(), settings=replace(SETTINGS, device="cuda"))


def test_ranks_of_one_host_meet_on_its_loopback_unless_the_user_says_otherwise() -> None:
    assert environment(Placement())["GLOO_SOCKET_IFNAME"] == "lo"
    assert environment(Placement(), GLOO_SOCKET_IFNAME="eth0")["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "GLOO_SOCKET_IFNAME" not in environment(replace(PLAIN, local_world_size=None))


def test_a_spec_survives_the_environment() -> None:
    for spec in plan(Placement()):
        assert read_spec({VARIABLE: write_spec(spec)}) == spec


@pytest.mark.parametrize("env", [{}, {VARIABLE: "{"}, {VARIABLE: '{"role": "king"}'}])
def test_a_child_without_a_spec_says_how_it_is_started(env: dict[str, str]) -> None:
    with pytest.raises(BadSetting, match=f"^{VARIABLE}: (is not set; this process is started by|does not)"):
        read_spec(env)
