"""How `benchmarks.parity` writes down what it found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

    @property
    def is_equal(self) -> bool:
        """Equal bits, on every rank."""
        return self.difference == 0 and self.agreed

    def __str__(self) -> str:
        shown = "0" if self.difference == 0 else f"{self.difference:.1e}"
        return shown if self.agreed else f"{shown}, ranks differ"


@dataclass(frozen=True, slots=True)
class Line:
    """The cells of a row by width."""

    row: Row
    cells: dict[int, Cell]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One family: tokens of the two sizes, how far diffusers' own latents in bfloat16 are from those in float32, the
    lines of its table, what a request found that changed its lane at every boundary, two that were one batch (by
    width), and eight that were drawn side by side.
    """

    family: str
    tokens: tuple[int, int]
    coarseness: float
    lines: list[Line]
    moves: dict[str, Cell]
    batches: dict[int, Cell]
    crowd: Cell


def render(found: Sequence[Found], *, about: str) -> str:
    """The page."""
    lines = [
        "# Parity with diffusers",
        "",
        f"`python -m benchmarks.parity --output docs/results/parity.md` on {about}.",
        "",
        *_explained(found),
    ]
    for each in found:
        lines += ["", f"## {each.family}", "", *_table(each)]
    lines += ["", "## A lane change at every step boundary", "", *_moves(found)]
    lines += ["", "## Beside others", "", *_beside(found)]
    return "\n".join(lines) + "\n"


def _explained(found: Sequence[Found]) -> Iterator[str]:
    lines = [line for each in found for line in each.lines]
    one_plane = [cell for line in lines if line.row.tp == 1 for cell in line.cells.values()]
    equal = sum(cell.is_equal for cell in one_plane)
    yield _MEANING
    yield ""
    yield f"With one plane {equal} of {len(one_plane)} cells are equal bits."


def _table(found: Found) -> Iterator[str]:
    widths = sorted({width for line in found.lines for width in line.cells})
    yield f"Diffusers' own latents in bfloat16 are {found.coarseness:.1e} from those in float32."
    yield ""
    yield "| type | tokens | method | CFG | TP | " + " | ".join(f"width {width}" for width in widths) + " |"
    yield "|" + "---|" * (5 + len(widths))
    for line in found.lines:
        row, shown = line.row, (str(line.cells.get(width, "")) for width in widths)
        facts = (row.dtype, str(found.tokens[row.size]), row.method, str(row.cfg), str(row.tp))
        yield "| " + " | ".join((*facts, *shown)) + " |"


def _moves(found: Sequence[Found]) -> Iterator[str]:
    yield "One request in float32 on lanes of width 1, 3, 8, 2, 4 and 1 (those that TP leaves room for), a step each,"
    yield "against the same request on the narrowest lane throughout."
    yield ""
    ways = list(dict.fromkeys(way for each in found for way in each.moves))
    yield "| family | " + " | ".join(ways) + " |"
    yield "|" + "---|" * (1 + len(ways))
    for each in found:
        yield f"| {each.family} | " + " | ".join(str(each.moves.get(way, "")) for way in ways) + " |"


def _beside(found: Sequence[Found]) -> Iterator[str]:
    yield "In float32. Batch: two requests of the odd size, with equally long prompts and seeds of their own, take all"
    yield "steps as one batch (`scheduler.max_batch`), each against itself alone on one rank; the larger difference."
    yield "Eight at once: requests of both sizes and 1 to 8 steps (Qwen-Image at least 2), a step of each in turn, each"
    yield "on another lane at every step (widths 1 to 8), against diffusers' own pipeline, which draws them one after"
    yield "the other."
    yield ""
    widths = sorted({width for each in found for width in each.batches})
    yield "| family | " + " | ".join(f"batch, width {width}" for width in widths) + " | eight at once |"
    yield "|" + "---|" * (2 + len(widths))
    for each in found:
        cells = [*(each.batches[width] for width in widths), each.crowd]
        yield f"| {each.family} | " + " | ".join(map(str, cells)) + " |"
