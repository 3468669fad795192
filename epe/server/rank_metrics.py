"""The metrics of ranks on `/metrics`: their states, their memory, and their captured passes."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from epe.messages import GraphCounts, RankStatus

RANK_STATES = (
    "loading",
    "idle",
    "busy",
    "lost",
    "restarting",
    "cordoned",
    "draining",
    "drained",
    "quarantined",
)
PASS_KINDS = ("eager", "replayed", "captured", "evicted", "refused")


class RankMetrics:
    """Shown as the planner last heard of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ranks = Gauge("epe_ranks", "Ranks by state.", ("state",), registry=registry)
        self._memory = Gauge(
            "epe_rank_memory_bytes", "Memory of the rank's device.", ("rank", "kind"), registry=registry
        )
        self._graphs = Gauge(
            "epe_graph_bytes", "What captured passes of the rank keep.", ("rank",), registry=registry
        )
        self._passes = Counter(
            "epe_graph_passes",
            "Forward passes of the rank by what became of them.",
            ("rank", "kind"),
            registry=registry,
        )
        self._counted: dict[int, GraphCounts] = {}

    def show(self, ranks: Sequence[RankStatus]) -> None:
        states = Tally(rank.state for rank in ranks)
        for state in RANK_STATES:
            self._ranks.labels(state).set(states[state])
        for rank in ranks:
            self._show_memory(rank)
            if rank.use is not None and rank.use.graphs is not None:
                self._graphs.labels(rank.rank).set(rank.use.graphs.num_bytes)
                self._count(rank.rank, rank.use.graphs)

    def _show_memory(self, rank: RankStatus) -> None:
        kinds = {"usable": rank.memory_bytes, "model": rank.resident_bytes}
        if rank.use is not None:
            kinds |= {"allocated": rank.use.allocated_bytes, "reserved": rank.use.reserved_bytes}
            kinds["lanes"] = rank.use.lanes_bytes
        for kind, num_bytes in kinds.items():
            if num_bytes is not None:
                self._memory.labels(rank.rank, kind).set(num_bytes)

    def _count(self, rank: int, counts: GraphCounts) -> None:
        """What has come since it was last shown. A rank that was started again begins anew."""
        before = self._counted.get(rank, GraphCounts())
        for kind in PASS_KINDS:
            now, then = (getattr(each, f"num_{kind}") for each in (counts, before))
            self._passes.labels(rank, kind).inc(now - then if now >= then else now)
        self._counted[rank] = counts
