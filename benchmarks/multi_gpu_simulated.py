"""What `benchmarks.multi_gpu_page` says of a service's requests in the simulator, and why the two differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.multi_gpu_lanes import table
from benchmarks.multi_gpu_service import cells_of, seconds
from benchmarks.nearness import FIGURES, IN_TIME, MEDIAN, TAIL, is_near

Line = dict[str, Any]
# Of policies that have costs of their own there are two columns.
OWN = "static DP2"
TASKS = ("encode", "denoise", "decode", "finish")


def simulated(lines: list[Line]) -> Iterator[str]:
    yield "## The same requests in the simulator"
    yield ""
    yield (
        "The trace that the service recorded, with the costs that it had measured at its start. `-`: some of the class "
        "were not answered in time to be counted."
    )
    yield ""
    yield from _compared(cells_of(lines))
    yield ""
    yield from _causes(lines)
    yield ""
    yield from _again(lines)
    yield ""
    yield from _as_if(lines)


def _causes(lines: list[Line]) -> Iterator[str]:
    """What tasks cost at the start of the services, and at their end."""
    yield CAUSES
    yield ""
    found = {line["policy"]: line for line in lines if line.get("case") == "ended with"}
    others = [name for name in found if name != OWN]
    began, own = (_costs(found[name]["began"]) for name in (others[0], OWN))
    columns = [began, *(_costs(found[name]["tasks"]) for name in others), own, _costs(found[OWN]["tasks"])]
    keys = sorted(began, key=lambda key: (TASKS.index(key[0]), *key[1:]))
    rows = ([*key, *(_ms(costs.get(key)) for costs in columns)] for key in keys)
    heads = ("task", "tokens", "ranks", "at the start, ms", *others)
    yield from table((*heads, f"{OWN} at its start", OWN), rows)
    yield ""
    yield LATE


def _costs(tasks: list[Line]) -> dict[tuple[str, int, int], float]:
    return {(each["stage"], each["tokens"], each["width"]): each["seconds"] for each in tasks}


def _ms(value: float | None) -> str:
    return "" if value is None else f"{1e3 * value:.1f}"


def _again(lines: list[Line]) -> Iterator[str]:
    """With what was found in the logs."""
    cells = cells_of(lines, "scatter")
    yield AGAIN
    yield ""
    yield from _compared(cells)
    yield ""
    elastic = [cell for cell in cells if cell["policy"] == "elastic"]
    yield SCATTER.format(in_range=_in_range(elastic))
    yield ""
    heads = ("policy", "classes", "service and simulator: in time", "median", "P95")
    near = ("simulator and itself: in time", "median", "P95")
    names = dict.fromkeys(cell["policy"] for cell in cells)
    rows = ([name, *_near([cell for cell in cells if cell["policy"] == name])] for name in names)
    yield from table((*heads, *near), rows)
    yield ""
    yield from _ranges(elastic)


def _near(cells: list[Line]) -> Iterator[str]:
    """How many classes are near; how many runs that scatter are, in the mean, to one that does not."""
    pairs = _pairs(cells)
    own = [seen["near"] for cell in cells for name, seen in cell["classes"].items() if name != "all"]
    yield str(len(pairs))
    yield from map(str, _num_near(pairs))
    yield from (f"{sum(near[each] for near in own):.1f}" for each in FIGURES)


def _in_range(cells: list[Line]) -> str:
    """How many classes of the service lie among the runs that scatter."""
    classes = [seen for cell in cells for name, seen in cell["classes"].items() if name != "all"]
    in_time, median, tail = (
        sum(seen[each][0] <= seen["live"][each] <= seen[each][1] for seen in classes) for each in FIGURES
    )
    return f"{in_time} of {len(classes)} classes in time, {median} medians and {tail} P95"


def _ranges(cells: list[Line]) -> Iterator[str]:
    """The least and the most of the runs that scatter, class by class."""
    heads = ("load", "class", "requests", "in time: live", "simulated", "median s: live", "simulated")
    rows = (
        [f"{line['load']:g}", name, seen["live"]["requests"], *_range_of(seen)]
        for line in cells
        for name, seen in line["classes"].items()
    )
    yield from table((*heads, "P95 s: live", "simulated"), rows)


def _range_of(seen: Line) -> Iterator[str]:
    least, most = seen["in_time"]
    yield from (f"{seen['live']['in_time']:.0%}", f"{least:.0%} to {most:.0%}")
    for each in FIGURES[1:]:
        least, most = seen[each]
        yield from (seconds(seen["live"][each]), f"{least:.3f} to {most:.3f}")


def _as_if(lines: list[Line]) -> Iterator[str]:
    """The service alone, without what GPUs do."""
    yield AS_IF
    yield ""
    yield from _compared(cells_of(lines, "as if"))
    yield ""
    yield HELD_UP


def _compared(cells: list[Line]) -> Iterator[str]:
    """Live and simulated side by side, and how many classes are as near as the simulator shall be."""
    heads = ("load", "policy", "class", "requests", "in time: live", "simulated", "points", "median s: live")
    rows = (row for line in cells for row in _difference_rows(line))
    yield from table((*heads, "simulated", "%", "P95 s: live", "simulated", "%"), rows)
    yield ""
    pairs = _pairs(cells)
    in_time, median, tail = _num_near(pairs)
    yield (
        f"Of {len(pairs)} classes {in_time} are within {100 * IN_TIME:.0f} points of what came in time, {median} "
        f"within {MEDIAN:.0%} of the median and {tail} within {TAIL:.0%} of P95."
    )


def _pairs(cells: list[Line]) -> list[tuple[Line, Line]]:
    """Of each class what the service had and what was simulated."""
    return [
        (live, cell["simulated"][name])
        for cell in cells
        for name, live in cell["live"].items()
        if name != "all" and name in cell["simulated"]
    ]


def _num_near(pairs: Sequence[tuple[Line, Line]]) -> list[int]:
    return [sum(is_near(each, foretold[each], live[each]) for live, foretold in pairs) for each in FIGURES]


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
    return [seconds(live), seconds(foretold), change]


CAUSES = """\
### Why they differ

