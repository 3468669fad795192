"""The processes that a launcher started with one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epe.launch.environment import Placement
from epe.launch.gpus import device_of
from epe.runtime.meeting import Meeting


def meeting_of(place: Placement, *, gpu: Sequence[int], env: Mapping[str, str]) -> Meeting:
    """Where they meet, and what this one has of the devices `gpu` that a stage names for its ranks."""
    return Meeting(
        rank=place.rank,
        world_size=place.world_size,
        device_index=device_of(gpu, place, env, rank=place.rank),
        store_host=place.master_addr,
        store_port=place.master_port,
        launcher_hosts_store=place.agent_hosts_store,
        attempt=place.attempt,
    )
