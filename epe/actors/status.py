"""The world as the planner sees it, for whoever asks."""

from __future__ import annotations

from collections.abc import Mapping

from epe.messages import Lease, RankReady, RankStatus


def rank_statuses(
    world_size: int, *, ready: Mapping[int, RankReady], at_work: Mapping[int, Lease]
) -> tuple[RankStatus, ...]:
    """Each rank: loading, idle, or busy with a request."""
    return tuple(_rank_status(rank, ready.get(rank), at_work.get(rank)) for rank in range(world_size))


def _rank_status(rank: int, ready: RankReady | None, lease: Lease | None) -> RankStatus:
    return RankStatus(
        rank=rank,
        state="loading" if ready is None else "busy" if lease is not None else "idle",
        device="" if ready is None else ready.device,
        request_id=None if lease is None else lease.request.id,
    )
