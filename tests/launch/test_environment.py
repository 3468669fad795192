from __future__ import annotations

import pytest

from epe.errors import BadSetting
from epe.launch.environment import Placement, is_loopback, read_placement

PLAIN = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
MEETING = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
TORCHRUN = {
    **PLAIN,
    "LOCAL_RANK": "2",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "1",
}


def test_without_a_launcher_this_is_the_only_process() -> None:
    assert read_placement({"HOME": "/root", **SLURM}) == Placement(launcher="none")


def test_four_variables_are_enough() -> None:
    assert read_placement(PLAIN) == Placement(
        launcher="plain",
        rank=2,
        local_rank=2,
        world_size=4,
        master_addr="10.0.0.7",
        master_port=29500,
        local_world_size=None,
    )


def test_torchrun_is_known_by_its_run_and_keeps_the_store() -> None:
    placement = read_placement(TORCHRUN)
    assert placement.launcher == "torchrun"
    assert placement.agent_hosts_store
    assert placement.single_host
    assert placement.attempt == 1


def test_slurms_own_variables_count_once_the_meeting_point_is_given() -> None:
    placement = read_placement({**SLURM, **MEETING})
    assert (placement.launcher, placement.rank, placement.local_rank, placement.world_size) == (
        "plain",
        5,
        1,
        8,
    )
    assert read_placement({**SLURM, **MEETING, "WORLD_SIZE": "6"}).world_size == 6


def test_the_local_rank_follows_from_the_number_of_ranks_a_host() -> None:
    assert read_placement({**PLAIN, "LOCAL_WORLD_SIZE": "2", "RANK": "3"}).local_rank == 1


@pytest.mark.parametrize(
    ("told", "here"),
    [
        ({"LOCAL_WORLD_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        ({"MASTER_ADDR": "127.0.0.1"}, 4),
        ({"SLURM_NNODES": "1"}, 4),
        ({"SLURM_NNODES": "2"}, None),
    ],
)
def test_how_many_ranks_are_here_is_known_where_a_launcher_tells_it(
    told: dict[str, str], here: int | None
) -> None:
    placement = read_placement({**PLAIN, **told})
    assert placement.local_world_size == here
    assert placement.single_host == (here == 4)


@pytest.mark.parametrize("name", list(PLAIN))
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(BadSetting, match=f"^{name}: is not set beside") as caught:
        read_placement({key: value for key, value in PLAIN.items() if key != name})
    assert caught.value.path == name


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("RANK", "two", "'two' is not a whole number of at least 0"),
        ("RANK", "-1", "'-1' is not a whole number of at least 0"),
        ("RANK", "", "'' is not a whole number of at least 0"),
        ("RANK", "4", "4 is not below WORLD_SIZE, which is 4"),
        ("WORLD_SIZE", "0", "'0' is not a whole number of at least 1"),
        ("MASTER_PORT", "70000", "'70000' is not a whole number from 1 to 65535"),
        ("MASTER_ADDR", " ", "is empty; give the host name or address of rank 0"),
        ("LOCAL_RANK", "9", "9 is not below the number of processes, which is 4"),
        ("LOCAL_WORLD_SIZE", "0", "'0' is not a whole number of at least 1"),
        ("LOCAL_WORLD_SIZE", "5", "5 is more than all processes, which are 4"),
    ],
)
def test_a_value_that_cannot_be_is_named(name: str, value: str, problem: str) -> None:
    with pytest.raises(BadSetting) as caught:
        read_placement({**PLAIN, name: value})
    assert str(caught.value) == f"{name}: {problem}"


def test_a_place_on_the_host_is_one_of_those_that_are_there() -> None:
    """A rank took the place, and the GPU, of one that no launcher had put there."""
    assert read_placement({**PLAIN, "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}).local_rank == 1
    with pytest.raises(BadSetting, match=r"^LOCAL_RANK: 2 is not below LOCAL_WORLD_SIZE, which is 2"):
        read_placement({**PLAIN, "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "2"})


def test_slurms_variables_are_named_as_slurm_names_them() -> None:
    with pytest.raises(BadSetting, match=r"^SLURM_PROCID: 8 is not below SLURM_NTASKS"):
        read_placement({**SLURM, **MEETING, "SLURM_PROCID": "8"})
    with pytest.raises(BadSetting, match=r"^SLURM_NTASKS: is not set"):
        read_placement({"SLURM_PROCID": "1", **MEETING})


def test_loopback_is_known_without_a_name_server() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.0.1.1", "::1")))
    assert not any(map(is_loopback, ("10.0.0.7", "node1", "::")))
