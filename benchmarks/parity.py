"""How far the final latents of every family are from those of diffusers' own pipeline, on tiny models: every width,
method of attention, split of guidance and number of tensor-parallel planes, with tokens that divide and that do not.

    python -m benchmarks.parity --output docs/results/parity.md

Ranks are processes on the CPU that speak over gloo, a thread each; lanes take the first of them. What a family does not
offer is not in the table: `epe.families` says what it offers, and the stage file is held to that when it is loaded.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.parity_table import Cell, Found, Line, Row, render
from benchmarks.real_sizes import MODELS
from epe.families import FAMILIES, MAX_PLANES, MAX_WIDTH, Family
from epe.messages import Request, Split
from epe.models.catalog import make_tiny
from tests.models.on_ranks import Loading, Turn, draw, draw_as_batch, draw_side_by_side
from tests.oracle import latents_of, load_oracle
from tests.world import World

NUM_RANKS = 8
WIDTHS = tuple(range(1, MAX_WIDTH + 1))
METHODS = {"AGKV": ("agkv", None), "Ulysses": ("ulysses", None), "hybrid": ("ulysses", 2)}
DTYPES = ("float32", "bfloat16")
NUM_STEPS = 3
# Its rows are shared by the ranks in every family; the short one's stay whole on each where text may.
LONG, SHORT = "a green dog in the city " * 25, "a cat on a red chair"
OTHER_LONG = LONG.replace("green dog", "red cat")
NUM_TEXT_ROWS = (512, 330)


@dataclass(frozen=True, slots=True)
class Subject:
    """A family's tiny checkpoint."""

    family: Family
    checkpoint: Path

    def request(self, size: int, *, num_steps: int = NUM_STEPS) -> Request:
        """0: tokens that every width divides, short text; 1: an odd number of tokens, long text."""
        height, width, num_frames = MODELS[self.family.name].tiny_sizes[size]
        return Request(
            id=f"size{size}",
            prompt=(SHORT, LONG)[size],
            negative_prompt="a chair" if self.family.negative_prompt else "",
            height=height,
            width=width,
            num_frames=num_frames,
            num_steps=num_steps,
            guidance_scale=MODELS[self.family.name].guidance_scale,
            seed=11,
            max_sequence_length=NUM_TEXT_ROWS[size],
        )

    def num_tokens(self, size: int) -> int:
        request = self.request(size)
        return self.family.num_tokens(
            height=request.height, width=request.width, num_frames=request.num_frames
        )


def rows(family: Family) -> Iterator[Row]:
    """What the family offers, and therefore what is proven of it."""
    degrees = (1, 2) if "cfg" in family.axes else (1,)
    for dtype, size, method, cfg, tp in product(DTYPES, (0, 1), METHODS, degrees, _planes(family)):
        yield Row(dtype=dtype, size=size, method=method, cfg=cfg, tp=tp)


def measure(world: World, subject: Subject) -> Found:
    """All differences of a family."""
    oracles = {dtype: load_oracle(subject.checkpoint, dtype=getattr(torch, dtype)) for dtype in DTYPES}
    expected = {
        (dtype, size): latents_of(oracle, subject.request(size)).float().numpy()
        for dtype, oracle in oracles.items()
        for size in (0, 1)
    }
    lines = []
    for row in rows(subject.family):
        widths = [width for width in WIDTHS if width * row.tp <= NUM_RANKS]
        cells = {width: _cell(world, subject, row, width, expected[row.dtype, row.size]) for width in widths}
        lines.append(Line(row, cells))
        print(subject.family.name, row, *(f"{width}: {cell}" for width, cell in cells.items()), flush=True)
    return Found(
        family=subject.family.name,
        tokens=(subject.num_tokens(0), subject.num_tokens(1)),
        coarseness=max(_largest(expected[DTYPES[1], size], expected[DTYPES[0], size]) for size in (0, 1)),
        lines=lines,
        moves={
            f"{method}, TP {tp}": measure_moves(world, subject, method=method, tp=tp)
            for method, tp in product(METHODS, _planes(subject.family))
        },
        batches={width: measure_batch(world, subject, width) for width in WIDTHS},
        crowd=measure_crowd(world, subject, oracles["float32"]),
    )


def measure_moves(world: World, subject: Subject, *, method: str, tp: int) -> Cell:
    """A request that changes its lane at every step boundary, from one to all ranks and back, against one lane."""
    widths = [width for width in (1, 3, 8, 2, 4, 1) if width * tp <= NUM_RANKS]
    row = Row(dtype="float32", size=1, method=method, cfg=1, tp=tp)
    request = subject.request(1, num_steps=len(widths))
    moving: list[Turn] = [(_lane(width, tp), Split(cp=width, tp=tp), 1) for width in widths]
    staying: list[Turn] = [(_lane(1, tp), Split(tp=tp), len(widths))]
    moved, stayed = (_drawn(world, subject, row, request, turns) for turns in (moving, staying))
    return Cell(_largest(moved[0], stayed[0]), agreed=_agree(moved))


