"""How the forward passes of an adapter come to be captured: the same for every family."""

from __future__ import annotations

from epe.graphs import Graphs
from epe.parallel import SequenceSharding


class Capturable:
    """Lets the forward passes of an adapter be captured; it runs them in its `sharding`."""

    sharding: SequenceSharding
    graphs: Graphs | None = None

    def use_graphs(self, graphs: Graphs) -> None:
        """Capture passes from now on, and decodes of pictures in bands. All else of a step (guidance, the scheduler)
        stays as it is."""
        self.graphs = graphs
        self.sharding.use_graphs(graphs)