First, costs are measured before anybody is served, and what Python issues piece by piece takes longer in service:
encodes, decodes over several ranks, and files. Below, in milliseconds, what the services had in their tables at the
start and at the end (medians of the last tasks; where a policy had none of a kind, the figure of the start). Steps and
decodes of pictures on one rank are within 4 % (*static stages* has all steps of a request in one lease). Under static
SP2 it is 9 ms of the 146 for which a small picture has both ranks, and since these hardly rest at 0.8 the queue gains
that with each picture. By the logs an encode takes 11.5 ms (median) where its rank had idled and the next lease came
after it, as under *static stages*; 13 where it follows other work and the next lease comes meanwhile, as under static
DP; and 15.5 where besides the other rank fetches its state, as under static SP: all that is Python in one process."""

LATE = """\
Second, a report of an encode or of steps brings their state to the leader, and took 8 ms (the mean of 1,945 in the four
logs; 4 to 15 as medians by stage, size and policy; reports of decodes 2). The simulator heard of all at once. With
reports as late as that it showed what the services did as well: where a rank came free sooner than had been expected,
the next task of its request waited for the report instead of being sent ahead, under *static stages*, `throughput`,
`latency` and `slo` (*static stages* lost 2 to 4 ms before each decode so, by load). And where a rank came to be nearly
free while the planner looked, its alarm was lost: 13 tasks of static SP and 6 of static DP, after steps of more than
50 ms, came 3 to 12 ms late so. Both are mended since."""

AGAIN = """\
### Once more, with costs and reports as in the logs

The same cells with the costs that each service ended with, so of these same requests, with leases 2 ms on their way and
reports with their state 8 ms late."""

SCATTER = """\
Static SP2 is within all limits. The medians of static DP at 0.8 and 1.1 are up to 7 % short: its queue keeps growing
there, so 1 % of each task is a tenth of a second after ten, and 7 % of a median of 1.4 s. With the costs of its start,
whose steps of small pictures took 4 % longer, all of its classes are near. *static stages* had its lost milliseconds,
and a lane waits 2 ms more where a state came from the other rank.

How near can it be? Each of these cells twenty times more, with every task up to 2 % shorter or longer than it costs,
against one run without that: how many classes are near, of the scattered runs in their mean. Of the static policies
all are. Under `elastic` a millisecond decides who is widened, and, where somebody must be late, who is given up: of 22
to 49 requests one is 4 to 17 points of its class, and whoever is given up waits for seconds. There the service is as
near to the simulator as the simulator is to itself, and within the least and the most of the twenty with
{in_range}."""

AS_IF = """\
### The same service without GPUs

Requests to the same service on two cores of a CPU that did nothing else. Its ranks compute nothing, and take for each
task as long as the costs of the run before this one said; HTTP, planner, processes, messages, states and files are what
they are. So what is left of a difference is the service's own doing, and the simulator's."""

HELD_UP = """\
In the run before, static DP was 4 to 12 % slower on the GPUs than simulated, and its log said why, lease by lease. A
rank idled for 11 ms (median) after an encode, until the planner had heard of it. Twice a whole rank stood still, for
0.22 and 0.30 s, while Python looked for garbage among all objects of torch. The file of a video came 30 ms after its
decode, where the costs said 1. All three were mended, and in the run above static DP is within 4 % of every median and
8 % of every P95."""
