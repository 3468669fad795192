"""What `benchmarks.multi_gpu_page` says of the service: elastic against static."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.multi_gpu_lanes import table

Line = dict[str, Any]


def service(lines: list[Line]) -> Iterator[str]:
    found = cells_of(lines)
    yield "## Elastic against static"
    yield ""
    for family in dict.fromkeys(line["family"] for line in found):
        yield ABOUT[family]
    yield HOW
    yield ""
    heads = (
        "load",
        "policy",
        "requests",
        "in time",
        "requests a second",
        "mean s",
        "median s",
        "P95 s",
        "unanswered",
    )
    yield from table(heads, (_row(line, line["live"]["all"]) for line in found))
    yield ""
    yield FOUND
    yield ""
    yield from _foretold(lines)


def cells_of(lines: list[Line], case: str = "cell") -> list[Line]:
    """In order; a later run replaces the same load with as many requests under the same policy."""
    found = {_order(line): line for line in lines if line.get("case") == case and "live" in line}
    return [line for _, line in sorted(found.items())]


def _order(line: Line) -> tuple[float, int, str]:
    return (line["load"], line["live"]["all"]["requests"], line["policy"])


def _foretold(lines: list[Line]) -> Iterator[str]:
    """By costs alone, over more requests than were drawn."""
    yield FORETOLD
    yield ""
    heads = ("load", "policy", "requests", "in time", "requests a second", "mean s", "median s", "P95 s")
    rows = (_row(line, line)[:-1] for line in lines if line.get("case") == "foretold")
    yield from table(heads, rows)


def _row(line: Line, seen: Line) -> list[object]:
    return [
        f"{line['load']:g}",
        line["policy"],
        seen["requests"],
        f"{seen['in_time']:.0%}",
        f"{seen['per_second']:.2f}",
        seconds(seen["mean_s"]),
        seconds(seen["p50_s"]),
        seconds(seen["p95_s"]),
        seen["requests"] - seen.get("answered", 0),
    ]


def seconds(value: float | None) -> str:
    """`-` where it is endless."""
    return "-" if value is None else f"{value:.3f}"


ABOUT = {
    "zimage": """\
`epe serve` with Z-Image of real size (6.2 B, random weights, no guidance, a small text encoder), with the same
requests: 256 x 256, 512 x 512 and 1024 x 1024 in 4 steps (45, 30, 18 %), and 1536 x 1536 in 6 steps (7 %), which has
as many tokens as a video: 9,216, those of 21 frames of 480 x 832 are 9,360.""",
    "wan": """\
`epe serve` with Wan 2.1 of real size (1.3 B, random weights, two guidance branches, a small text encoder), with the
same requests: pictures, which are videos of one frame, of 832 x 480 and 1280 x 720 in 4 steps (60, 25 %), and videos
of 17 frames of 832 x 480 in 6 steps (15 %). Files hold raw frames: the encoder is not on that machine.""",
}

HOW = """\
A GPU for each rank and one service for each policy, all up together; each has the machine in turn, over HTTP;
latency is from acceptance to file by the service's clock.
Poisson arrivals for some 10 s (every cell says how many requests that were); load is the work on one rank over the
time of all ranks, by the costs measured at the start. Deadlines are three times the best latency that a request
could have alone. *static SP* has every step on all ranks, *static DP* each request on one, *static stages* encode
and decode on one rank and steps at a width fixed for each class. Costs are measured by the first service, and read
by the others but static DP, which decodes whole and measures its own. An answer that comes later than 8 s after the
last arrival counts as none, and its latency as endless (`-` where that leaves a mean or P95 without a number).

The cell of 101 requests is of an earlier run, 32 s of arrivals with costs of the run before that; its time was up
before a static policy had had the same requests."""

FOUND = """\
### What they show

`elastic` has all in time at a load of 0.5, as static DP has, and more than every static policy at 0.8 and 1.1 (92 and
78 % where the best of them has 44 and 10). Its mean and its median are the least at every load, and it draws as many a
second as static DP (3.04 of both at 0.8, 3.61 and 3.62 at 1.1). No pass was captured after the doors had opened. In the
longer cell 95 % were in time, after 0.72 s in the mean.

Its P95 is not the least: 1.51 s where static SP has 1.26, and 4.41 and 3.97 s where static DP has 2.48 and 2.99. At 1.1
more work comes than two ranks do, so somebody waits. Under static DP everybody does, and 90 % are late. `elastic`
spends the ranks on those that can be in time, and the others wait, eleven of 49 at 1.1 and three of 36 at 0.8. Wide
lanes cost throughput: two ranks that draw one small picture do 64 % of what they could. Other ways to serve those that
are late were tried, and left ([decision 0031](../decisions/0031-late-requests-wait.md))."""

FORETOLD = """\
With the costs that these services ended with the simulator foretells this of the same mix, as the mean of ten seeds of
30 s. `elastic` has the most in time at every load, and the least mean; static DP draws 3 % more a second at a load of
1.1, and its P95 is lower from 0.8 on."""
