"""What `benchmarks.multi_gpu_page` says of the service: elastic against static, and live against simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.multi_gpu_lanes import table
from benchmarks.nearness import FIGURES, IN_TIME, MEDIAN, TAIL, is_near

Line = dict[str, Any]


def service(lines: list[Line]) -> Iterator[str]:
    found = {_cell(line): line for line in lines if line.get("case") == "cell" and "live" in line}
    yield "## Elastic against static"
    yield ""
    for family in dict.fromkeys(line["family"] for line in found.values()):
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
    yield from table(heads, (_cell_row(line, line["live"]["all"]) for _, line in sorted(found.items())))
    yield ""
    yield "### The same requests in the simulator"
    yield ""
    yield (
        "The trace that the service recorded, with the costs that it had measured at its start. `-`: some of the class "
        "were not answered in time to be counted."
    )
    yield ""
    yield from _compared(list(found.values()))
    yield ""
    yield from _scatter(lines)
    yield ""
    yield from _as_if(lines)
    yield ""
    yield FOUND
    yield ""
    yield from _foretold(lines)


def _cell(line: Line) -> tuple[float, int, str]:
    """What a later run replaces: the same load, as many requests, the same policy."""
    return (line["load"], line["live"]["all"]["requests"], line["policy"])


def _foretold(lines: list[Line]) -> Iterator[str]:
    """By costs alone, over more requests than were drawn."""
    yield FORETOLD
    yield ""
    heads = ("load", "policy", "requests", "in time", "requests a second", "mean s", "median s", "P95 s")
    rows = (_cell_row(line, line)[:-1] for line in lines if line.get("case") == "foretold")
    yield from table(heads, rows)


def _as_if(lines: list[Line]) -> Iterator[str]:
    """The service alone, without what GPUs do."""
    yield AS_IF
    yield ""
    yield from _compared([line for line in lines if line.get("case") == "as if"])
    yield ""
    yield HELD_UP


def _compared(cells: list[Line]) -> Iterator[str]:
    """Live and simulated side by side."""
    heads = ("load", "policy", "class", "requests", "in time: live", "simulated", "points", "median s: live")
    rows = (row for line in sorted(cells, key=_cell) for row in _difference_rows(line))
    yield from table((*heads, "simulated", "%", "P95 s: live", "simulated", "%"), rows)
    yield ""
    yield from _differences(cells)


def _differences(cells: list[Line]) -> Iterator[str]:
    """How many classes are as near as the simulator shall be."""
    pairs = [
        (live, cell["simulated"][name])
        for cell in cells
        for name, live in cell["live"].items()
        if name != "all" and name in cell["simulated"]
    ]
    near = [sum(is_near(each, foretold[each], live[each]) for live, foretold in pairs) for each in FIGURES]
    yield f"Of {len(pairs)} classes {_within(near)}."


def _within(near: Sequence[float]) -> str:
    in_time, median, tail = (f"{each:.0f}" for each in near)
    return (
        f"{in_time} are within {100 * IN_TIME:.0f} points of what came in time, {median} within {MEDIAN:.0%} of the "
        f"median and {tail} within {TAIL:.0%} of P95"
    )


def _scatter(lines: list[Line]) -> Iterator[str]:
    """How near the simulator is to itself."""
    found = [line for line in lines if line.get("case") == "scatter"]
    classes = [seen for line in found for name, seen in line["classes"].items() if name != "all"]
    near = [sum(seen["near"][each] for seen in classes) for each in FIGURES]
    yield f"{SCATTER} Of {len(classes)} classes {_within(near)}, in the mean."
    yield ""
    heads = ("load", "class", "requests", "in time: live", "simulated", "median s: live", "simulated")
    rows = (
        [f"{line['load']:g}", name, seen["live"]["requests"], *_ranges(seen)]
        for line in found
        if line["policy"] == "elastic"
        for name, seen in line["classes"].items()
    )
    yield from table((*heads, "P95 s: live", "simulated"), rows)


def _ranges(seen: Line) -> Iterator[str]:
    least, most = seen["in_time"]
    yield from (f"{seen['live']['in_time']:.0%}", f"{least:.0%} to {most:.0%}")
    for each in FIGURES[1:]:
        least, most = seen[each]
        yield from (_s(seen["live"][each]), f"{least:.3f} to {most:.3f}")


SCATTER = """\
How near can it be? Each cell again in the simulator alone, twenty times, with every task up to 2 % shorter or longer
than it costs, against one run without that. (In the services eight of ten steps and decodes of one rank were at most
4 % off their median, eight of ten encodes 26 %.) Of 21 to 46 requests one is 4 to 17 points of its class. Where
somebody must be late a millisecond decides who is given up, or which of two lanes is free first, and then another plan
is made: below, the least and the most of the twenty under `elastic`. Since the first run a simulated planner is asked
again as soon as its leases are sent, as that of a service is: this alone has 97 % in time at 0.8 where the table above
has 91. What lies outside of these ranges has another cause: small pictures at 0.8 end sooner than simulated."""

AS_IF = """\
### The same service without GPUs

