"""What `benchmarks.multi_gpu_page` says of the service: elastic against static, live against simulated, and a death."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.multi_gpu_lanes import table

Line = dict[str, Any]


def service(lines: list[Line]) -> Iterator[str]:
    found = {
        (line["load"], line["policy"]): line
        for line in lines
        if line.get("case") == "cell" and "live" in line
    }
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
    yield from table(heads, (_cell_row(*key, line["live"]["all"]) for key, line in sorted(found.items())))
    yield ""
    yield "### The same requests in the simulator"
    yield ""
    yield (
        "The trace that the service recorded, with the costs that it had measured at its start. `-`: some of the class "
        "were not answered in time to be counted."
    )
    yield ""
    heads = ("load", "policy", "class", "requests", "in time: live", "simulated", "points", "median s: live")
    rows = (row for key, line in sorted(found.items()) for row in _difference_rows(*key, line))
    yield from table((*heads, "simulated", "%", "P95 s: live", "simulated", "%"), rows)
    yield ""
    yield from _differences(list(found.values()))
    yield ""
    yield FOUND
    yield ""
    yield from _foretold(lines)


def _foretold(lines: list[Line]) -> Iterator[str]:
    """By costs alone, over more requests than were drawn."""
    yield FORETOLD
    yield ""
    heads = ("load", "policy", "requests", "in time", "requests a second", "mean s", "median s", "P95 s")
    rows = (
        _cell_row(line["load"], line["policy"], line)[:-1] for line in lines if line.get("case") == "foretold"
    )
    yield from table(heads, rows)


def _differences(cells: list[Line]) -> Iterator[str]:
    """How many classes are as near as the simulator shall be."""
    pairs = [
        (live, cell["simulated"][name])
        for cell in cells
        for name, live in cell["live"].items()
        if name != "all" and name in cell["simulated"]
    ]
    near = sum(abs(foretold["in_time"] - live["in_time"]) <= POINTS for live, foretold in pairs)
    yield (
        f"Of {len(pairs)} classes {near} are within {100 * POINTS:.0f} points of what came in time, "
        f"{_near(pairs, 'p50_s', MEDIAN)} within {MEDIAN:.0%} of the median and {_near(pairs, 'p95_s', TAIL)} within "
        f"{TAIL:.0%} of P95."
    )


def _near(pairs: list[tuple[Line, Line]], name: str, limit: float) -> int:
    both = [(live[name], foretold[name]) for live, foretold in pairs if live[name] and foretold[name]]
    return sum(abs(foretold / live - 1) <= limit for live, foretold in both)


# How near the simulator shall be: of attainment, median and P95.
POINTS, MEDIAN, TAIL = 0.03, 0.05, 0.10

FOUND = """\
### What they show

In these services `elastic` was not what it is now: their logs told what was wrong, it is mended ([decision
0027](../decisions/0027-what-ran-before-it-was-captured-is-no-cost.md)), and no run on two GPUs has shown it since.
After its doors had opened it captured 79 passes (static SP 4, static DP none), since those of its widths found no room
together; 30 of its 99 requests met a step or a decode that ran as it is, up to 195 ms in place of 31, and captures
held a rank for 5.2 s in sum. Three were broken off by other work, and their shapes ran uncaptured from then on.
Pictures were decoded by one rank (43 to 89 ms) where two take 28 to 48, which had been measured before they were
captured (54 to 65).

