"""The backlog that a policy sees is what a walk over all requests would find."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from epe.actors.in_work import InWork
from epe.actors.trajectory import Trajectory
from epe.messages import Failure, FailureKind, Request, Stage
from epe.planning.costs import Workload
from epe.planning.prediction import kind_of
from tests.actors.cluster import request

ROOM = 3
OVER = Failure(kind=FailureKind.CANCELLED, message="it was cancelled")


def trajectory(books: InWork, wanted: Request) -> Trajectory:
    workload = Workload(tokens=1024, conditions=1)
    return Trajectory(wanted, workload, now_s=0.0, for_client=True, changed=books.touch)


def begin(books: InWork, name: str) -> None:
    found = books[name]
    found.lane, found.stage = (0,), Stage.DENOISE
    books.touch(found)


def expected(books: InWork) -> set[str]:
    """Those that have begun, and of those that wait as many as there is room for, larger priority first."""
    begun = [each for each in books.values() if each.lane]
    waiting = sorted(
        (each for each in books.values() if not each.lane), key=lambda each: -each.request.priority
    )
    shown = [*begun, *waiting[: max(0, ROOM - len(begun))]]
    return {each.request.id for each in shown if each.wants_lease}


events = st.lists(
    st.tuples(st.sampled_from(["come", "begin", "cancel", "end"]), st.integers(0, 9), st.integers(0, 2)),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(events)
def test_the_backlog_is_what_a_walk_over_all_requests_would_find(happenings):
    books = InWork(max_inflight=ROOM)
    for what, number, priority in happenings:
        name = f"q{number}"
        if what == "come" and name not in books:
            books[name] = trajectory(books, request(name, priority=priority))
        elif what == "begin" and name in books:
            begin(books, name)
        elif what == "cancel" and name in books:
            books[name].ending = OVER
        elif what == "end" and name in books:
            del books[name]
        assert {t.request_id for t in books.backlog} == expected(books)
        assert books.num_waiting == sum(not each.lane for each in books.values())
        check_counts(books)


def check_counts(books: InWork) -> None:
    """What is ahead of the last one of each priority is what a walk would count, whether played or summed."""
    waiting = [each for each in books.values() if each.wants_lease and not each.lane]
    begun = [each for each in books.values() if each.wants_lease and each.lane]
    for last in {each.request.priority: each for each in waiting}.values():
        before = [
            each for each in waiting if each.request.priority >= last.request.priority and each is not last
        ]
        for limit in (0, 2, 99):
            ahead = books.ahead_of(last, limit=limit)
            everyone = Counter(kind_of(each.view) for each in (*begun, *before))
            assert Counter(ahead.others) + Counter(ahead.first) == everyone
            first = in_turn(begun, before)[:limit]
            assert list(ahead.first) == [kind_of(books[name].view) for name in first]
    assert books.oldest is (books[in_turn(begun, waiting)[0]] if begun or waiting else None)


def in_turn(begun: list[Trajectory], waiting: list[Trajectory]) -> list[str]:
    ordered = [*begun, *sorted(waiting, key=lambda each: -each.request.priority)]
    return [each.request.id for each in ordered]
