"""Which rows of a stream each rank of a lane computes: from global row counts alone, so that no rank asks another."""

from __future__ import annotations

from dataclasses import dataclass

from epe.geometry import MIN_ROWS, max_width, split_rows

# A matrix product works in tiles of 128 rows, and below about 184 (790 TFLOP/s over 4.3 TB/s on an H200) reading its
# weights takes longer than the product. So rows up to one tile cost each rank next to nothing, and then their keys and
# values need not travel.
SHORT_ROWS = 128


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of one stream on a lane: position i computes `sizes[i]`; all of them each, if `replicated`."""

    sizes: tuple[int, ...]
    replicated: bool = False

    @property
    def num_rows(self) -> int:
        """Rows of the whole stream."""
        return self.sizes[0] if self.replicated else sum(self.sizes)

    def bounds(self, position: int) -> tuple[int, int]:
        """`(start, end)` of the rows that `position` computes."""
        start = 0 if self.replicated else sum(self.sizes[:position])
        return start, start + self.sizes[position]

    def sent(self, position: int) -> int:
        """Rows of `position` that the others lack."""
        return 0 if self.replicated else self.sizes[position]


def share_rows(num_rows: int, *, width: int, replicable: bool) -> Share:
    """How a lane of `width` ranks shares a stream.

    A replicable stream (text) is whole on every rank where that costs next to nothing, or where a rank would have
    too few rows for exact bits; of another stream that has too few, `ValueError`.
    """
    if replicable and (num_rows <= SHORT_ROWS or width > max_width(num_rows)):
        return Share(sizes=(num_rows,) * width, replicated=True)
    if width > max_width(num_rows):
        raise ValueError(
            f"a lane of {width} ranks leaves some with fewer than {MIN_ROWS} of {num_rows} rows; "
            f"the widest lane for them is {max_width(num_rows)}"
        )
    return Share(sizes=split_rows(num_rows, width))
