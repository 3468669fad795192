"""How the rows of a picture are cut into bands, and which ranks of a lane have which: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

# As many as the widest lane has ranks.
MAX_BANDS = 8
# Of latent rows. Narrower bands cost more in calls and in rows that travel than a further rank saves.
MIN_ROWS = 8


@dataclass(frozen=True, slots=True)
class Bands:
    """`rows` counts the latent rows of each band, from the top."""

    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def height(self) -> int:
        """Latent rows of the picture."""
        return sum(self.rows)

    def owned(self, *, width: int) -> tuple[range, ...]:
        """The bands of each position of a lane, neighbours together; in a wider lane than there are bands the last
        positions have none."""
        return tuple(_parts(len(self.rows), width))

    def starts(self) -> tuple[int, ...]:
        """The first latent row of each band."""
        return tuple(sum(self.rows[:place]) for place in range(len(self.rows)))


def bands_of(height: int, *, min_rows: int = MIN_ROWS) -> Bands:
    """The bands of a picture of `height` latent rows: as many as have `min_rows` each, at least one."""
    num_bands = max(1, min(MAX_BANDS, height // min_rows))
    return Bands(tuple(len(part) for part in _parts(height, num_bands)))


def _parts(total: int, num_parts: int) -> list[range]:
    """`total` things in `num_parts` runs, the first ones longer by one where it does not divide."""
    share, more = divmod(total, num_parts)
    ends = [share * (place + 1) + min(place + 1, more) for place in range(num_parts)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
