"""The page of what `benchmarks.h200_vaep` gave.

python -m benchmarks.h200_vaep_page RUN.jsonl [--output docs/results/vaep-h200.md]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]

PAGE = """\
# Decoding in bands on H200

`python -m benchmarks.h200_vaep > RUN.jsonl`, shown by `python -m benchmarks.h200_vaep_page RUN.jsonl`.

{gpu}, Python 3.12.3, torch {torch}. Decoders of real size with random weights: pictures of 1024 x 1024, videos of
480 x 832 with 17 frames. Differences are the largest, as a share of the range of values. Numbers on a CPU, seams and
what travels are [on their own page](vaep.md).

## One rank

diffusers' decode of the whole picture, and the bands of a service on one rank as they are and captured as CUDA graphs
(pictures alone, see [decision 0020](../decisions/0020-bands-on-a-gpu.md)): milliseconds, in
turn, and the ratio to diffusers' as median and range; the most memory above the weights. {apart}
{alone_head}
{alone}

## Lanes of processes that share the GPU

Over gloo, so that seconds say nothing. A cell is `=` for the bits of one rank, else the difference to it.

| decoder | type | width 2 | width 4 | most MiB of a rank at width 2 | at width 4 | difference to the whole |
|---|---|---|---|--:|--:|--:|
{lanes}

## Little memory

`AutoencoderKL` in bfloat16 with the memory of the process capped, and what the same decodes take without a cap.

{capped_head}
{capped}
"""

# Where the numbers of a column stand to the right, so do its cells.
ALONE = (
    *("decoder", "type", ">bands", ">diffusers ms", ">bands ms", "ratio", ">captured ms", "ratio"),
    *("same bits captured", ">diffusers MiB", ">bands MiB", ">difference"),
)
CAPPED = (
    *("picture", ">cap GiB", "whole, capped", "one rank in bands, capped", ">seconds", ">MiB"),
    *("bits of the bands uncapped", ">bands uncapped MiB", ">whole uncapped MiB"),
)
APART = """\
diffusers' times are those of another run of the same day: in this one it had been lent our weights, with their channels
last, which slows it down (130 ms instead of 85 for `AutoencoderKL`). So ratios are those of medians, without a spread.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=Path("docs/results/vaep-h200.md"))
    arguments = parser.parse_args()
    lines = [
        json.loads(line) for run in arguments.runs for line in run.read_text().splitlines() if line[:1] == "{"
    ]
    arguments.output.write_text(page(lines))


def page(lines: list[Line]) -> str:
    by_case: dict[str, list[Line]] = {"setting": [], "alone": [], "lane": [], "capped": []}
    for line in lines:
        by_case.get(line["case"], []).append(line)
    setting = by_case["setting"][-1]
    return PAGE.format(
        gpu=setting.get("gpu", setting["device"]),
        torch=setting["torch"],
        apart=APART if any(line.get("whole_of_another_run") for line in by_case["alone"]) else "\n",
        alone_head=_head(ALONE),
        capped_head=_head(CAPPED),
        alone="\n".join(map(_alone, by_case["alone"])),
        lanes="\n".join(_lanes(by_case["lane"])),
        capped="\n".join(map(_capped, by_case["capped"])),
    )


def _alone(line: Line) -> str:
    if "error" in line:
        return f"| {line['decoder']} | {line['dtype']} | {line['error']} |" + " |" * 9
    captured, kept = line.get("captured_ms"), line.get("captured_equals_bands")
    return _row(
        line["decoder"],
        line["dtype"],
        line["bands"],
        line["whole_ms"],
        line["bands_ms"],
        _ratio(line, "bands"),
        "" if captured is None else captured,
        "" if captured is None else _ratio(line, "captured"),
        "" if captured is None else _yes(kept),
        line["whole_peak_mib"],
        line["bands_peak_mib"],
        f"{line['difference']:.1e}",
    )


def _lanes(lines: list[Line]) -> Iterator[str]:
    for decoder, dtype in dict.fromkeys((line["decoder"], line["dtype"]) for line in lines):
        widths = {
            line["width"]: line for line in lines if (line["decoder"], line["dtype"]) == (decoder, dtype)
        }
        cells = [_bits(widths.get(width)) for width in (2, 4)]
        peaks = [widths.get(width, {}).get("peak_mib", "") for width in (2, 4)]
        apart = [line["against_whole"]["difference"] for line in widths.values() if "against_whole" in line]
        yield _row(decoder, dtype, *cells, *peaks, f"{max(apart):.1e}" if apart else "")


def _capped(line: Line) -> str:
    side = 8 * line["rows"]
    if "error" in line:
        return f"| {side} x {side} | {line['error']} |" + " |" * 7
    return _row(
        f"{side} x {side}",
        line["cap_gib"],
        "out of memory" if "out of memory" in line["whole"] else line["whole"],
        "decoded",
        line["seconds"],
        line["capped_peak_mib"],
        _yes(line["equals_uncapped"]),
        line["bands_uncapped_peak_mib"],
        line["whole_uncapped_peak_mib"],
    )


def _bits(line: Line | None) -> str:
    if line is None:
        return ""
    if "error" in line:
        return f"failed: {line['error'][-60:]}".replace("\n", " ")
    against = line["against_one_rank"]
    return "=" if against["equal_bits"] else f"{against['difference']:.1e}"


def _ratio(line: Line, way: str) -> str:
    if line.get("whole_of_another_run"):
        return f"{line[f'{way}_ms'] / line['whole_ms']:.3f}"
    middle, least, most = line[f"{way}_ratio"]
    return f"{middle:.3f} ({least:.3f} to {most:.3f})"


def _yes(fact: bool | None) -> str:
    return "yes" if fact else "no"


def _head(columns: tuple[str, ...]) -> str:
    names = _row(*(column.removeprefix(">") for column in columns))
    return names + "\n|" + "|".join("--:" if column.startswith(">") else "---" for column in columns) + "|"


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
