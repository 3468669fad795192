"""Where the processes of one command meet, and the seat that each of them has."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed import PrefixStore

from epe.runtime.rank import Seat
from epe.transport.store import host_store, join_store, split_store

STORE_TIMEOUT_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Which of the processes that run this command this one is, its GPU among those it sees, and where they meet."""

    rank: int = 0
    world_size: int = 1
    device_index: int = 0
    store_host: str = "127.0.0.1"
    store_port: int = 0
    launcher_hosts_store: bool = False
    attempt: int = 0


def seat_of(meeting: Meeting, *, command: str) -> Seat:
    """The seat of this process, with a part of its world's store for this command alone: another one that the same
    processes run finds nothing of it. Raises what joining the store raises."""
    if meeting.world_size == 1:
        return Seat(rank=0, world_size=1, device_index=meeting.device_index)
    hosts = meeting.rank == 0 and not meeting.launcher_hosts_store
    store = (
        host_store(host=meeting.store_host, port=meeting.store_port)
        if hosts
        else join_store(meeting.store_host, meeting.store_port, timeout_s=STORE_TIMEOUT_S)
    )
    return Seat(
        rank=meeting.rank,
        world_size=meeting.world_size,
        device_index=meeting.device_index,
        store=PrefixStore(command, split_store(store, 0, attempt=meeting.attempt)),
    )
