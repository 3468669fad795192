"""How `benchmarks.parity` writes down what it found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

_MEANING = """\
Tiny models with random weights, three steps; ranks are processes on the CPU with one thread each, over gloo. A cell is
the largest difference of the final latents to those of diffusers' own pipeline, whose values reach 5 to 8; 0 is equal
bits on every rank of the lane. CFG 1 and 2 are `cfg_parallel_degree`: with 2 a lane of even width works as two halves.
TP is the number of planes: a lane of width w has w ranks in each. Hybrid is Ulysses within teams of two and AGKV
between them; Ulysses is such a hybrid too where a lane has more ranks than heads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One way to work: the type of weights, which of the two sizes, method, `cfg_parallel_degree`, planes."""

    dtype: str
    size: int
    method: str
    cfg: int
    tp: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The largest difference of the latents, and whether all ranks of the lane have the same."""

    difference: float
    agreed: bool

    @classmethod
    def between(cls, drawn: np.ndarray, expected: np.ndarray, *, agreed: bool) -> Self:
        return cls(float(np.abs(drawn.astype(np.float64) - expected).max()), agreed)

    def __str__(self) -> str:
        shown = "0" if self.difference == 0 else f"{self.difference:.1e}"
        return shown if self.agreed else f"{shown}, ranks differ"


Table = Mapping[Row, Mapping[int, Cell]]
Moves = Mapping[str, Cell]


def render(
    tables: Mapping[str, Table],
    moves: Mapping[str, Moves],
    tokens: Mapping[str, tuple[int, int]],
    *,
    about: str,
) -> str:
    """The page."""
    lines = [
        "# Parity with diffusers",
        "",
        f"`python -m benchmarks.parity --output docs/results/parity.md` on {about}.",
        "",
        *_explained(tables),
    ]
    for name, table in tables.items():
        lines += ["", f"## {name}", "", *_table(table, tokens[name])]
    lines += ["", "## A lane change at every step boundary", "", *_moves(moves)]
    return "\n".join(lines) + "\n"


def _explained(tables: Mapping[str, Table]) -> Iterator[str]:
    cells = [cell for table in tables.values() for row in table.values() for cell in row.values()]
    equal = sum(cell.difference == 0 for cell in cells)
    yield _MEANING
    yield ""
    yield f"{equal} of {len(cells)} cells are equal bits."


def _table(table: Table, tokens: tuple[int, int]) -> Iterator[str]:
    widths = sorted({width for cells in table.values() for width in cells})
    yield "| type | tokens | method | CFG | TP | " + " | ".join(f"width {width}" for width in widths) + " |"
    yield "|" + "---|" * (5 + len(widths))
    for row, cells in table.items():
        shown = (str(cells.get(width, "")) for width in widths)
        facts = (row.dtype, str(tokens[row.size]), row.method, str(row.cfg), str(row.tp))
        yield "| " + " | ".join((*facts, *shown)) + " |"


def _moves(moves: Mapping[str, Moves]) -> Iterator[str]:
    yield "One request in float32 on lanes of width 1, 3, 8, 2, 4 and 1 (those that TP leaves room for), a step each,"
    yield "against the same request on the narrowest lane throughout."
    yield ""
    ways = list(dict.fromkeys(way for cells in moves.values() for way in cells))
    yield "| family | " + " | ".join(ways) + " |"
    yield "|" + "---|" * (1 + len(ways))
    for name, cells in moves.items():
        yield f"| {name} | " + " | ".join(str(cells.get(way, "")) for way in ways) + " |"
