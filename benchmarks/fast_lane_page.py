"""`docs/results/fast-lane.md` from the lines of `benchmarks.fast_lane`: later runs replace cases of earlier ones.

python -m benchmarks.fast_lane_page RUN.jsonl ... > docs/results/fast-lane.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.multi_gpu_lanes import spread, table
from benchmarks.multi_gpu_page import read

Line = dict[str, Any]
COMMANDS = (
    "python -m benchmarks.fast_lane > RUN.jsonl",
    "python -m benchmarks.fast_lane_page RUN.jsonl > docs/results/fast-lane.md",
)
SWING = """\
## Steps that took twice their time

Over `fast` some steps took 1.2 to 2.2 times their time, captured or not, while all threads that waited read the host's
word that ends a wait, after 1,024 looks at their count. What explains it, and was not seen by itself: such reads come
one after the other, so a rank that had waited for so long was late by its own reading, the other then waited as long
for it and read too, and so on. Now one thread of a block reads the word, at every 2,048th look alone. Milliseconds of a
captured step, the least and the most of the rounds:
"""
EARLIER = "earlier"
NOT_RUN = """\
## Written for several GPUs and not run

Over `fast`: steps of other families, and decodes:

    python -m benchmarks.fast_lane --sections steps decodes --families flux1

More than two GPUs (`--world 4`, 8), whose exchanges have run on threads of a CPU, in orders by seeds; ranks that see
one GPU each (`CUDA_VISIBLE_DEVICES`; over NCCL they [have](multi-gpu.md)). A whole service over `fast`, with a rank
that is killed and comes back, is on [the page of other lanes](multi-gpu.md) with what of these was not run; what of
compiled blocks was not, on [that of steps](h200.md)."""
WAYS = (("nccl", False), ("nccl", True), ("fast", False), ("fast", True))


def page(lines: list[Line]) -> str:
    """The whole page."""
    setting = lines[0]["setting"]
    parts = [
        "# Exchanges over shared memory",
        "",
        *(f"    {command}" for command in COMMANDS),
        "",
        f"{setting['num_gpus']} {setting['gpu']} of one host, a rank each, a lane of both; NCCL without NVLink "
        f"multicast, and `fast`, which has none. Python {setting['python']}, torch {setting['torch']}, diffusers "
        f"{setting['diffusers']}. Of times the rank that began last counts. Over NCCL a captured pass is cut where "
        "the lane exchanges, over `fast` it is one graph. 64 blocks of a kernel have slots of 64 KiB for each other "
        "rank.",
    ]
    for name, section in SECTIONS:
        parts += ["", *section([line for line in lines if line.get("section") == name])]
    return "\n".join([*parts, "", NOT_RUN, ""])


def _steps(lines: list[Line]) -> Iterator[str]:
    yield "## Steps"
    yield ""
    yield (
        "Models of real size with random weights in bfloat16, 128 rows of text, AGKV, one guidance branch. "
        "Milliseconds of a step in rounds in which all ways took their turns, and ratios within a round: medians with "
        "the least and the most. Host: until Python had issued a step; as it is, the steps of small pictures take as "
        "long. Bits are those of one captured rank."
    )
    yield ""
    cases: dict[tuple[str, str], dict[tuple[str, bool], Line]] = {}
    for line in lines:
        if line.get("step_ms"):
            cases.setdefault((line["family"], line["size"]), {})[line["transport"], line["captured"]] = line
    heads = ("family, size", "one rank", "NCCL, as it is", "NCCL, captured", "its host", "fast, as it is")
    more = ("fast, captured", "its host", "NCCL to fast, captured", "one rank to fast", "bits")
    yield from table((*heads, *more), (_step_row(case, ways) for case, ways in cases.items()))


def _step_row(case: tuple[str, str], ways: dict[tuple[str, bool], Line]) -> list[str]:
    nccl, fast, alone = ways["nccl", True], ways["fast", True], ways["alone", True]
    return [
        " ".join(case),
        _ms(alone),
        _ms(ways["nccl", False]),
        _ms(nccl),
        _ms(nccl, "host_ms"),
        _ms(ways["fast", False]),
        _ms(fast),
        _ms(fast, "host_ms"),
        _ratio(nccl, fast),
        _ratio(alone, fast),
        "=" if all(line["equal_bits"] for line in ways.values()) else "differ",
    ]


def _ms(line: Line, name: str = "step_ms") -> str:
    return spread(line[name], 1) if name == "step_ms" else f"{median(line[name]):.1f}"


def _ratio(one: Line, other: Line) -> str:
    return spread(a / b for a, b in zip(one["step_ms"], other["step_ms"], strict=True))


def _is_earlier(line: Line) -> bool:
    return "wait" in line["setting"]


def _swing(lines: list[Line]) -> Iterator[str]:
    """Of the lines of steps."""
    yield SWING
    found: dict[str, dict[bool, Line]] = {}
    for line in lines:
        if line.get("step_ms") and (line["transport"], line["captured"]) == ("fast", True):
            found.setdefault(f"{line['family']} {line['size']}", {})[_is_earlier(line)] = line
    rows = (
        [case, *(_ends(each.get(is_earlier)) for is_earlier in (True, False))] for case, each in found.items()
    )
    yield from table(("family, size", f"{EARLIER} wait", "present wait"), rows)


def _ends(line: Line | None) -> str:
    return "not run" if line is None else f"{min(line['step_ms']):.1f} to {max(line['step_ms']):.1f}"


def _exchanges(lines: list[Line]) -> Iterator[str]:
    yield "## Exchanges"
    yield ""
    yield (
        "Gathers of both ranks, 40 one after the other, by themselves or in a captured pass; microseconds of each, and "
        "GB/s that a rank receives: medians of rounds in turn. Putting the parts together is among them."
    )
    yield ""
    found: dict[int, dict[tuple[str, bool], Line]] = {}
    for line in lines:
        if "part_kib" in line:
            found.setdefault(line["part_kib"], {})[line["transport"], line["captured"]] = line
    heads = ["KiB of a rank"]
    for transport, captured in WAYS:
        name = f"{'NCCL' if transport == 'nccl' else transport}, {'captured' if captured else 'as it is'}"
        heads += [name, "its host", "GB/s"]
    yield from table(
        heads,
        (
            [kib, *(ways[way][name] for way in WAYS for name in ("device_us", "host_us", "gb_per_s"))]
            for kib, ways in sorted(found.items())
        ),
    )


def _layouts(lines: list[Line]) -> Iterator[str]:
    yield f"Captured gathers with other blocks and slots, microseconds of each, with the {EARLIER} wait:"
    yield ""
    found: dict[int, dict[tuple[int, int], float]] = {}
    for line in lines:
        if "slot_kib" in line:
            found.setdefault(line["part_kib"], {})[line["num_blocks"], line["slot_kib"]] = line["device_us"]
    layouts = list(next(iter(found.values())))
    heads = ["KiB of a rank", *(f"{blocks} blocks, slots of {slot} KiB" for blocks, slot in layouts)]
    yield from table(heads, ([kib, *(times[each] for each in layouts)] for kib, times in found.items()))


def _bits(lines: list[Line]) -> Iterator[str]:
    yield "## Bits"
    line = next(each for each in reversed(lines) if "equal_bits" in each)
    yield ""
    yield (
        f"Of {line['tensors']} tensors of random bytes from gathers, trades and broadcasts, of four types, also of "
        f"sizes that no word divides, over two lanes in turn (the second has the ranks in the other order), "
        f"{'all were' if line['equal_bits'] else 'not all were'} equal over both transports; {line['replayed']} of the "
        "passes of each rank were replays, on whichever of the lanes had this rank at that position."
    )


def _connect(lines: list[Line]) -> Iterator[str]:
    line = next(each for each in reversed(lines) if "connect_s" in each)
    yield "## Connecting"
    yield ""
    yield (
        f"The first lane takes {line['connect_s'][0]:.2f} s (in a process that has no kernel yet) and "
        f"{line['left_mib'][0]} MiB of each GPU; connected again after it was dropped it takes "
        f"{line['connect_s'][1]:.2f} s, and {line['connect_s'][2]:.2f} s where one rank has mapped memory more often "
        f"than the other. To close one takes {1e3 * max(line['close_s']):.1f} ms. What a rank holds for the other is "
        f"{line['held_mib']} MiB. All were fast: {all(line['is_fast'])}."
    )


def _death(lines: list[Line]) -> Iterator[str]:
    yield "## A rank killed while its lane exchanges"
    yield ""
    yield (
        "Of two ranks that gather 16 MiB again and again one ends by SIGKILL; the other is left alone for two seconds, "
        "and then its lane is closed. Milliseconds:"
    )
    yield ""
    rows = [
        [
            "a captured pass" if line["captured"] else "gathers as they are",
            "no" if line["by_itself_s"] is None else f"after {1e3 * line['by_itself_s']:.0f}",
            f"{1e3 * line['closing_s']:.1f}",
            f"{1e3 * line['freed_s']:.1f}" if line["freed"] else "never",
            "yes" if line["device_works"] else "no",
        ]
        for line in lines
        if "closing_s" in line
    ]
    yield from table(
        ("it is in", "free by itself", "closing", "free after closing", "its GPU works on"), rows
    )


SECTIONS = (
    ("steps", _steps),
    ("steps", _swing),
    ("exchanges", _exchanges),
    ("layouts", _layouts),
    ("bits", _bits),
    ("connect", _connect),
    ("death", _death),
)


def main() -> None:
    sys.stdout.write(page(read(map(Path, sys.argv[1:]))))


if __name__ == "__main__":
    main()