def measure_batch(world: World, subject: Subject, width: int) -> Cell:
    """Two requests of one size and equally long prompts as one batch, against each alone on one rank."""
    first = subject.request(1)
    requests = [first, msgspec.structs.replace(first, id="other", prompt=OTHER_LONG, seed=12)]
    together = world.run(
        draw_as_batch,
        str(subject.checkpoint),
        requests,
        tuple(range(width)),
        Split(cp=width),
        timeout_s=300.0,
    )
    alone: list[Turn] = [((0,), Split(), NUM_STEPS)]
    row = Row(dtype="float32", size=1, method="AGKV", cfg=2, tp=1)
    cells = []
    for place, request in enumerate(requests):
        drawn = [latents[place] for latents in together if latents is not None]
        (expected,) = _drawn(world, subject, row, request, alone)
        cells.append(Cell(_largest(drawn[0], expected), agreed=_agree(drawn)))
    return Cell(max(cell.difference for cell in cells), agreed=all(cell.agreed for cell in cells))


def measure_crowd(world: World, subject: Subject, oracle: Any) -> Cell:
    """Eight requests of two sizes and 1 to 8 steps, a step of each in turn, each on another lane at every step, against
    diffusers' own pipeline, which draws them one after the other."""
    requests, journeys = [], []
    for place in range(8):
        request = subject.request(place % 2, num_steps=max(subject.family.min_steps, place + 1))
        requests.append(msgspec.structs.replace(request, id=f"q{place}", seed=place))
        widths = [WIDTHS[(3 * place + 5 * step) % len(WIDTHS)] for step in range(request.num_steps)]
        journeys.append(
            [(tuple(range(NUM_RANKS - width, NUM_RANKS)), Split(cp=width), 1) for width in widths]
        )
    loading = Loading(cfg_parallel_degree=1)
    given = world.run(
        draw_side_by_side, str(subject.checkpoint), requests, journeys, loading, timeout_s=300.0
    )
    cells = []
    for place, request in enumerate(requests):
        drawn = [latents[place] for latents in given if latents[place] is not None]
        cells.append(
            Cell(_largest(drawn[0], latents_of(oracle, request).float().numpy()), agreed=_agree(drawn))
        )
    return Cell(max(cell.difference for cell in cells), agreed=all(cell.agreed for cell in cells))


def _cell(world: World, subject: Subject, row: Row, width: int, expected: np.ndarray) -> Cell:
    halves = row.cfg == 2 and width % 2 == 0
    split = Split(cfg=2, cp=width // 2, tp=row.tp) if halves else Split(cp=width, tp=row.tp)
    turns: list[Turn] = [(_lane(width, row.tp), split, NUM_STEPS)]
    drawn = _drawn(world, subject, row, subject.request(row.size), turns)
    return Cell(_largest(drawn[0], expected), agreed=_agree(drawn))


def _drawn(world: World, subject: Subject, row: Row, request: Request, turns: list[Turn]) -> list[np.ndarray]:
    """The latents of every rank of the last lane. Encoding is the first rank's work: other planes cannot."""
    mode, degree = METHODS[row.method]
    loading = Loading(
        attention_mode=mode,
        ulysses_degree=degree,
        cfg_parallel_degree=row.cfg,
        num_planes=row.tp,
        dtype=row.dtype,
    )
    encoding: Turn = ((0,), Split(tp=row.tp), 0)
    given = world.run(draw, str(subject.checkpoint), request, [encoding, *turns], loading, timeout_s=300.0)
    return [latents for latents in given if latents is not None]


def _lane(width: int, tp: int) -> tuple[int, ...]:
    """The first `width` ranks of each plane."""
    plane = NUM_RANKS // tp
    return tuple(first + place for first in range(0, plane * tp, plane) for place in range(width))


def _planes(family: Family) -> tuple[int, ...]:
    return tuple(range(1, MAX_PLANES + 1)) if "tp" in family.axes else (1,)


def _largest(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(np.float64) - other).max())


def _agree(drawn: list[np.ndarray]) -> bool:
    return all(np.array_equal(latents, drawn[0]) for latents in drawn)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--kept", type=Path, help="folder of what was found; a family in it is not measured again"
    )
    arguments = parser.parse_args()
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    with tempfile.TemporaryDirectory() as folder:
        kept = arguments.kept or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        found = [_found(FAMILIES[name], Path(folder), kept / f"{name}.json") for name in arguments.families]
    text = render(found, about=_about())
    print(text)
    if arguments.output:
        arguments.output.write_text(text)


def _found(family: Family, folder: Path, file: Path) -> Found:
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=Found)
    subject = Subject(family, folder / family.name)
    make_tiny(family.name, subject.checkpoint)
    # A world of its own for each family: ranks keep every adapter that they load.
    world = World(NUM_RANKS)
    found = measure(world, subject)
    world.close()
    file.write_bytes(msgspec.json.encode(found))
    return found


def _about() -> str:
    return f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
