"""How the passes of an adapter come to be captured, and its blocks and decoder compiled: the same for every family."""

from __future__ import annotations

from typing import Any

from epe.graphs import Graphs
from epe.parallel import SequenceSharding, compile_blocks
from epe.vae import Writers, compiled_writers


class Capturable:
    """Lets the forward passes of an adapter be captured; it runs them in its `sharding`."""

    pipeline: Any
    sharding: SequenceSharding
    graphs: Graphs | None = None
    writers: Writers | None = None

    def use_graphs(self, graphs: Graphs) -> None:
        """Capture passes from now on, and decodes of pictures in bands. All else of a step (guidance, the scheduler)
        stays as it is."""
        self.graphs = graphs
        self.sharding.use_graphs(graphs)

    def compile_blocks(self, *, backend: str = "inductor") -> None:
        """Compile the blocks of the transformer, which changes the last bits of what they give."""
        compile_blocks(self.pipeline.transformer, backend=backend)

    def compile_decoder(self, *, backend: str = "inductor") -> None:
        """Compile what stands between the convolutions of the decoder, which changes the last bits."""
        self.writers = compiled_writers(backend)
