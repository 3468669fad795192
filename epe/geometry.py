"""Pixels, frames, latents, tokens, rows and bands: pure arithmetic, no state, no torch."""

from __future__ import annotations

from itertools import accumulate


def nearest_multiples(value: int, multiple: int) -> tuple[int, int]:
    """The multiples of `multiple` next below and above `value` (the lower one is at least `multiple`)."""
    below = max(multiple, value // multiple * multiple)
    return below, max(below, -(-value // multiple) * multiple)


def round_up(value: int, multiple: int) -> int:
    """`value` raised to a multiple of `multiple`."""
    return -(-value // multiple) * multiple


def split_rows(num_rows: int, num_parts: int) -> tuple[int, ...]:
    """Row counts of contiguous parts, as even as possible, larger ones first.

    Every rank computes them from the global count, so no rank has to ask another:
    `split_rows(10, 4) == (3, 3, 2, 2)`.
    """
    if num_parts < 1:
        raise ValueError(f"num_parts is {num_parts}; at least 1 is needed")
    base, extra = divmod(num_rows, num_parts)
    return tuple(base + (part < extra) for part in range(num_parts))


def row_bounds(num_rows: int, num_parts: int) -> tuple[tuple[int, int], ...]:
    """`(start, end)` of each part of `split_rows`."""
    ends = tuple(accumulate(split_rows(num_rows, num_parts)))
    return tuple(zip((0, *ends[:-1]), ends, strict=True))


def over_planes(ranks: tuple[int, ...], *, num_planes: int, world_size: int) -> tuple[int, ...]:
    """The ranks of a lane that is chosen in the first plane and spans all of them, plane after plane.

    The planes of tensor parallelism are equal parts of the world: `over_planes((0, 2), num_planes=2, world_size=8) ==
    (0, 2, 4, 6)`.
    """
    size = world_size // num_planes
    return tuple(plane * size + rank for plane in range(num_planes) for rank in ranks)


# With fewer rows than this a linear layer on a CPU uses another kernel, with other bits than the whole's.
MIN_ROWS = 4


def max_width(num_rows: int) -> int:
    """The widest lane that leaves each rank at least `MIN_ROWS` rows of a stream of `num_rows` (at least 1)."""
    return max(1, num_rows // MIN_ROWS)
