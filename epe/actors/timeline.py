"""The life of each request as events in Chrome's trace format, which Perfetto shows: a row for each rank, one for all
requests. A file of them is an array without its end, as that format allows, so that it can be read at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from epe.actors.core import Ref
from epe.errors import Overloaded
from epe.messages import Departed, Event, LaneVisit

TIMELINE = "timeline"

# The two groups of rows.
_REQUESTS, _RANKS = 1, 2
_MICRO = 1e6


def header(world_size: int) -> bytes:
    """The beginning of a file: what the rows are called."""
    names = [_named("process_name", _REQUESTS, 0, "requests"), _named("process_name", _RANKS, 0, "ranks")]
    names += [_named("thread_name", _RANKS, rank, f"rank {rank}") for rank in range(world_size)]
    return b"[\n" + b"".join(_line(each) for each in names)


def lines_of(departed: Departed) -> bytes:
    """The events of a request that has ended, in microseconds of Unix time."""
    return b"".join(_line(each) for each in _events(departed))


class Timeline:
    """Hears of requests that have ended, and has `writer` write them down; one that cannot follow loses some."""

    def __init__(self, writer: Ref) -> None:
        self.writer = writer
        self.num_lost = 0

    def hear(self, event: Event) -> None:
        if isinstance(event, Departed):
            try:
                self.writer.tell(lines_of(event))
            except Overloaded:
                self.num_lost += 1


def _events(departed: Departed) -> Iterator[dict[str, Any]]:
    request, account, failure = departed.request, departed.ended.account, departed.ended.failure
    begin = departed.arrived_at * _MICRO
    facts = {
        "size": f"{request.width}x{request.height}",
        "num_steps": request.num_steps,
        "outcome": failure.kind if failure else "finished",
        "predicted_s": departed.accepted.predicted_s,
        "total_s": account.total_s,
        "queue_s": account.queue_s,
        "num_migrations": account.num_migrations,
    }
    # Requests overlap, and each has a row of its own for as long as it lives: an asynchronous pair.
    pair = {"name": request.id, "cat": "request", "id": request.id, "pid": _REQUESTS, "tid": 0}
    yield {**pair, "ph": "b", "ts": begin, "args": facts}
    yield {**pair, "ph": "e", "ts": begin + account.total_s * _MICRO}
    for visit in account.visits:
        for rank in visit.ranks:
            yield _visit(request.id, visit, rank, begin=begin)


def _visit(request_id: str, visit: LaneVisit, rank: int, *, begin: float) -> dict[str, Any]:
    return {
        "name": request_id,
        "cat": visit.stage,
        "ph": "X",
        "ts": begin + visit.start_s * _MICRO,
        "dur": (visit.end_s - visit.start_s) * _MICRO,
        "pid": _RANKS,
        "tid": rank,
        "args": {
            "stage": visit.stage,
            "width": len(visit.ranks),
            "first_step": visit.first_step,
            "num_steps": visit.num_steps,
        },
    }


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _line(event: dict[str, Any]) -> bytes:
    return msgspec.json.encode(event) + b",\n"
