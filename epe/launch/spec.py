"""What a parent tells each child that it starts: one JSON struct in one environment variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from epe.errors import BadSetting

VARIABLE = "EPE_CHILD"

LogLevel = Literal["debug", "info", "warning", "error"]
Fd = Annotated[int, Meta(ge=0)]


class ChildSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a child needs to know to take its place.

    `rank` and `device_index` are None for the leader. `host` and `port` are where HTTP is bound in fact,
    overrides applied. `hosts_store` is True for a leader that keeps the store of the membership itself,
    on the listening socket `store_fd`; everyone else meets it at `store_host:store_port`. `attempt` counts
    the launcher's restarts: keys in a store that outlives them need it in their prefix. The leader records requests in
    `trace_path`, if there is one. `life` counts the processes that this rank has had: one of 1 or more comes back into
    a world that went on without it.
    """

    role: Literal["leader", "rank"]
    rank: int | None = None
    world_size: Annotated[int, Meta(ge=1)]
    device_index: int | None = None
    stage_path: str
    host: str
    port: int
    store_host: str
    store_port: int
    hosts_store: bool = False
    http_fd: Fd | None = None
    store_fd: Fd | None = None
    lifeline_fd: Fd | None = None
    epoch: int = 0
    attempt: int = 0
    life: int = 0
    log_level: LogLevel = "info"
    trace_path: str | None = None
    timeline_path: str | None = None

    @property
    def name(self) -> str:
        """How the child is called in messages: `leader`, `rank 2`."""
        return self.role if self.rank is None else f"rank {self.rank}"

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that the child inherits."""
        return tuple(fd for fd in (self.http_fd, self.store_fd, self.lifeline_fd) if fd is not None)


def write_spec(spec: ChildSpec) -> str:
    """The value of `EPE_CHILD`."""
    return msgspec.json.encode(spec).decode()


def read_spec(env: Mapping[str, str]) -> ChildSpec:
    """The spec that the parent left in `env`; raises BadSetting where there is none."""
    if VARIABLE not in env:
        raise BadSetting("is not set; this process is started by `epe serve`, not by hand", path=VARIABLE)
    try:
        return msgspec.json.decode(env[VARIABLE], type=ChildSpec)
    except msgspec.DecodeError as error:
        raise BadSetting(f"does not hold a child's spec: {error}", path=VARIABLE) from error
