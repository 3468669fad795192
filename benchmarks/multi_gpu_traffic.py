"""What `benchmarks.multi_gpu_page` says of groups, exchanges, moves and decodes."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.multi_gpu_lanes import spread, table

Line = dict[str, Any]


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
        f"The first lane of all ranks takes {first:.2f} s and {line['connect_mib'][0]} MiB of each GPU; closed and "
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
    yield "Gathers of all ranks, 40 back to back:"
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
        "while both ranks compute for others. A request pays for a move at a lane change that takes in ranks without "
        "its state: for Z-Image 2 % of a captured step of one rank, so a faster way would gain little."
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
