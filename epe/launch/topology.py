"""Which children this parent starts, and the environment they get: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from epe.errors import BadSetting
from epe.launch.environment import Placement
from epe.launch.gpus import device_of
from epe.launch.spec import ChildSpec, LogLevel

# Facts of the launcher that are the parent's alone: torch reads them behind our back.
LAUNCHER_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    }
)
LAUNCHER_PREFIX = "TORCHELASTIC_"
LOOPBACK_INTERFACE = "lo"


class ServeSettings(Struct, frozen=True, kw_only=True):
    """What the parents need of the stage file, overrides applied; one device of `gpu` a rank."""

    stage_path: str
    gpu: tuple[int, ...]
    host: str
    port: int
    drain_s: float
    start_s: float = 1800.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    log_level: LogLevel = "info"
    trace_path: str | None = None
    timeline_path: str | None = None
    jobs_path: str | None = None

    @property
    def world_size(self) -> int:
        return len(self.gpu)


class Meeting(Struct, frozen=True, kw_only=True):
    """Where the children find each other and their clients: bound addresses and inherited descriptors."""

    host: str
    port: int
    store_host: str
    store_port: int
    http_fd: int | None = None
    store_fd: int | None = None


def check_world(settings: ServeSettings, placement: Placement) -> None:
    """Raise BadSetting unless the launcher started one process a device of the stage."""
    if placement.launcher != "none" and placement.world_size != settings.world_size:
        raise BadSetting(
            f"names {settings.world_size} devices, but WORLD_SIZE is {placement.world_size}; "
            "start one process for each device, or name as many devices as there are processes",
            path="gpu",
        )


def plan_children(
    settings: ServeSettings, *, placement: Placement, meeting: Meeting, env: Mapping[str, str]
) -> tuple[ChildSpec, ...]:
    """The leader where this is rank 0's parent, then this parent's ranks: all of them without a launcher."""
    mine = range(settings.world_size) if placement.launcher == "none" else (placement.rank,)
    common = ChildSpec(
        role="leader",
        world_size=settings.world_size,
        stage_path=settings.stage_path,
        host=meeting.host,
        port=meeting.port,
        store_host=meeting.store_host,
        store_port=meeting.store_port,
        attempt=placement.attempt,
        log_level=settings.log_level,
    )
    ranks = tuple(
        _rank(common, rank=rank, device=device_of(settings.gpu, placement, env, rank=rank)) for rank in mine
    )
    leader = replace(
        _leader(common, meeting), trace_path=settings.trace_path, timeline_path=settings.timeline_path
    )
    return (leader, *ranks) if placement.rank == 0 else ranks


def _leader(common: ChildSpec, meeting: Meeting) -> ChildSpec:
    hosts_store = meeting.store_fd is not None
    return replace(common, hosts_store=hosts_store, http_fd=meeting.http_fd, store_fd=meeting.store_fd)


def _rank(common: ChildSpec, *, rank: int, device: int) -> ChildSpec:
    return replace(common, role="rank", rank=rank, device_index=device)


def child_environment(
    env: Mapping[str, str], *, settings: ServeSettings, placement: Placement
) -> dict[str, str]:
    """The user's own environment, less what the launcher said to the parent, plus defaults for torch."""
    kept = {name: value for name, value in env.items() if not _is_launchers(name)}
    return {**_torch_defaults(settings, placement), **kept, "PYTHONUNBUFFERED": "1"}


def _is_launchers(name: str) -> bool:
    return name in LAUNCHER_VARIABLES or name.startswith(LAUNCHER_PREFIX)


def _torch_defaults(settings: ServeSettings, placement: Placement) -> dict[str, str]:
    """What holds unless the user says otherwise."""
    defaults = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch RPC prints a line for each peer that leaves
    if settings.world_size > 1 and settings.device != "cuda":
        # Ranks that share a host's cores must not each start a thread a core.
        defaults |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    if placement.single_host:
        names = ("TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        defaults |= dict.fromkeys(names, LOOPBACK_INTERFACE)
    return defaults
