"""One picture over the ranks of a lane: the bands that are here, and what they take from the others."""

from __future__ import annotations

from collections.abc import Callable

import torch

from epe.transport.exchange import Exchange
from epe.vae.bands import Bands

# What a rank has of a layer: a tensor for each of its bands, whose rows are the last dimension but one.
Here = list[torch.Tensor]
# The rows above and below, where there are any.
Edges = tuple[torch.Tensor | None, torch.Tensor | None]


class Canvas:
    """The bands of one decode on one rank of a lane, each of whose positions has some.

    With a `home` other than the device, bands rest there between layers and only the one at work is on the device: the
    same arithmetic in little of the device's memory.
    """

    home: torch.device

    def __init__(
        self, bands: Bands, exchange: Exchange, *, device: torch.device, home: torch.device | None = None
    ) -> None:
        self._bands = bands
        self._owned = bands.owned(width=exchange.width)
        self._mine = self._owned[exchange.position]
        self._exchange = exchange
        self._device, self.home = device, home or device

    @property
    def num_bands(self) -> int:
        """Of the whole picture."""
        return len(self._bands)

    def spread(self, whole: torch.Tensor) -> Here:
        """This rank's bands of latents that every rank has."""
        starts, rows = self._bands.starts(), self._bands.rows
        return [self._rest(whole[..., starts[band] : starts[band] + rows[band], :]) for band in self._mine]

    def each(self, compute: Callable[..., torch.Tensor], *layers: Here) -> Here:
        """What `compute` makes of each band of the layers: no row sees another one's."""
        return [self._rest(compute(*map(self._at_work, parts))) for parts in zip(*layers, strict=True)]

    def reaching(
        self, num_rows: int, compute: Callable[[int, torch.Tensor], torch.Tensor], layer: Here
    ) -> Here:
        """What `compute` makes of each band (its place among those here, its rows with `num_rows` more on both sides).

        Rows beyond the picture are zero. Bands between others of this rank are computed while the rows of its
        neighbours travel.
        """
        if num_rows == 0:
            return [self._rest(compute(place, self._at_work(band))) for place, band in enumerate(layer)]
        take_edges = self._send_edges(layer, num_rows)
        inner = range(1, len(layer) - 1)
        done = {place: compute(place, self._reached(layer, place, num_rows)) for place in inner}
        edges = take_edges()
        for place in {0, len(layer) - 1}:
            done[place] = compute(place, self._reached(layer, place, num_rows, *edges))
        return [self._rest(done[place]) for place in range(len(layer))]

    def gather(self, layer: Here, *, dim: int) -> torch.Tensor:
        """All bands of the picture one after the other along `dim`, on every rank. Their lengths there are as their
        rows."""
        per_row = layer[0].shape[dim] // self._bands.rows[self._mine[0]]
        part = torch.cat([self._at_work(band) for band in layer], dim=dim)
        return self._exchange.gather(part, tuple(per_row * rows for rows in self._rows), dim=dim)

    def gather_one_each(self, layer: Here) -> torch.Tensor:
        """A tensor of each band of the picture, stacked from the top, on every rank."""
        part = torch.stack([self._at_work(band) for band in layer])
        return self._exchange.gather(part, tuple(map(len, self._owned)), dim=0)

    def collect(self, layer: Here) -> torch.Tensor | None:
        """The whole picture, on the first rank of the lane alone."""
        part = torch.cat([self._at_work(band) for band in layer], dim=-2)
        if self._exchange.width == 1:
            return part
        scale = part.shape[-2] // self._rows[self._exchange.position]
        is_head = self._exchange.position == 0
        nothing = part.new_empty(0)
        parts = [nothing] * self._exchange.width
        shapes: list[tuple[int, ...]] = [(0,)] * self._exchange.width
        if is_head:
            shapes = [(*part.shape[:-2], scale * rows, part.shape[-1]) for rows in self._rows]
        parts[0] = part
        received = self._exchange.all_to_all(parts, shapes)
        return torch.cat(received, dim=-2) if is_head else None

    @property
    def _rows(self) -> tuple[int, ...]:
        """The latent rows of each position."""
        return tuple(sum(self._bands.rows[band] for band in owned) for owned in self._owned)

    def _send_edges(self, layer: Here, num_rows: int) -> Callable[[], Edges]:
        """Start to send the outer rows to the neighbours; call what it gives for theirs, above and below."""
        here, width = self._exchange.position, self._exchange.width
        nothing = layer[0].new_empty(0)
        shape = (*layer[0].shape[:-2], num_rows, layer[0].shape[-1])
        parts: list[torch.Tensor] = [nothing] * width
        shapes: list[tuple[int, ...]] = [(0,)] * width
        if here > 0:
            parts[here - 1], shapes[here - 1] = self._at_work(layer[0][..., :num_rows, :]), shape
        if here < width - 1:
            parts[here + 1], shapes[here + 1] = self._at_work(layer[-1][..., -num_rows:, :]), shape
        finish = self._exchange.start_all_to_all(parts, shapes)

        def take() -> Edges:
            received = finish()
            return received[here - 1] if here > 0 else None, received[here + 1] if here < width - 1 else None

        return take

    def _reached(
        self,
        layer: Here,
        place: int,
        num_rows: int,
        above: torch.Tensor | None = None,
        below: torch.Tensor | None = None,
    ) -> torch.Tensor:
        band = self._at_work(layer[place])
        if place > 0:
            above = self._at_work(layer[place - 1][..., -num_rows:, :])
        if place < len(layer) - 1:
            below = self._at_work(layer[place + 1][..., :num_rows, :])
        beyond = band.new_zeros((*band.shape[:-2], num_rows, band.shape[-1]))
        return torch.cat(
            [beyond if above is None else above, band, beyond if below is None else below], dim=-2
        )

    def _at_work(self, band: torch.Tensor) -> torch.Tensor:
        return band.to(self._device)

    def _rest(self, band: torch.Tensor) -> torch.Tensor:
        # In one layout always: that of what convolutions are given changes their bits.
        return band.to(self.home).contiguous()
