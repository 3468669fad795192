"""How the passes of an adapter come to be captured, and its blocks and decoder compiled: the same for every family."""

from __future__ import annotations

from typing import Any

from diffusers import AutoencoderKL, AutoencoderKLFlux2

from epe.graphs import Graphs
from epe.models.decoding import compile_decoder
from epe.parallel import SequenceSharding, compile_blocks


class Capturable:
    """Lets the forward passes of an adapter be captured; it runs them in its `sharding`."""

    pipeline: Any
    sharding: SequenceSharding
    graphs: Graphs | None = None

    def use_graphs(self, graphs: Graphs) -> None:
        """Capture passes from now on, and decodes of pictures in bands. All else of a step (guidance, the scheduler)
        stays as it is."""
        self.graphs = graphs
        self.sharding.use_graphs(graphs)

    def compile_blocks(self, *, backend: str = "inductor") -> None:
        """Compile the blocks of the transformer, which changes the last bits of what they give."""
        compile_blocks(self.pipeline.transformer, backend=backend)

    def compile_decoder(self, *, backend: str = "inductor") -> None:
        """Compile the decoder, where it is one of pictures; those of videos keep frames from call to call."""
        if isinstance(self.pipeline.vae, (AutoencoderKL, AutoencoderKLFlux2)):
            compile_decoder(self.pipeline.vae, backend=backend)
