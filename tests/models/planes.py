"""What the tests of families in tensor-parallel planes share: adapters by plane, and lanes that span them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from epe.messages import Request, Split
from epe.models.catalog import load_adapter
from epe.models.loading import Loading
from epe.parallel import Plane
from tests.lanes import on_lane
from tests.models.trajectories import advance

# Widths of a plane on at most four threads.
SPLITS = {
    2: [Split(tp=2), Split(tp=2, cp=2), Split(tp=2, cfg=2)],
    3: [Split(tp=3)],
}
# What adding up parts may change, against the sums of one process (latents of about 4).
TOLERANCE = 5e-6


class Planes:
    """Adapters of one tiny model, one for each rank of the widest lane, made when first wanted."""

    def __init__(self, checkpoint: Path, **options: Any) -> None:
        self.checkpoint = checkpoint
        self.options = options
        self.adapters: dict[tuple[int, int, int], Any] = {}

    def adapter(self, degree: int, index: int, place: int) -> Any:
        """That of a rank at `place` of a plane."""
        key = (degree, index, place)
        if key not in self.adapters:
            self.adapters[key] = load_adapter(
                self.checkpoint.name,
                self.checkpoint,
                Loading(device=torch.device("cpu"), plane=Plane(index, degree), **self.options),
            )
        return self.adapters[key]

    def of_lane(self, split: Split, position: int) -> Any:
        return self.adapter(split.tp, *divmod(position, split.width))

    def draw(self, request: Request, split: Split) -> list[torch.Tensor]:
        """The finished latents of every rank of a lane; the first plane encodes, and all resume from that."""
        return self.draw_with_moves(request, [split] * request.num_steps)

    def draw_with_moves(self, request: Request, turns: list[Split]) -> list[torch.Tensor]:
        """One step a turn, each on another lane, whose ranks have only what the last lane exported."""
        degree = turns[0].tp
        for index in range(degree):  # made here, and not by several threads at once
            for place in range(max(split.width for split in turns)):
                self.adapter(degree, index, place)
        source = self.adapter(degree, 0, 0)
        state = source.encode(request)
        latents: list[torch.Tensor] = []
        for split in turns:
            parcel = source.export_state(state)

            def step(exchange: Any, split: Split = split, parcel: Any = parcel) -> Any:
                adapter = self.of_lane(split, exchange.position)
                return advance(adapter, adapter.import_state(request, *parcel), exchange, split)

            states = on_lane(split.width * split.tp, step)
            latents, state = [each.tensors["latents"] for each in states], states[-1]
        return latents