The same requests to the same service on two cores of a CPU that did nothing else. Its ranks compute nothing, and take
for each task as long as these costs say; HTTP, planner, processes, messages, states and files are what they are. So
what is left of a difference is the service's own doing, and the simulator's."""

HELD_UP = """\
The difference of static DP on the GPUs, 4 to 12 % of its medians, was found lease by lease in its log. At a load of 0.5
a rank idled for 11 ms (median) after an encode, and for 7 (mean) after a fifth of its steps: a report that brings a
state takes 8 to 12 ms, and nobody planned ahead for a task of less than 50 ms. At 0.8 and at 1.1 a whole rank stood
still once, for 0.22 and 0.30 s, and all behind it waited: Python looked for garbage among all objects of torch (0.23 s
here for the 463,000 of a rank with Wan). The file of a video came 30 ms after its decode, where the costs said 1. With
these three put into it the simulator is within 4 % of every median of static DP at 1.1, and within 3 % of every P95.
All are mended. (Two ranks that draw small pictures at once slow each other by 3 %, and larger ones by less: the costs,
measured on both at once, have it in them.) No run of static DP on GPUs has shown that yet; here its reports take 2 ms,
and it ran too short for garbage."""

FOUND = """\
### What they show

`elastic` has more in time than every static policy at every load (100, 91 and 80 % where the best of them has 95, 38
and 13), and the least mean and median. No pass was captured after its doors had opened, and no request met a step or a
decode that ran as it is: what was wrong in the run before ([decision
0027](../decisions/0027-what-ran-before-it-was-captured-is-no-cost.md)) is mended. With three times as many requests at
0.8, 95 % were in time, after 0.72 s in the mean.

Static DP has two things that `elastic` has not: at a load of 1.1 it draws 3.85 requests a second where `elastic` draws
3.64, and half of that in P95 (2.8 s to 5.9; at 0.8 2.7 to 2.9). More work comes then than two ranks do, so somebody
waits. Under static DP everybody does, and 87 % are late. `elastic` spends the ranks on those that can be in time, and
the others wait: with these costs the simulator has, at 1.1 for 10 s and twenty seeds, 14 % of the requests late by
`elastic`, which end after 5.1 s in the mean, and 71 % by static DP, after 2.1 s; 75 % of all end sooner by `elastic`.
Wide lanes cost the throughput: two ranks that draw one small picture do 63 % of what they could. Other ways to serve
those that are late were tried, and left ([decision 0031](../decisions/0031-late-requests-wait.md))."""

FORETOLD = """\
With the costs that these services ended with the simulator foretells this of the same mix, as the mean of ten seeds of
30 s. `elastic` has the most in time at every load, and the least mean; static DP draws 4 % more a second at a load of
1.1, and its P95 is lower from 0.5 on."""

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

The cell of 101 requests is of a later run: 32 s of arrivals, with the costs that the first had ended with, and after
what had held up ranks was mended (one stood still for 0.2 to 0.3 s while Python looked for garbage, and after each
short task until the planner had heard of it). Its time was up before a static policy had had the same requests."""


def _cell_row(line: Line, seen: Line) -> list[object]:
    return [
        f"{line['load']:g}",
        line["policy"],
        seen["requests"],
        f"{seen['in_time']:.0%}",
        f"{seen['per_second']:.2f}",
        _s(seen["mean_s"]),
        _s(seen["p50_s"]),
        _s(seen["p95_s"]),
        seen["requests"] - seen.get("answered", 0),
    ]


def _difference_rows(line: Line) -> Iterator[list[object]]:
    for name, live in line["live"].items():
        foretold = line["simulated"].get(name)
        if foretold is not None:
            yield [
                f"{line['load']:g}",
                line["policy"],
                name,
                live["requests"],
                f"{live['in_time']:.0%}",
                f"{foretold['in_time']:.0%}",
                f"{100 * (foretold['in_time'] - live['in_time']):+.1f}",
                *_pair(live["p50_s"], foretold["p50_s"]),
                *_pair(live["p95_s"], foretold["p95_s"]),
            ]


def _pair(live: float | None, foretold: float | None) -> list[str]:
    change = "" if live is None or foretold is None else f"{100 * (foretold / live - 1):+.0f}"
    return [_s(live), _s(foretold), change]


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f}"
