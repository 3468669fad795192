"""The queue that is mended is the queue that is sorted anew, whatever happens between two plans."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from epe.messages import Stage
from epe.planning.backlog import Backlog
from epe.planning.costs import Workload
from epe.planning.pace import Paces
from epe.planning.queue import Queue
from epe.planning.settings import ElasticSettings
from epe.planning.view import TrajectoryView
from tests.planning.views import SIZES, costs, trajectory, view

SETTINGS = ElasticSettings(widths=(1, 2, 4), starvation_s=5.0, max_looked_at=6)
NAMES = tuple("abcdefghij")
TABLE = costs()
PACES = Paces(TABLE, widths=SETTINGS.widths, num_ranks=4)

requests = st.builds(
    trajectory,
    st.sampled_from(NAMES),
    workload=st.builds(Workload, tokens=st.sampled_from(SIZES), conditions=st.just(2)),
    stage=st.sampled_from([Stage.ENCODE, Stage.DENOISE, Stage.DECODE]),
    step=st.integers(0, 19),
    deadline_s=st.none() | st.floats(0.1, 60),
    served_s=st.floats(-10, 20),
    ready_s=st.floats(0, 20),
    priority=st.integers(0, 1),
    num_leases=st.integers(0, 2),
)
# What happens at a moment: requests come or change (a view), or end (a name).
moments = st.lists(
    st.tuples(st.floats(0, 5), st.lists(requests | st.sampled_from(NAMES), max_size=6)), max_size=12
)


def looked_at(queue: Queue) -> list[list[str]]:
    kinds = (queue.hopeful, queue.late, queue.undated, queue.starving, queue.due([]))
    return [[t.request_id for t in kind] for kind in kinds]


@settings(max_examples=150, deadline=None)
@given(moments)
def test_a_queue_that_is_mended_is_the_queue_that_is_sorted_anew(happenings):
    backlog, mended, now_s = Backlog(), Queue(SETTINGS), 0.0
    for gap_s, changes in happenings:
        now_s += gap_s
        for change in changes:
            if isinstance(change, TrajectoryView):
                backlog.put(change)
            else:
                backlog.drop(change)
        mended.show(view(now_s=now_s, costs=TABLE, trajectories=backlog), PACES)
        sorted_anew = Queue(SETTINGS)
        sorted_anew.show(view(*backlog, now_s=now_s, costs=TABLE), PACES)
        assert looked_at(mended) == looked_at(sorted_anew)


def test_thousands_of_late_requests_do_not_hide_one_that_can_be_in_time():
    """The earliest deadlines are those that have passed: only these were looked at, and new requests came too late."""
    late = [trajectory(f"late{i}", deadline_s=0.01 * i) for i in range(100)]
    queue = Queue(SETTINGS)
    queue.show(view(*late, trajectory("fresh", deadline_s=60.0), now_s=1.0, costs=TABLE), PACES)
    assert [t.request_id for t in queue.hopeful] == ["fresh"]
    assert len(queue.late) == SETTINGS.max_looked_at


def test_what_takes_a_minute_does_not_starve_every_few_seconds():
    """Late videos were served every half a minute, on wide lanes for which others stood still."""
    served = {"served_s": -60.0, "stage": Stage.ENCODE}
    large = Workload(tokens=16384, conditions=2)
    queue = Queue(SETTINGS)
    waiting = trajectory("small", **served), trajectory("large", workload=large, **served)
    queue.show(view(*waiting, now_s=0.0, costs=TABLE), PACES)
    assert [t.request_id for t in queue.starving] == ["small"]
    queue.show(view(*waiting, now_s=60.0, costs=TABLE), PACES)
    assert [t.request_id for t in queue.starving] == ["small", "large"]
    assert [t.request_id for t in queue.due([])] == ["small"]


def test_whoever_looks_too_seldom_sorts_anew():
    backlog = Backlog()
    backlog.put(trajectory("first"))
    edition = backlog.edition
    assert list(backlog.since(edition)) == []
    for number in range(2 * Backlog.MAX_CHANGES + 1):
        backlog.put(trajectory("again", step=number % 20))
    assert backlog.since(edition) is None
    assert list(backlog.since(backlog.edition - 1)) == ["again"]
    assert [t.request_id for t in backlog] == ["first", "again"]
    assert backlog[-1].request_id == "again"
