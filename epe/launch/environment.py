"""What a launcher told this process through the environment: its place among the processes it started.

Nothing here guesses: a variable that is missing beside the others, or says nonsense, is an error.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from epe.errors import BadSetting

REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SLURM_NAMES = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


class Placement(Struct, frozen=True, kw_only=True):
    """This process among those that the launcher started; `none` means that there is no launcher.

    `agent_hosts_store`: the launcher keeps a store at `master_addr:master_port` that outlives the ranks.
    `local_world_size`: how many of them are on this host, None where the launcher does not say it.
    `attempt` counts the launcher's restarts: keys of an earlier attempt may still be in its store.
    """

    launcher: Literal["none", "torchrun", "plain"] = "none"
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int | None = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    agent_hosts_store: bool = False
    attempt: int = 0

    @property
    def single_host(self) -> bool:
        """Whether all of them are known to be on this host."""
        return self.local_world_size == self.world_size


def read_placement(env: Mapping[str, str]) -> Placement:
    """The placement that `env` describes; raises BadSetting with the variable's name as its path."""
    names = _variable_names(env)
    if not any(name in env for name in names.values()):
        return Placement()
    for name in names.values():
        if name not in env:
            given = ", ".join(other for other in names.values() if other in env)
            raise BadSetting(f"is not set beside {given}; set all of {', '.join(names.values())}", path=name)
    world_size = _whole(env, names["WORLD_SIZE"], least=1)
    rank = _below(env, names["RANK"], limit=world_size, of=names["WORLD_SIZE"])
    return Placement(
        launcher="torchrun" if "TORCHELASTIC_RUN_ID" in env else "plain",
        rank=rank,
        local_rank=_local_rank(env, rank=rank, world_size=world_size, by_slurm=names["RANK"] != "RANK"),
        world_size=world_size,
        local_world_size=_local_world_size(env, world_size=world_size),
        master_addr=_address(env),
        master_port=_whole(env, "MASTER_PORT", least=1, most=65535),
        agent_hosts_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=_whole(env, "TORCHELASTIC_RESTART_COUNT") if "TORCHELASTIC_RESTART_COUNT" in env else 0,
    )


def _variable_names(env: Mapping[str, str]) -> dict[str, str]:
    """Which variable carries which fact.

    Slurm's own count only where the meeting point is given too: Slurm sets them in every job, also for a
    command that runs once in it and not once a rank.
    """
    names = {name: name for name in REQUIRED}
    has_address = "MASTER_ADDR" in env and "MASTER_PORT" in env
    if has_address and "RANK" not in env and "SLURM_PROCID" in env:
        names["RANK"] = SLURM_NAMES["RANK"]
        if "WORLD_SIZE" not in env:
            names["WORLD_SIZE"] = SLURM_NAMES["WORLD_SIZE"]
    return names


def _local_rank(env: Mapping[str, str], *, rank: int, world_size: int, by_slurm: bool) -> int:
    name = SLURM_NAMES["LOCAL_RANK"] if by_slurm and "LOCAL_RANK" not in env else "LOCAL_RANK"
    here = _said_local_world_size(env, world_size=world_size)
    if name in env:
        if here is None:
            return _below(env, name, limit=world_size, of="the number of processes")
        return _below(env, name, limit=here, of="LOCAL_WORLD_SIZE")
    return rank if here is None else rank % here


def _local_world_size(env: Mapping[str, str], *, world_size: int) -> int | None:
    if (said := _said_local_world_size(env, world_size=world_size)) is not None:
        return said
    on_one_host = env.get("SLURM_NNODES") == "1" or is_loopback(env["MASTER_ADDR"])
    return world_size if on_one_host else None


def _said_local_world_size(env: Mapping[str, str], *, world_size: int) -> int | None:
    if "LOCAL_WORLD_SIZE" not in env:
        return None
    here = _whole(env, "LOCAL_WORLD_SIZE", least=1)
    if here > world_size:
        raise BadSetting(
            f"{here} is more than all processes, which are {world_size}", path="LOCAL_WORLD_SIZE"
        )
    return here


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine's loopback, without asking a name server."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address(env: Mapping[str, str]) -> str:
    if not env["MASTER_ADDR"].strip():
        raise BadSetting("is empty; give the host name or address of rank 0", path="MASTER_ADDR")
    return env["MASTER_ADDR"].strip()


def _whole(env: Mapping[str, str], name: str, *, least: int = 0, most: int | None = None) -> int:
    text = env[name].strip()
    allowed = f"from {least} to {most}" if most is not None else f"of at least {least}"
    if (
        not (text.isascii() and text.isdigit())
        or int(text) < least
        or (most is not None and int(text) > most)
    ):
        raise BadSetting(f"{env[name]!r} is not a whole number {allowed}", path=name)
    return int(text)


def _below(env: Mapping[str, str], name: str, *, limit: int, of: str) -> int:
    value = _whole(env, name)
    if value >= limit:
        raise BadSetting(f"{value} is not below {of}, which is {limit}", path=name)
    return value
