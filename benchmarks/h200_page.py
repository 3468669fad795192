"""The page of what `benchmarks.h200_families` has written.

    python -m benchmarks.h200_page RUN.jsonl ... --output docs/results/h200-families.md

A case that several runs have measured counts once, with the last of them; timings are shown of runs named by
`--untimed` last of all, since other work shared their GPUs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]

# How matrix products were set.
BLAS_TITLES = {
    "exact": "As a rank sets torch: no product divided",
    "as-it-is": "Under torch's own setting",
}
KLEIN = """\
FLUX.2-klein's pipeline gives its model latents that lie with the rows innermost. On every lane, that of one rank too,
EPE has them one row after the other: a part of the rows cannot lie otherwise. With 4095 rows one rank and the pipeline
then differ, and no other difference between them is known. In the runs under torch's own setting one rank still had
them as the pipeline does, and its odd cells differ at every width. The eight requests through the runtime are compared
with the pipeline, and some of their sizes are odd."""
BLAS_NAMES = {"exact": "whole", "as-it-is": "torch's own"}
FAMILIES = ("flux1", "flux2-klein", "zimage", "qwen-image", "wan")


def read(paths: Iterable[Path], *, untimed: Iterable[Path]) -> tuple[list[Line], list[Line]]:
    """The settings and the lines of all cases that ended, each with its setting and whether its times count."""
    settings, lines = [], []
    for path in paths:
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line["case"] == "setting":
                settings.append(line)
            elif "error" not in line and line["case"] != "ready":
                timed = path not in set(untimed)
                lines.append(
                    {
                        **line,
                        "backend": settings[-1]["backend"],
                        "blas": settings[-1].get("blas", "as-it-is"),
                        "timed": timed,
                        "gpus": settings[-1]["num_gpus"],
                    }
                )
    return settings, lines


def page(settings: list[Line], lines: list[Line], *, command: str) -> str:
    """The whole page."""
    parts = [
        "# Every family at its real size on H200",
        "",
        f"`{command}`",
        "",
        *_about(settings),
        "",
        "## One rank against diffusers' pipeline",
        "",
        *_alone([line for line in lines if line["case"] == "alone"]),
        "",
        KLEIN,
        "",
        "## Lanes against one rank",
        "",
        "A cell is `=` for equal bits of the latents on every rank of the lane, else the largest difference to those "
        "of one rank (whose values reach 5 to 8). `odd` is a number of tokens that nothing divides. An empty cell was "
        "not run.",
    ]
    for blas, title in BLAS_TITLES.items():
        if own := [line for line in lines if line["blas"] == blas]:
            parts += ["", f"### {title}", "", *_lanes([line for line in own if line["case"] == "lane"])]
            parts += ["", *_others(own)]
    return "\n".join(parts) + "\n"


def _about(settings: list[Line]) -> Iterator[str]:
    first = settings[0]
    yield (
        f"{first['gpu']}, Python {first['python']}, torch {first['torch']}, diffusers {first['diffusers']}; "
        f"random weights in {first['dtype']}, made on the device. Lanes over gloo are processes that share one GPU; "
        "lanes over NCCL have a GPU for each rank."
    )


def _alone(lines: list[Line]) -> Iterator[str]:
    heads = ("family", "products", "parameters", "latents, even / odd tokens", "pixels", "ms a step")
    yield f"| {' | '.join(heads)} | diffusers' | ratio | peak GiB |"
    yield "|---|---|--:|---|---|--:|--:|--:|--:|"
    for family in FAMILIES:
        found = sorted((line for line in lines if line["family"] == family), key=lambda line: line["timed"])
        if found:
            line = found[-1]
            bits = " / ".join(_verdict(each) for each in (line, line["odd"]))
            pixels = "=" if line["pixel_difference"] == 0 else str(line["pixel_difference"])
            yield (
                f"| {family} | {BLAS_NAMES[line['blas']]} | {line['num_parameters'] / 1e9:.2f} B | {bits} | "
                f"{pixels} | {line['step_ms']:.1f} | {line['diffusers_step_ms']:.1f} | {line['ratio']:.3f} | "
                f"{line['peak_gib']} |"
            )


def _lanes(lines: list[Line]) -> Iterator[str]:
    columns = sorted({(line["backend"], line["width"]) for line in lines})
    heads = [f"width {width}, {'NCCL' if backend == 'nccl' else backend}" for backend, width in columns]
    yield f"| family | method | CFG | tokens | {' | '.join(heads)} |"
    yield "|---|---|---|---" + "|---" * len(columns) + "|"
    cells = {(_row(line), (line["backend"], line["width"])): _verdict(line) for line in lines}
    for row in sorted({row for row, _ in cells}, key=lambda row: (FAMILIES.index(row[0]), row[1:])):
        verdicts = [cells.get((row, column), "") for column in columns]
        yield f"| {' | '.join(map(str, row))} | {' | '.join(verdicts)} |"


def _row(line: Line) -> tuple[Any, ...]:
    method = {"agkv": "AGKV", "ulysses": "Ulysses"}[line["mode"]]
    return (line["family"], method, line["cfg_parallel_degree"], line["size"])


def _verdict(line: Line) -> str:
    return "=" if line["equal_bits"] else f"{line['largest_difference']:.2g}"


def _others(lines: list[Line]) -> Iterator[str]:
    yield "| family | lanes | a lane change at every boundary | 8 requests at once through the runtime |"
    yield "|---|---|---|---|"
    for family in FAMILIES:
        for backend in ("gloo", "nccl"):
            here = [line for line in lines if (line["family"], line["backend"]) == (family, backend)]
            moves = [_verdict(line) for line in here if line["case"] == "moves"]
            runtime = [
                "=" if line["pixel_difference"] == 0 else f"pixels differ by {line['pixel_difference']}"
                for line in here
                if line["case"] == "runtime"
            ]
            if moves or runtime:
                name = "NCCL" if backend == "nccl" else backend
                yield f"| {family} | {name} | {' '.join(moves[-1:])} | {' '.join(runtime[-1:])} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument(
        "--untimed", type=Path, nargs="*", default=[], help="runs whose GPUs did other work too"
    )
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    settings, lines = read(args.runs, untimed=args.untimed)
    names = " ".join(["RUN.jsonl"] * len(args.runs))
    command = f"python -m benchmarks.h200_families > RUN.jsonl; python -m benchmarks.h200_page {names}"
    args.output.write_text(page(settings, lines, command=command))


if __name__ == "__main__":
    main()
