"""What services said of their graphs, and what `benchmarks.lease_waits` and `benchmarks.full_card` gave, as sections of
the page of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

Line = dict[str, Any]

SAID = """
## What the services logged

Those of the streams above whose log was kept ({services} services), from their start on: {count} passes captured,
{refused} refused. A capture took {middle:.2f} s at the median ({least:.2f} to {most:.2f}); a lease that waits for the
rank meanwhile begins later by as much. Attention ran on {kernels}.
"""
WAITS = """
## What leases wait for

`python -m benchmarks.lease_waits FOLDER --family FAMILY`: of a picture of each side ({sides}) with a prompt that the
first of them brings, whose passes are replayed where they are captured, all leases in a service, and the calls in which
the thread of the device waits for the GPU by torch's own count. In the first row each lease asks for a value, which
must be seen.

Inside a lease nothing waits for the GPU: no step, no decode. The exception was not drawn here: with
[TeaCache](../flexcache.md) each step that is to be decided on asks for a number. At its end each lease waits once, in
`finite.py`, until it is known whether all that it made is finite; the wait for the end of its work that follows, which
torch does not count, has nothing left to wait for. When this ran, a decode asked just before it turned its numbers into
bytes; it asks afterwards now.

An encode of a new prompt waits six times more, all in code of diffusers and transformers, which run as they are:
tokens and their mask are sent, transformers looks at the mask twice, rows are picked by it, and noise that was drawn on
the CPU is sent (`torch_utils.py`). Where the prompt is known, as in the second encode, only the noise is left.

| family | numerics | captured | leases | waits | where |
|---|---|---|---|--:|---|
{rows}
"""
FULL = """
## A card that is full when passes are captured

`python -m benchmarks.full_card FOLDER --family FAMILY`: three pictures by a service whose card is filled before each
capture (`fill`: but for 64 MiB all of it; `limit`: torch gives the process no more than 64 MiB), then three of another
size with room. Pixels are compared with those of a service that captures nothing.

| family | how | side | pixels | refused | captured | replayed | said |
|---|---|--:|---|--:|--:|--:|---|
{rows}
"""


def checks(lines: Sequence[Line]) -> str:
    """The sections for which there are lines."""
    waits = [line for line in lines if line["case"] in ("asking", "waits")]
    full = [line for line in lines if line["case"] in ("full", "room")]
    said = [line["said"] for line in lines if line["case"] == "graphs"]
    sections = _logged(said) if any(map(_capture_s, said)) else ""
    if waits:
        sides = " and ".join(map(str, waits[0]["sides"]))
        sections += WAITS.format(sides=sides, rows="\n".join(map(_waits, waits)))
    if full:
        sections += FULL.format(rows="\n".join(map(_full, full)))
    return sections


def _logged(said: Sequence[list[Line]]) -> str:
    """Of each service what it said."""
    seconds = [each_s for each in said for each_s in _capture_s(each)]
    return SAID.format(
        services=len(said),
        count=len(seconds),
        middle=median(seconds),
        least=min(seconds),
        most=max(seconds),
        refused=sum(line["event"] == "graph.refused" for each in said for line in each),
        kernels=", ".join(
            sorted({f"`{line['kernels']}`" for each in said for line in each if "kernels" in line})
        ),
    )


def _capture_s(said: Sequence[Line]) -> list[float]:
    return [line["seconds"] for line in said if line["event"] == "graph.captured"]


def _waits(line: Line) -> str:
    leases = ", ".join(f"{count} {stage}" for stage, count in line["num_leases"].items())
    stages: dict[str, list[str]] = {}
    for place, count in line["places"].items():
        stage, _, where = place.partition(": ")
        stages.setdefault(stage, []).append(f"{where} ({count})")
    places = "; ".join(f"{stage}: {', '.join(found)}" for stage, found in stages.items())
    captured = "yes" if line["captured"] else "no"
    numerics = line["numerics"] + (", asking" if line["case"] == "asking" else "")
    return _row(line["family"], numerics, captured, leases, line["num_waits"], places)


def _full(line: Line) -> str:
    pixels = "equal" if line["equal_bits"] else "**other**"
    how = line["how"] if line["case"] == "full" else "room"
    said = ", ".join(dict.fromkeys(_said(each) for each in line["said"]))
    counts = (line[name] for name in ("refused", "captured", "replayed"))
    return _row(line["family"], how, line["side"], pixels, *counts, said)


def _said(said: Line) -> str:
    """The event and the first sentence of its reason."""
    return f"`{said['event']}`: {said['reason'].partition('. ')[0]}"


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
