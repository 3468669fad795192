"""What `benchmarks.multi_gpu_page` says of lanes: bits, steps, groups, moves and decodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

Line = dict[str, Any]

METHODS = {"agkv": "AGKV", "ulysses": "Ulysses", "guidance": "guidance branches"}
# Ideal milliseconds of a step at widths 1 and 2 with AGKV, from the roofline that the page names.
IDEAL_MS = {
    ("flux1", "1024x1024"): (100.1, 54.9),
    ("qwen-image", "1024x1024"): (189.2, 104.1),
    ("zimage", "1024x1024"): (73.7, 39.9),
}


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
        "A lane of two ranks over NCCL against one rank, `=` for equal bits of the latents on every rank, else the "
        "largest difference; a lane change at every step boundary goes GPU 0, both (turned round), both, GPU 1, both "
        "(turned round). Products are set as a rank of a service sets them. `odd` is a number of tokens that nothing "
        "divides."
    )
    yield ""
    found = {
        _lane_key(line): line
        for line in lines
        if line.get("case") in ("lane", "moves")
        and line["setting"]["backend"] == "nccl"
        and "error" not in line
    }
    rows = [(*key[:4], _verdict(line)) for key, line in found.items()]
    yield from table(("family", "case", "method", "tokens", "bits"), rows)


def _lane_key(line: Line) -> tuple[str, ...]:
    is_lane = line["case"] == "lane"
    method = METHODS[line["mode"]] if line["split"].startswith("1x") else METHODS["guidance"]
    return line["family"], "lane" if is_lane else "lane changes", method, line["size"]


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
        "the other rank among it. The bound is half of one rank's time with the bytes of the lane at the most that "
        "exchanges here received a second, and nothing else; the ideal is a roofline of arithmetic at 790 and "
        "attention at 600 TFLOP/s with exchanges at 375 GB/s. Z-Image has one guidance branch, Qwen-Image and Wan "
        "two. Blocks are not compiled."
    )
    yield ""
    heads = ("family, size", "way", "as it is, ms", "its host, ms", "captured, ms", "its host, ms", "ratio")
    yield from table(
        (*heads, "bound, ms", "ideal, ms", "exchanges", "MiB received", "in exchanges, ms", "bits"),
        (row for case, ways in cases.items() for row in _step_rows(case, ways, _speed(lines))),
    )


def _step_rows(case: tuple[str, str], ways: dict[tuple[Any, ...], Line], speed: float) -> Iterator[list[str]]:
    alone = ways.get((1, "agkv", True))
    for (width, method, captured), line in ways.items():
        if captured:
            continue
        graphs = ways.get((width, method, True))
        ideal = IDEAL_MS.get(case, ("", ""))[width - 1] if method == "agkv" else ""
        yield [
            " ".join(case),
            "one rank" if width == 1 else f"{width}, {METHODS[method]}",
            f"{median(line['step_ms']):.1f}",
            f"{median(line['host_ms']):.1f}",
            f"{median(graphs['step_ms']):.1f}" if graphs else "",
            f"{median(graphs['host_ms']):.1f}" if graphs else "",
            _ratio(alone, graphs) if width > 1 else "",
            _bound(alone, line, speed) if width > 1 else "",
            str(ideal),
            str(line.get("exchanges", "")),
            str(line.get("received_mib", "")),
            f"{graphs['exchange_ms']:.1f}" if graphs and "exchange_ms" in graphs else "",
            "=" if line["equal_bits"] and (graphs is None or graphs["equal_bits"]) else "differ",
        ]


def _ratio(alone: Line | None, lane: Line | None) -> str:
    if alone is None or lane is None:
        return ""
    return spread(a / b for a, b in zip(alone["step_ms"], lane["step_ms"], strict=False))


def _speed(lines: list[Line]) -> float:
    """Bytes a millisecond: the most that exchanges received, 0 if none were measured."""
    found = [line["gb_per_s"] for line in lines if line.get("section") == "exchanges" and "part_kib" in line]
    return max(found, default=0.0) * 1e6


def _bound(alone: Line | None, lane: Line, bytes_per_ms: float) -> str:
    if alone is None or not bytes_per_ms or "received_mib" not in lane:
        return ""
    exchanged_ms = lane["received_mib"] * 2**20 / bytes_per_ms
    return f"{median(alone['step_ms']) / lane['width'] + exchanged_ms:.1f}"


# -- groups --------------------------------------------------------------------------------------------------


def groups(lines: list[Line]) -> Iterator[str]:
    yield "## Groups"
    found = [line for line in lines if line.get("section") == "groups" and "connect_s" in line]
    if not found:
        return
    line = found[-1]
    first, again = line["connect_s"][0], line["connect_s"][1:]
    mib = median(line["connect_mib"][1:])
    yield ""
    yield (
        f"The first lane of both ranks takes {first:.2f} s and {line['connect_mib'][0]} MiB of each GPU; closed and "
        f"connected again, as after an error, it takes {spread(again)} s and {mib:.0f} MiB, and closing "
        f"{spread((1e3 * each for each in line['close_s']), 1)} ms. A second lane of the same ranks in the other order "
        f"takes {line['second_lane_s']:.2f} s and {line['second_lane_mib']} MiB. To look up a lane that is connected "
        f"takes the host {line['look_up_us']:.1f} microseconds; a small gather takes {line['same_lane_us']:.0f} on one "
        f"lane and {line['lanes_in_turn_us']:.0f} with a lane change before each."
    )
    yield ""
    yield "By calculation, with the memory of one such lane for each (those of more ranks may take more):"
    yield ""
    yield from table(
        (
            "ranks",
            "lanes built at the start, of a rank",
            "MiB",
            "one for each set of ranks, of a rank",
            "MiB",
        ),
        (
            [world, built, f"{built * mib:.0f}", sets, f"{sets * mib:.0f}"]
            for world, built in ((2, 1), (4, 2), (8, 3))
            for sets in [2 ** (world - 1) - 1]
        ),
    )
    yield ""
    yield from exchanges(lines)


def exchanges(lines: list[Line]) -> Iterator[str]:
    yield "Gathers of two ranks, 40 back to back:"
    yield ""
    found = {
        line["part_kib"]: line for line in lines if line.get("section") == "exchanges" and "part_kib" in line
    }
    names = ("part_kib", "device_us", "host_us", "gb_per_s")
    heads = ("KiB of a rank", "microseconds each", "of the host", "GB/s received")
    yield from table(heads, ([line[name] for name in names] for _, line in sorted(found.items())))


# -- moves ---------------------------------------------------------------------------------------------------


def moves(lines: list[Line]) -> Iterator[str]:
    yield "## Moves of states"
    yield ""
    yield (
        "A state from one rank to the other by the way of a service: to pinned host memory on a stream of its own, "
        "over torch RPC (TCP on loopback), to the other GPU; milliseconds as median, least and most of 8. Straight: "
        "the same tensors as sends over the lane's NCCL group, which a service does not do, since a state moves "
        "while both ranks compute for others."
    )
    yield ""
    found = {line["family"]: line for line in lines if line.get("section") == "moves" and "move_ms" in line}
    heads = (
        "family",
        "MiB",
        "whole move, ms",
        "out of the GPU",
        "into the other",
        "GB/s",
        "straight, ms",
        "bits",
    )
    yield from table(
        heads,
        (
            [
                family,
                line["state_mib"],
                _three(line["move_ms"]),
                _three(line["export_ms"]),
                _three(line["import_ms"]),
                line["gb_per_s"],
                _three(line["straight_ms"]),
                "=" if line["equal_bits"] else "differ",
            ]
            for family, line in found.items()
        ),
    )


def _three(values: list[float]) -> str:
    return f"{values[0]:.2f} ({values[1]:.2f} to {values[2]:.2f})"


# -- decodes -------------------------------------------------------------------------------------------------

NO_DECODES = """\
Not run over NCCL: the time on the machine ended before it. Over gloo, as processes that share one GPU, lanes of two and
four ranks gave the bits of one ([decoding in bands on H200](vaep-h200.md))."""


def decodes(lines: list[Line]) -> Iterator[str]:
    found: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        if line.get("section") == "decodes" and "way" in line:
            found[(line["decoder"], line["rows"], line["columns"], line["num_frames"], line["way"])] = line
    yield "## Decodes over rows"
    yield ""
    if not found:
        yield NO_DECODES
        return
    yield (
        "diffusers' decode of the whole, and bands on one rank and on two, as they are and captured (pictures "
        "alone), in turn; milliseconds as median with the least and the most of five rounds, and the most memory of "
        "a rank above the weights. Neighbours' rows: what a rank receives of rows beside its bands, as a share of "
        "all that it receives but the finished picture; waiting: milliseconds for which its stream was in exchanges."
    )
    yield ""
    heads = ("decoder", "latents", "way", "ms", "ratio to one rank", "MiB", "neighbours' rows", "waiting, ms")
    yield from table((*heads, "bits"), (_decode_row(key, line, found) for key, line in found.items()))


def _decode_row(key: tuple[Any, ...], line: Line, found: dict[tuple[Any, ...], Line]) -> list[str]:
    decoder, rows, columns, num_frames, way = key
    alone = found.get((*key[:4], way.rpartition(" ")[0] + " 1"))
    is_lane = way.rpartition(" ")[2] not in ("whole", "1")
    ratio = spread(a / b for a, b in zip(alone["ms"], line["ms"], strict=True)) if alone and is_lane else ""
    return [
        decoder,
        f"{rows} x {columns}" + (f" x {num_frames}" if num_frames > 1 else ""),
        way,
        spread(line["ms"], 1),
        ratio,
        str(line["peak_mib"]),
        _share(line),
        str(line.get("exchange_ms", "")),
        "" if "equal_bits" not in line else "=" if line["equal_bits"] else f"{line['difference']:.1e}",
    ]


def _share(line: Line) -> str:
    if "received_kib" not in line:
        return ""
    received = line["received_kib"]
    inner = received.get("rows", 0) + received.get("gather", 0)
    return f"{received.get('rows', 0)} of {inner} KiB"
