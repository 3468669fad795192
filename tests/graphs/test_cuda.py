"""What can be said of CUDA graphs without a GPU."""

from __future__ import annotations

import pytest
import torch
from structlog.testing import capture_logs

from epe.graphs import CudaGraphs, Graphs
from epe.transport.exchange import SoloExchange
from tests.graphs.tape import TapeDevice


class Shared(TapeDevice):
    """Tapes whose memory is counted as that of CUDA graphs."""

    used_bytes = CudaGraphs(torch.device("cuda", 0)).used_bytes


def test_a_neighbour_that_loads_a_model_meanwhile_does_not_make_a_pass_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen on an H200: passes of 300 MB were refused as needing 12 GB, which another process had just taken."""
    free = iter(range(100 * 2**30, 0, -12 * 2**30))
    own = iter(range(0, 2**30, 300 * 2**20))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free), 140 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: next(own))
    graphs = Graphs(Shared(), budget_bytes=2**30)
    with capture_logs() as lines:
        for _ in range(3):
            graphs.run(lambda exchange, args, kwargs: args[0] + 1, SoloExchange(), (torch.ones(2),), {})
    assert not [line for line in lines if line["event"] == "graph.refused"]
    assert (graphs.statistics.num_replayed, graphs.statistics.num_bytes) == (2, 300 * 2**20)
