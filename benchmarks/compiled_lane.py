"""Compiled blocks, captured where there are graphs, on a lane of ranks that have a GPU each: run by every rank of
`benchmarks.compiled_rows --own-gpus`."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.place import Case, Place, Setting, advance
from benchmarks.random_pipeline import make_adapter
from benchmarks.step_entrants import GRAPH_BYTES, Bench, StepCase, graph_device
from epe.graphs import Graphs
from epe.messages import Lane, Split
from epe.telemetry.log import configure
from epe.transport.exchange import Exchange
from tests.world import RankContext

# The first runs as it is, the second is captured, the others are replayed.
NUM_STEPS = 4


def bits(context: RankContext, setting: Setting, case: StepCase) -> dict[str, Any]:
    """The largest difference of a lane of all ranks to each rank alone, both compiled, and what was replayed."""
    configure(json=True, level="warning")
    place = Place(context, setting, Case(family=case.family), kind="compiled lanes")
    kept = context.kept
    if "bench" not in kept:
        kept["bench"] = Bench(case.family, device=place.device, tiny=setting.tiny)
        kept["adapter"] = _compiled(kept["bench"])
    adapter, graphs = kept["adapter"]
    request = kept["bench"].request(case, NUM_STEPS)
    groups, width = place.groups(), context.world_size

    def drawn(exchange: Exchange | None, split: Split) -> torch.Tensor:
        latents: torch.Tensor = advance(adapter, adapter.encode(request), exchange, split).tensors["latents"]
        return latents

    alone = drawn(None, Split())
    together = drawn(groups.exchange(Lane(ranks=tuple(range(width)))), Split(cp=width))
    groups.close()
    return {
        "width": width,
        "own_gpus": (together.double() - alone.double()).abs().max().item(),
        "replayed": 0 if graphs is None else graphs.statistics.num_replayed,
        "refused": 0 if graphs is None else graphs.statistics.num_refused,
    }


def _compiled(bench: Bench) -> tuple[Any, Graphs | None]:
    adapter: Any = make_adapter(bench.name, bench.pipeline(), device=bench.device, mode="agkv")
    adapter.compile_blocks(backend=bench.backend)
    if bench.device.type == "cpu":
        return adapter, None  # Its graphs see operations one by one, which compiled code has none of.
    graphs = Graphs(graph_device(bench.device), budget_bytes=GRAPH_BYTES)
    adapter.use_graphs(graphs)
    return adapter, graphs
