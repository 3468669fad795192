"""What `benchmarks.multi_gpu_page` says of bits and of steps, and how it writes figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

Line = dict[str, Any]

METHODS = {"agkv": "AGKV", "ulysses": "Ulysses", "guidance": "guidance branches"}
# Bytes a millisecond that exchanges reach in the roofline, which is above what was seen here.
IDEAL_SPEED = 375e9 / 1e3


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    names = list(heads)
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def spread(values: Iterable[float], digits: int = 2) -> str:
    """`median (least to most)`."""
    each = sorted(values)
    return f"{median(each):.{digits}f} ({each[0]:.{digits}f} to {each[-1]:.{digits}f})"


# -- bits ----------------------------------------------------------------------------------------------------


def parity(lines: list[Line]) -> Iterator[str]:
    yield "## Bits"
    yield ""
    yield (
        "A lane over NCCL against one rank, `=` for equal bits of the latents on every rank, else the largest "
        "difference; a lane change at every step boundary goes, on two ranks, GPU 0, both (turned round), both, GPU 1, "
        "both (turned round). Products are set as a rank of a service sets them. `odd` is a number of tokens that "
        "nothing divides."
    )
    yield ""
    found = {
        _lane_key(line): line
        for line in lines
        if line.get("case") in ("lane", "moves")
        and line["setting"]["backend"] == "nccl"
        and "error" not in line
    }
    rows = [(*key, _verdict(line)) for key, line in found.items()]
    yield from table(("family", "case", "ranks", "method", "tokens", "bits"), rows)


def _lane_key(line: Line) -> tuple[str, ...]:
    is_lane = line["case"] == "lane"
    method = METHODS[line["mode"]] if line["split"].startswith("1x") else METHODS["guidance"]
    case = "lane" if is_lane else "lane changes"
    return line["family"], case, str(line["width"]), method, line["size"]


def _verdict(line: Line) -> str:
    same = line["equal_bits"] and line["ranks_agree"]
    return "=" if same else f"{line['largest_difference']:.2g}"


# -- steps ---------------------------------------------------------------------------------------------------


def steps(lines: list[Line]) -> Iterator[str]:
    """Milliseconds, ratios within a round, and what a roofline from what was measured here allows."""
    cases: dict[tuple[str, str], dict[tuple[Any, ...], Line]] = {}
    for line in lines:
        if line.get("section") == "steps" and line.get("step_ms"):
            ways = cases.setdefault((line["family"], line["size"]), {})
            ways[(line["width"], line["method"], line["captured"])] = line
    yield "## Steps"
    yield ""
    yield (
        "All ways of a row's size were measured in turn, in rounds; ranks of width 1 worked at once. A ratio is the "
        "time of one captured rank over that of the captured lane, the median of the rounds with the least and the "
        "most. Host: milliseconds of a step until Python had issued it; where they equal the step's, the GPU waits "
        "for Python. In exchanges: for how long the stream of a captured rank was in a step's exchanges, waiting for "
        "the others among it. The bound is one rank's time over the lane's ranks with the bytes of the lane at the "
        "most that exchanges here received a second, and nothing else; the ideal is the roofline of one rank (its "
        "operations counted, products at 790 and attention at 600 TFLOP/s) over the lane's ranks with its bytes at 375 "
        "GB/s. FLUX.1 and Wan have 512 rows of text, the others 128; Z-Image and FLUX.1 have one guidance branch, "
        "Qwen-Image and Wan two. Blocks are not compiled."
    )
    yield ""
    heads = ("family, size", "way", "as it is, ms", "its host, ms", "captured, ms", "its host, ms", "ratio")
    yield from table(
        (*heads, "bound, ms", "ideal, ms", "exchanges", "MiB received", "in exchanges, ms", "bits"),
        (row for case, ways in cases.items() for row in _step_rows(case, ways, lines)),
    )
    yield from _untimed(lines, cases)


def _untimed(lines: list[Line], timed: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Sizes that were drawn, and whose time was not measured any more."""
    done = set(timed)
    left = [each for each in lines if each.get("section") == "steps" and each.get("step_ms") == []]
    for case in dict.fromkeys((line["family"], line["size"]) for line in left):
        drawn = [line for line in left if (line["family"], line["size"]) == case]
        ways = {(line["width"], line["method"], line["captured"]) for line in drawn}
        if case not in done:
            same = "all with" if all(line["equal_bits"] for line in drawn) else "not all with"
            yield ""
            yield f"{' '.join(case)} was drawn in {len(ways)} of these ways, {same} equal bits; none was timed."


def _step_rows(
    case: tuple[str, str], ways: dict[tuple[Any, ...], Line], lines: list[Line]
) -> Iterator[list[str]]:
    alone, speed = ways.get((1, "agkv", True)), speed_of(lines)
    for (width, method, captured), line in ways.items():
        if captured:
            continue
        graphs = ways.get((width, method, True))
        yield [
            " ".join(case),
            "one rank" if width == 1 else f"{width}, {METHODS[method]}",
            f"{median(line['step_ms']):.1f}",
            f"{median(line['host_ms']):.1f}",
            f"{median(graphs['step_ms']):.1f}" if graphs else "",
            f"{median(graphs['host_ms']):.1f}" if graphs else "",
            _ratio(alone, graphs) if width > 1 else "",
            _bound(alone, line, speed) if width > 1 else "",
            _ideal(line, lines),
            str(line.get("exchanges", "")),
            str(line.get("received_mib", "")),
            f"{graphs['exchange_ms']:.1f}" if graphs and "exchange_ms" in graphs else "",
            "=" if line["equal_bits"] and (graphs is None or graphs["equal_bits"]) else "differ",
        ]


def _ratio(alone: Line | None, lane: Line | None) -> str:
    if alone is None or lane is None:
        return ""
    return spread(a / b for a, b in zip(alone["step_ms"], lane["step_ms"], strict=False))


def _ideal(way: Line, lines: list[Line]) -> str:
    """From the operations that a step of the same size was counted to have."""
    same = ("family", "size", "text_rows")
    counted = [
        line["least_ms"] for line in lines if "least_ms" in line and all(line[it] == way[it] for it in same)
    ]
    if not counted:
        return ""
    exchanged_ms = way.get("received_mib", 0) * 2**20 / IDEAL_SPEED
    return f"{counted[-1] / way['width'] + exchanged_ms:.1f}"


def speed_of(lines: list[Line]) -> float:
    """Bytes a millisecond: the most that exchanges received, 0 if none were measured."""
    found = [line["gb_per_s"] for line in lines if line.get("section") == "exchanges" and "part_kib" in line]
    return max(found, default=0.0) * 1e6


def _bound(alone: Line | None, lane: Line, bytes_per_ms: float) -> str:
    if alone is None or not bytes_per_ms or "received_mib" not in lane:
        return ""
    exchanged_ms = lane["received_mib"] * 2**20 / bytes_per_ms
    return f"{median(alone['step_ms']) / lane['width'] + exchanged_ms:.1f}"
