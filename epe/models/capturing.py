"""How the forward passes of an adapter come to be captured, and its blocks compiled: the same for every family."""

from __future__ import annotations

from typing import Any

from epe.graphs import Graphs
from epe.parallel import SequenceSharding, compile_blocks


class Capturable:
    """Lets the forward passes of an adapter be captured; it runs them in its `_sharding`."""

    pipeline: Any
    _sharding: SequenceSharding

    def use_graphs(self, graphs: Graphs) -> None:
        """Capture passes from now on. All else of a step (guidance, the scheduler) stays as it is."""
        self._sharding.use_graphs(graphs)

    def compile_blocks(self, *, backend: str = "inductor") -> None:
        """Compile the blocks of the transformer, which changes the last bits of what they give."""
        compile_blocks(self.pipeline.transformer, backend=backend)
