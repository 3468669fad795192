"""One picture over the ranks of a lane: the bands that are here, and what they take from the others."""

from __future__ import annotations

from collections.abc import Callable

import torch

from epe.transport.exchange import Exchange
from epe.vae.bands import Bands
from epe.vae.writers import Writers

# What a rank has of a layer: a tensor for each of its bands, whose rows are the last dimension but one.
Here = list[torch.Tensor]
# The rows above and below, where there are any.
Edges = tuple[torch.Tensor | None, torch.Tensor | None]


def layout_of(band: torch.Tensor) -> torch.memory_format:
    """How a band lies in memory: with the channels last on a GPU, whose convolutions take it so."""
    if band.device.type != "cuda":
        return torch.contiguous_format
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(band.ndim, torch.contiguous_format)


class Canvas:
    """The bands of one decode on one rank of a lane, each of whose positions has some.

    With a `home` other than the device, bands rest there between layers and only the one at work is on the device: the
    same arithmetic in little of the device's memory. `writers` are compiled.
    """

    home: torch.device

    def __init__(
        self,
        bands: Bands,
        exchange: Exchange,
        *,
        device: torch.device,
        home: torch.device | None = None,
        writers: Writers | None = None,
    ) -> None:
        self._bands = bands
        self._owned = bands.owned(width=exchange.width)
        self._mine = self._owned[exchange.position]
        self._exchange = exchange
        self._device, self.home = device, home or device
        self.writers = writers

    @property
    def num_bands(self) -> int:
        """Of the whole picture."""
        return len(self._bands)

    @property
    def rows_of_bands(self) -> tuple[int, ...]:
        """The latent rows of each band of the whole picture."""
        return self._bands.rows

    def spread(self, whole: torch.Tensor) -> Here:
        """This rank's bands of latents that every rank has."""
        starts, rows = self._bands.starts(), self._bands.rows
        return [self._rest(whole[..., starts[band] : starts[band] + rows[band], :]) for band in self._mine]

    def each(self, compute: Callable[..., torch.Tensor], *layers: Here) -> Here:
        """What `compute` makes of each band of the layers: no row sees another one's."""
        return [self._rest(compute(*map(self._at_work, parts))) for parts in zip(*layers, strict=True)]

    def reaching(
        self,
        layer: Here,
        num_rows: int,
        lay_out: Callable[[torch.Tensor], torch.Tensor],
        compute: Callable[[int, torch.Tensor], torch.Tensor],
        *,
        scale: int = 1,
        num_frames: int = 0,
    ) -> Here:
        """What `compute` makes of each band (its place among those here, its rows with `num_rows` more on both sides,
        zero beyond the picture) after `lay_out` has made of it one with room for them.

        Where that repeats columns `scale` times, rows travel with each once; the `num_frames` in front have no part in
        it. Bands between others of
        this rank are worked at meanwhile.
        """
        framed: dict[int, torch.Tensor] = {}

        def lay(place: int) -> torch.Tensor:
            if place not in framed:
                framed[place] = self._rest(lay_out(self._at_work(layer[place])))
            return framed[place][:, :, num_frames:] if num_frames else framed[place]

        def finish(place: int, above: torch.Tensor | None, below: torch.Tensor | None) -> torch.Tensor:
            _fill(lay(place), num_rows, (above, below))
            return self._rest(compute(place, self._at_work(framed[place])))

        last = len(layer) - 1
        take_edges = self._send_edges(lay(0), lay(last), num_rows, scale)
        if last == 0:
            return [finish(0, *take_edges())]
        below_first = _first_rows(lay(1), num_rows).clone()
        done = {}
        for place in range(1, last):
            done[place] = finish(
                place, _last_rows(lay(place - 1), num_rows), _first_rows(lay(place + 1), num_rows)
            )
            if place > 1:
                del framed[place - 1]  # Nobody looks at it any more.
        above, below = take_edges()
        done[0] = finish(0, above, below_first)
        done[last] = finish(last, _last_rows(lay(last - 1), num_rows), below)
        return [done[place] for place in range(len(layer))]

    def gather(self, layer: Here, *, dim: int) -> torch.Tensor:
        """All bands of the picture one after the other along `dim`, on every rank. Their lengths there are as their
        rows."""
        per_row = layer[0].shape[dim] // self._bands.rows[self._mine[0]]
        part = torch.cat([self._at_work(band) for band in layer], dim=dim)
        return self._exchange.gather(part, tuple(per_row * rows for rows in self._rows_of_ranks), dim=dim)

    def gather_one_each(self, layer: Here) -> torch.Tensor:
        """A tensor of each band of the picture, stacked from the top, on every rank."""
        part = torch.stack([self._at_work(band) for band in layer])
        return self._exchange.gather(part, tuple(map(len, self._owned)), dim=0)

    def collect(self, layer: Here) -> torch.Tensor | None:
        """The whole picture, on the first rank of the lane alone."""
        part = torch.cat([self._at_work(band) for band in layer], dim=-2)
        if self._exchange.width == 1:
            return part
        scale = part.shape[-2] // self._rows_of_ranks[self._exchange.position]
        is_head = self._exchange.position == 0
        nothing = part.new_empty(0)
        parts = [nothing] * self._exchange.width
        shapes: list[tuple[int, ...]] = [(0,)] * self._exchange.width
        if is_head:
            shapes = [(*part.shape[:-2], scale * rows, part.shape[-1]) for rows in self._rows_of_ranks]
        parts[0] = part
        received = self._exchange.all_to_all(parts, shapes)
        return torch.cat(received, dim=-2) if is_head else None

    @property
    def _rows_of_ranks(self) -> tuple[int, ...]:
        """The latent rows of each position."""
        return tuple(sum(self._bands.rows[band] for band in owned) for owned in self._owned)

    def _send_edges(
        self, first: torch.Tensor, last: torch.Tensor, num_rows: int, scale: int
    ) -> Callable[[], Edges]:
        """Start to send the outer rows to the neighbours; call what it gives for theirs, above and below."""
        here, width = self._exchange.position, self._exchange.width
        if num_rows == 0 or width == 1:
            return lambda: (None, None)
        nothing = first.new_empty(0, device=self._device)
        parts: list[torch.Tensor] = [nothing] * width
        shapes: list[tuple[int, ...]] = [(0,)] * width
        for peer, rows in (
            (here - 1, _first_rows(first, num_rows)),
            (here + 1, _last_rows(last, num_rows)),
        ):
            if 0 <= peer < width:
                parts[peer] = rows[..., ::scale].to(self._device).contiguous()
                shapes[peer] = tuple(parts[peer].shape)
        finish = self._exchange.start_all_to_all(parts, shapes)

        def take() -> Edges:
            received = [rows if scale == 1 else rows.repeat_interleave(scale, dim=-1) for rows in finish()]
            return received[here - 1] if here > 0 else None, received[here + 1] if here < width - 1 else None

        return take

    # In one layout always: that of what a layer is given changes its bits.

    def _at_work(self, band: torch.Tensor) -> torch.Tensor:
        band = band.to(self._device)
        return band.contiguous(memory_format=layout_of(band))

    def _rest(self, band: torch.Tensor) -> torch.Tensor:
        return band.contiguous(memory_format=layout_of(band)).to(self.home)


def _first_rows(framed: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Of a band in its frame."""
    return framed[..., num_rows : 2 * num_rows, :]


def _last_rows(framed: torch.Tensor, num_rows: int) -> torch.Tensor:
    end = framed.shape[-2] - num_rows
    return framed[..., end - num_rows : end, :]


def _fill(framed: torch.Tensor, num_rows: int, edges: Edges) -> None:
    """Write what is seen of the neighbours into the frame."""
    end = framed.shape[-2] - num_rows
    for part, rows in zip((framed[..., :num_rows, :], framed[..., end:, :]), edges, strict=True):
        if rows is None:
            part.zero_()
        else:
            part.copy_(rows)
