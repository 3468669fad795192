"""The page of what `benchmarks.row_bits` has written.

python -m benchmarks.row_bits_page BITS.jsonl ... --output docs/results/h200-rows.md
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.row_probe import WIDTHS, Line

# What the settings are called in the lines, and what they are.
SETTINGS = {
    "as-it-is": "torch's own",
    "cublaslt": "cuBLASLt for all products",
    "no-workspace": "no workspace for either library (`CUBLAS_WORKSPACE_CONFIG`, `CUBLASLT_WORKSPACE_SIZE`)",
    "exact": "**what a rank sets**: cuBLASLt, and no product of 16-bit numbers divided",
}
ABOUT = f"""\
NVIDIA H200, torch 2.11.0+cu130, bfloat16. Each family's transformer at its real width, with one layer of each kind and
random weights, makes a step. Each operation in it is repeated for the rows that each rank of a lane would have (widths
{", ".join(map(str, WIDTHS))}), and compared with the same rows of the whole, bit for bit. Attention is asked by
rows (AGKV) and by heads (Ulysses). `even` and `odd` are the sizes of [the lanes](h200-families.md)."""
SETTINGS_ABOUT = """\
A case is an operation at one size of one family. Time is that of all linear layers together, of the cases that both
have, against torch's own setting: alone, and on a rank of a lane."""
# A setting had this name when only bfloat16 was set.
FORMERLY = {"no-split-k": "exact"}


def read(paths: list[Path]) -> list[Line]:
    """The lines of all settings that ended, a later file's before an earlier one's of the same."""
    found: dict[tuple[str, str, str], list[Line]] = {}
    for path in paths:
        fresh: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
        for line in map(json.loads, path.read_text().splitlines()):
            name = FORMERLY.get(line.get("blas"), line.get("blas"))
            if name in SETTINGS:
                fresh[name, line["family"], line["size"]].append({**line, "blas": name})
        found |= fresh
    return [line for lines in found.values() for line in lines]


def page(lines: list[Line], *, command: str) -> str:
    """The whole page."""
    asked = [line for line in lines if "differs" in line]
    parts = [
        "# Which operations give a rank's rows other bits on H200",
        "",
        f"`{command}`",
        "",
        ABOUT,
        "",
        "## Settings of matrix products",
        "",
        SETTINGS_ABOUT,
        "",
        *_settings(asked),
        "",
        "## What gives other bits under torch's own setting",
        "",
        *_causes([line for line in asked if line["blas"] == "as-it-is"]),
    ]
    return "\n".join(parts) + "\n"


def _settings(lines: list[Line]) -> Iterator[str]:
    heads = [f"other bits, width {width}" for width in WIDTHS]
    times = ["time, alone", *(f"width {width}" for width in WIDTHS)]
    yield f"| setting | cases | {' | '.join((*heads, *times))} |"
    yield "|---|--:" + "|--:" * (len(heads) + len(times)) + "|"
    for name, described in SETTINGS.items():
        own = [line for line in lines if line["blas"] == name]
        differing = [sum(bool(line["differs"].get(str(width))) for line in own) for width in WIDTHS]
        cells = [described, len(own), *differing, *_times(lines, name)]
        if own:
            yield f"| {' | '.join(map(str, cells))} |"


def _times(lines: list[Line], name: str) -> list[str]:
    linear = [line for line in lines if line["operation"] == "linear"]
    usual, ours = (
        {_case(line): line for line in linear if line["blas"] == setting} for setting in ("as-it-is", name)
    )
    both = usual.keys() & ours.keys()
    keys = ("whole", *map(str, WIDTHS))
    sums = [
        {key: sum(_us(found[case], key) for case in both if _us(usual[case], key)) for key in keys}
        for found in (ours, usual)
    ]
    return [f"{sums[0][key] / sums[1][key]:.2f}" if sums[1][key] else "" for key in keys]


def _us(line: Line, key: str) -> float:
    return float(line["whole_us"] if key == "whole" else line["us"].get(key, 0.0))


def _case(line: Line) -> tuple[str, ...]:
    return (line["family"], line["size"], line["operation"], str(line["shapes"]))


def _causes(lines: list[Line]) -> Iterator[str]:
    yield "| family | size | operation | rows | values | widths | kernel of a rank's rows | kernel of the whole |"
    yield "|---|---|---|--:|---|---|---|---|"
    for line in lines:
        widths = [width for width, difference in line["differs"].items() if difference]
        if widths:
            inner, outer = line["shapes"][0][-1], line["shapes"][1][0]
            kernels = (_kernel(line["cause"][key]) for key in ("kernels", "whole_kernels"))
            yield (
                f"| {line['family']} | {line['size']} | {line['operation']} | {line['rows']} | {inner} to {outer} | "
                f"{', '.join(widths)} | {' | '.join(kernels)} |"
            )


def _kernel(names: list[str]) -> str:
    """The products among what a profile saw."""
    return ", ".join(f"`{name}`" for name in names if name.startswith("nvjet") or "gemm" in name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    names = " ".join(["BITS.jsonl"] * len(args.runs))
    command = f"python -m benchmarks.row_bits > BITS.jsonl; python -m benchmarks.row_bits_page {names}"
    args.output.write_text(page(read(args.runs), command=command))


if __name__ == "__main__":
    main()
