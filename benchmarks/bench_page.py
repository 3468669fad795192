"""The page of what `epe bench --json` gave.

python -m benchmarks.bench_page benchmarks/kept/bench-h200.json [--output docs/results/bench-h200.md]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

from epe.runtime.bench import COMPILED, DIFFUSERS, Row
from epe.runtime.bench_plot import draw

HEAD = """\
# What tasks take on H200, by `epe bench`

`epe bench --stage-config FILE --against diffusers --json RUN.json --costs COSTS.json`, shown by `python -m
benchmarks.bench_page`. {setting}

Milliseconds: of a step the median of the rounds, with the least and the most; encoding, decoding and the copy of pixels
to host memory are medians. The ratio is how many times as fast as diffusers' own pipeline, in turn in one process, as
it is and with its blocks compiled, which changes last bits as `numerics: fast` does ([steps of that](h200.md)). Torch
divides no product of diffusers' in this process either, as it does on that page. Graphs are those of all sizes so far,
with `fast` of their decodes too. There Z-Image had three products for queries, keys and values, which are one now.
"""
STARTS = """\
## A service that begins with such costs

`cost_file` names what `--costs` has written: the service takes it for its own and measures nothing. Z-Image with exact
numerics; seconds until the first request is taken, loading among them, while other work shared the GPU.

| costs | of tasks | start, s |
| --- | --: | --: |"""
NOT_RUN = """\
## Written for several GPUs and not run

`torchrun --standalone --nproc-per-node=2 -m epe bench --stage-config FILE`: lanes of each width, and tensor
parallelism, have been timed by ranks on a CPU alone. What steps take on lanes of two GPUs, by another program, has
[its own page](multi-gpu.md).
"""
TABLE_HEAD = (
    "size",
    "ranks",
    "tokens",
    "encode",
    "step",
    "decode",
    "copy",
    "capture, s",
    "graphs, MiB",
    "peak, MiB",
    "diffusers",
    "ratio",
    "compiled",
    "ratio",
)


class Run(Struct, frozen=True, kw_only=True):
    """Rows of a family with the words that name how they came about, and what else one should know of them."""

    title: str
    rows: tuple[Row, ...]
    note: str = ""


class Start(Struct, frozen=True, kw_only=True):
    """A service that is ready after `start_s`, with the costs of so many tasks, which are `origin`."""

    origin: str
    num_tasks: int
    start_s: float


class Kept(Struct, frozen=True, kw_only=True):
    """A file of `benchmarks/kept`: runs on a machine and with libraries that `setting` names, and what a service does
    with the costs of one of them."""

    setting: str
    runs: tuple[Run, ...]
    starts: tuple[Start, ...] = ()


def page(kept: Kept, *, picture: str) -> str:
    """The whole page; `picture` is the name of its plots, which a number follows."""
    sections = (_section(run, f"{picture}-{number}.png") for number, run in enumerate(kept.runs))
    return "\n".join((HEAD.format(setting=kept.setting), *sections, *_starts(kept.starts), NOT_RUN))


def _starts(starts: Sequence[Start]) -> Iterator[str]:
    if starts:
        yield STARTS
        for start in starts:
            yield _line((start.origin, str(start.num_tasks), f"{start.start_s:.1f}"))
        yield ""


def _section(run: Run, picture: str) -> str:
    note = [run.note, ""] if run.note else []
    lines = [
        f"## {run.title}",
        "",
        *note,
        _line(TABLE_HEAD),
        _line(("---", *["--:"] * (len(TABLE_HEAD) - 1))),
    ]
    return "\n".join((*lines, *(_line(_cells(row)) for row in run.rows), "", f"![Steps]({picture})", ""))


def _cells(row: Row) -> Iterator[str]:
    yield from (row.size, str(row.num_ranks), str(row.tokens))
    yield from (f"{1e3 * row.encode_s:.1f}", _spread(1e3 * each for each in row.step_s))
    yield from (f"{1e3 * row.decode_s:.1f}", f"{1e3 * row.copy_s:.1f}", f"{row.capture_s:.2f}")
    yield from (str(row.graph_bytes >> 20), str(row.peak_bytes >> 20))
    for other in (DIFFUSERS, COMPILED):
        yield _spread(1e3 * each for each in row.others_step_s.get(other, ()))
        yield _spread(row.ratios(other), unit="×")


def _spread(values: Iterable[float], *, unit: str = "") -> str:
    found = tuple(values)
    if not found:
        return ""
    return f"{median(found):.2f}{unit} ({min(found):.2f} to {max(found):.2f})"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kept", type=Path)
    parser.add_argument("--output", type=Path, default=Path("docs/results/bench-h200.md"))
    given = parser.parse_args(arguments)
    kept = msgspec.json.decode(given.kept.read_bytes(), type=Kept)
    given.output.write_text(page(kept, picture=given.output.stem))
    for number, run in enumerate(kept.runs):
        draw(run.rows, str(given.output.with_name(f"{given.output.stem}-{number}.png")), title=run.title)


if __name__ == "__main__":
    main()
