"""The processes that a launcher started with one command."""

from __future__ import annotations

from epe.launch.environment import Placement
from epe.runtime.meeting import Meeting


def meeting_of(place: Placement) -> Meeting:
    """Where they meet."""
    return Meeting(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        store_host=place.master_addr,
        store_port=place.master_port,
        launcher_hosts_store=place.agent_hosts_store,
        attempt=place.attempt,
    )
