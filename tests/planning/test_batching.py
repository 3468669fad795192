"""Who rides along with whom: pure decisions on views."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epe.messages import Stage
from epe.planning.batching import with_partners
from epe.planning.calibration import batch_sizes
from epe.planning.costs import CostTable, Workload
from epe.planning.elastic import Elastic, ElasticSettings
from epe.planning.view import Assignment, TrajectoryView, View
from epe.planning.work import cost_key
from tests.planning.contract import fault_of
from tests.planning.views import costs, trajectory, view

WORKLOAD = Workload(tokens=1024, conditions=2, state_bytes=100_000)


def with_batches(*, each: float = 0.25, sizes: tuple[int, ...] = (2, 4)) -> CostTable:
    """A batch of n takes 1 + `each` (n - 1) times as long as one request."""
    table = costs()
    for key, seconds in list(table.measured.items()):
        if key.stage is Stage.DENOISE:
            for size in sizes:
                table.enter(replace(key, batch=size), seconds * (1 + each * (size - 1)))
    return table


def led(name: str = "a", *, ranks: tuple[int, ...] = (0,), steps: int = 4) -> Assignment:
    return Assignment(request_id=name, ranks=ranks, num_steps=steps)


def joined(
    *trajectories: TrajectoryView,
    plan: tuple[Assignment, ...] = (led(),),
    table: CostTable | None = None,
    max_batch: int = 4,
) -> tuple[Assignment, ...]:
    seen = view(*trajectories, costs=table or with_batches())
    return with_partners(seen, plan, max_batch=max_batch)


A, B, C, D = (trajectory(name, arrival_s=place, shape=(512, 512)) for place, name in enumerate("abcd"))


def test_requests_alike_that_got_no_lane_ride_along() -> None:
    (lease,) = joined(A, B)
    assert lease.partners == ("b",)


def test_a_batch_takes_as_long_as_the_lease_would_have() -> None:
    # 4 steps of one in the time of 3.2 steps of two.
    assert joined(A, B)[0].num_steps == 3
    assert joined(A, B, plan=(led(steps=1),))[0].num_steps == 1


def test_a_batch_ends_where_the_first_of_it_has_no_steps_left() -> None:
    assert joined(A, replace(B, step=18))[0].num_steps == 2


def test_only_sizes_that_were_measured_are_made() -> None:
    assert joined(A, B, C)[0].partners == ("b",)
    assert joined(A, B, C, D)[0].partners == ("b", "c", "d")
    assert joined(A, B, table=costs())[0].partners == ()


def test_the_stage_bounds_the_batch() -> None:
    assert joined(A, B, C, D, max_batch=2)[0].partners == ("b",)
    assert joined(A, B, C, D, max_batch=1)[0].partners == ()


@pytest.mark.parametrize(("each", "partners"), [(0.45, ("b",)), (0.55, ())])
def test_a_batch_is_made_where_requests_end_sooner_in_the_mean(
    each: float, partners: tuple[str, ...]
) -> None:
    # Two of T seconds after each other end after 1.5 T in the mean.
    assert joined(A, B, table=with_batches(each=each))[0].partners == partners


@pytest.mark.parametrize(
    "other",
    [
        replace(B, shape=(256, 1024)),
        replace(B, workload=replace(WORKLOAD, conditions=1)),
        replace(B, alone=True),
        replace(B, stage=Stage.DECODE),
        replace(B, num_leases=2),
        replace(B, num_leases=1, ready_s=0.5),
    ],
    ids=["another shape", "no guidance", "to be alone", "decoding", "with two leases", "late"],
)
def test_who_is_not_alike_or_not_ready_does_not_ride_along(other: TrajectoryView) -> None:
    assert joined(A, other) == (led(),)


def test_who_has_a_lane_of_its_own_keeps_it() -> None:
    plan = (led("a"), led("b", ranks=(1,)))
    assert joined(A, B, plan=plan) == plan


def test_a_request_rides_with_one_other_only() -> None:
    plan = (led("a"), led("b", ranks=(1,)))
    assert [lease.partners for lease in joined(A, B, C, plan=plan)] == [("c",), ()]


def test_the_most_urgent_ride_first() -> None:
    urgent, dated = replace(D, priority=1), replace(C, deadline_s=1e4)
    assert joined(A, B, dated, urgent, table=with_batches(sizes=(2,)))[0].partners == ("d",)
    assert joined(A, B, dated, table=with_batches(sizes=(2,)))[0].partners == ("c",)


def test_nobody_rides_along_where_a_deadline_would_be_missed_that_can_be_kept() -> None:
    table = with_batches()
    alone_s = 20 * table.seconds(cost_key(WORKLOAD, Stage.DENOISE, 1))
    assert joined(replace(A, deadline_s=1.1 * alone_s), B)[0].partners == ()
    assert joined(replace(A, deadline_s=1.4 * alone_s), B)[0].partners == ("b",)
    # It is late anyway.
    assert joined(replace(A, deadline_s=0.5 * alone_s), B)[0].partners == ("b",)


def test_a_request_that_would_ride_along_is_encoded_first_on_a_rank_of_the_lane() -> None:
    unread = replace(B, stage=Stage.ENCODE, holders=())
    assert joined(A, unread, plan=(led(ranks=(2, 3)),)) == (Assignment(request_id="b", ranks=(2,)),)
    # Encoded, and its lease ends where the lane's other leases end.
    read = replace(B, num_leases=1, ready_s=0.02)
    seen = view(A, read, costs=with_batches(), leases={2: 1}, free_s={2: 0.02})
    (lease,) = with_partners(seen, (led(ranks=(2, 3)),), max_batch=4)
    assert lease.partners == ("b",)


def test_without_memory_for_it_no_batch_is_made() -> None:
    table = with_batches()
    table.memory.limit_bytes = 2**30
    key = cost_key(WORKLOAD, Stage.DENOISE, 1)
    table.memory.enter(key, 2**29)
    table.memory.enter(replace(key, batch=2), 2**31)
    assert joined(A, B, table=table)[0].partners == ()


def test_batches_are_measured_by_doubling_up_to_the_largest() -> None:
    assert [batch_sizes(size) for size in (1, 2, 3, 6, 8)] == [(), (2,), (2, 3), (2, 4, 6), (2, 4, 8)]


@st.composite
def queues(draw: st.DrawFn) -> tuple[TrajectoryView, ...]:
    def one(place: int) -> TrajectoryView:
        encoded = draw(st.booleans())
        return trajectory(
            f"q{place}",
            shape=draw(st.sampled_from([(512, 512), (256, 1024)])),
            stage=Stage.DENOISE if encoded else Stage.ENCODE,
            step=draw(st.integers(0, 19)) if encoded else 0,
            lane=(draw(st.integers(0, 3)),) if encoded else (),
            holders=(0,) if encoded else (),
            arrival_s=float(place),
            deadline_s=draw(st.none() | st.floats(0.1, 30)),
            priority=draw(st.integers(0, 1)),
            alone=draw(st.booleans()),
        )

    return tuple(one(place) for place in range(draw(st.integers(1, 12))))


@given(queues(), st.integers(1, 6))
def test_whatever_the_queue_the_plan_stays_sound(queue: tuple[TrajectoryView, ...], max_batch: int) -> None:
    seen: View = view(*queue, costs=with_batches(sizes=(2, 3, 4, 6)))
    plan = Elastic(ElasticSettings(widths=(1, 2, 4))).plan(seen)
    batched = with_partners(seen, plan, max_batch=max_batch)
    assert fault_of(seen, batched) is None
    assert all(len(lease.partners) < max_batch for lease in batched)
    assert {r for lease in batched for r in lease.ranks} <= {r for lease in plan for r in lease.ranks}
    assert bool(batched) == bool(plan)
