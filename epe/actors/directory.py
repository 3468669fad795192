"""Where the actors of one world live."""

from __future__ import annotations

from msgspec import Struct

PLANNER = "planner"
POSTPROCESS = "postprocess"
DESK = "desk"
CHECKPOINTS = "checkpoints"


class Directory(Struct, frozen=True, kw_only=True):
    """Addresses: the leader's node, and each rank's node (in one process they are the same)."""

    leader: str
    nodes: tuple[str, ...]

    @property
    def planner(self) -> str:
        return f"{PLANNER}@{self.leader}"

    @property
    def postprocess(self) -> str:
        return f"{POSTPROCESS}@{self.leader}"

    @property
    def desk(self) -> str:
        return f"{DESK}@{self.leader}"

    @property
    def checkpoints(self) -> str:
        return f"{CHECKPOINTS}@{self.leader}"

    @property
    def world_size(self) -> int:
        return len(self.nodes)

    def worker(self, rank: int) -> str:
        return f"{worker_name(rank)}@{self.nodes[rank]}"

    def rank_of(self, address: str) -> int | None:
        """The rank whose worker this is; None for another actor."""
        return next((rank for rank in range(self.world_size) if self.worker(rank) == address), None)


def worker_name(rank: int) -> str:
    """The name of a rank's worker actor on its node."""
    return f"worker{rank}"
