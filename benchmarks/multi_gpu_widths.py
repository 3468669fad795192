"""What `benchmarks.multi_gpu_page` says of lanes that are wider than the machine: by calculation from what was measured
on two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.multi_gpu_lanes import METHODS, speed_of, table

Line = dict[str, Any]
Ways = dict[tuple[Any, ...], Line]
WIDTHS = (2, 3, 4, 8)

ABOUT = """\
By calculation: the time of one captured rank over the lane's ranks, and of every exchange {latency_us:.0f} microseconds
(the shortest gather of two ranks below) and its bytes at {speed:.0f} GB/s (the most that exchanges of two received). On
P ranks AGKV receives 2 (P - 1) / P times the bytes of two, Ulysses 4 (P - 1) / P². At width 2 the measured time stands
beside it. What it leaves out: ranks that start late, work that is not divided, exchanges with more peers than one, and
the host. How long that needs for a captured step, the small sizes say (9 to 19 ms on two ranks, nearly all of it in
exchanges): at large ones it waits until the GPU's queue has room. So on eight ranks Z-Image and FLUX.1 at 512 x 512
would be in exchanges for more than half of a step."""


def widths(lines: list[Line]) -> Iterator[str]:
    cases: dict[tuple[str, str], Ways] = {}
    for line in lines:
        if line.get("section") == "steps" and line.get("step_ms"):
            ways = cases.setdefault((line["family"], line["size"]), {})
            ways[(line["width"], line["method"], line["captured"])] = line
    latency_us, speed = latency_of(lines), speed_of(lines)
    yield "### Wider lanes"
    yield ""
    yield ABOUT.format(latency_us=latency_us, speed=speed / 1e6)
    yield ""
    heads = ("family, size", "method", "host, ms", "2, measured", *(f"{width}, ms" for width in WIDTHS))
    rows = (row for case, ways in cases.items() for row in _rows(case, ways, 1e-3 * latency_us, speed))
    yield from table((*heads, "4 ranks: ratio", "8 ranks: ratio"), rows)


def latency_of(lines: list[Line]) -> float:
    """Microseconds of the shortest gather."""
    found = [line for line in lines if line.get("section") == "exchanges" and "part_kib" in line]
    return min((line["device_us"] for line in found), default=0.0)


def _rows(case: tuple[str, str], ways: Ways, latency_ms: float, speed: float) -> Iterator[list[str]]:
    alone = ways.get((1, "agkv", True))
    for method in ("agkv", "ulysses"):
        pair = ways.get((2, method, True))
        if alone is None or pair is None:
            continue
        alone_ms = median(alone["step_ms"])
        times = {
            width: alone_ms / width
            + pair["exchanges"] * latency_ms
            + share_of(method, width) * pair["received_mib"] * 2**20 / speed
            for width in WIDTHS
        }
        yield [
            " ".join(case),
            METHODS[method],
            f"{median(pair['host_ms']):.1f}",
            f"{median(pair['step_ms']):.1f}",
            *(f"{ms:.1f}" for ms in times.values()),
            *(f"{alone_ms / times[width]:.2f}" for width in (4, 8)),
        ]


def share_of(method: str, width: int) -> float:
    """Bytes that a rank of a lane receives in a step, over those of a lane of two."""
    return (2 if method == "agkv" else 4 / width) * (width - 1) / width