Of what static DP takes longer than the simulator says, clients are 2 to 4 % of the median: they asked every 10 ms
whether a video was there and fetched 20 MB for each, and now the service's clock counts. The rest is 1 to 6 % at the
lowest load: a job is stored before it is planned (7 to 10 ms), and a rank idles for 3 ms between two requests. Of
static SP the state of a picture is on the second rank 13 ms after its encode, where the tour of the warm-up saw 5 to
9."""

FORETOLD = """\
What can be said without the machine: with the costs that these services ended with (of each task those of a service
that did it captured) the simulator foretells this of the same mix, as the mean of ten seeds of 30 s. `elastic` has more
requests in time than every static policy at every load, and the least mean; static DP draws 4 % more a second at a load
of 1.1, and its P95 is lower from 0.5 on, since `elastic` lets those wait that are late anyway."""

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
latency is from acceptance to file by the service's clock, but in the run below, where it is what its clients saw.
Poisson arrivals for some 10 s (every cell says how many requests that were); load is the work on one rank over the
time of all ranks, by the costs measured at the start. Deadlines are three times the best latency that a request
could have alone. *static SP* has every step on all ranks, *static DP* each request on one, *static stages* encode
and decode on one rank and steps at a width fixed for each class. Costs are measured by the first service, and read
by the others but static DP, which decodes whole and measures its own. An answer that comes later than 8 s after the
last arrival counts as none, and its latency as endless (`-` where that leaves a mean or P95 without a number)."""


def _cell_row(load: float, policy: str, seen: Line) -> list[object]:
    return [
        f"{load:g}",
        policy,
        seen["requests"],
        f"{seen['in_time']:.0%}",
        f"{seen['per_second']:.2f}",
        _s(seen["mean_s"]),
        _s(seen["p50_s"]),
        _s(seen["p95_s"]),
        seen["requests"] - seen.get("answered", 0),
    ]


def _difference_rows(load: float, policy: str, line: Line) -> Iterator[list[object]]:
    for name, live in line["live"].items():
        foretold = line["simulated"].get(name)
        if foretold is not None:
            yield [
                f"{load:g}",
                policy,
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


def killed(lines: list[Line]) -> Iterator[str]:
    yield "## A rank killed while its lane exchanges"
    for line in lines:
        if line.get("section") == "death" and "closing_s" in line:
            yield ""
            yield from _death(line)
        if line.get("case") == "killed":
            yield ""
            yield from _killed(line)
        if line.get("case") == "returned":
            yield (
                f"The rank was back after {line['returned_s']:.1f} s, and the next picture was drawn on the lanes "
                f"{line['lanes_after']}. Other work ran on both GPUs meanwhile."
            )


def _death(line: Line) -> Iterator[str]:
    alone = f"stayed in its exchange for the {line.get('left_alone_s', 6.0):g} s that it was left there"
    if line["by_itself_s"] is not None:
        alone = f"came back by itself after {line['by_itself_s']:.2f} s"
    yield (
        f"Of two ranks that gather 16 MiB again and again one ends by SIGKILL. The other {alone}; closing its lane "
        f"took {1e3 * line['closing_s']:.0f} ms, after which its thread {'was' if line['freed'] else 'was not'} free "
        f"and its device {'works' if line.get('device_works') else 'does not work'}. It said: {line['said']!r}."
    )


def _killed(line: Line) -> Iterator[str]:
    again_s = _again_s(line)
    went_on = "nowhere" if again_s is None else f"after {again_s:.2f} s on the rank that was left"
    yield (
        f"In the service of {line['policy']}, one picture of 40 steps on both ranks ({line['undisturbed_s']:.1f} s "
        f"when nothing happens), rank 1 killed {line['died_s']:.1f} s after it was asked for: the leader knew after "
        f"{line['seen_s']} s, the request went on {went_on}, and its answer (status {line['status']}) came "
        f"{line['took_s']:.1f} s after it was asked for, with {line['num_repeated_steps']} steps drawn twice; the "
        f"same picture: {line['same_picture']}. Other ranks lost: {line['others_lost'] or 'none'}."
    )


def _again_s(line: Line) -> float | None:
    """From the death until steps were drawn on another lane than at first."""
    steps = [each for each in line["visits"] if each["stage"] == "denoise"]
    later = (each["start_s"] for each in steps if each["ranks"] != steps[0]["ranks"])
    return next((start_s - line["died_s"] for start_s in later), None)
