"""What any policy must keep, whoever wrote it. Use it on your own: docs/policies.md shows how.

`make` gives a fresh policy for a world of `WORLD` ranks and the lane widths `WIDTHS`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from epe.messages import Stage
from epe.planning.costs import CostKey, CostTable, Workload
from epe.planning.faults import fault_among
from epe.planning.view import Assignment, Policy, RankView, TrajectoryView, View
from epe.simulator.arrivals import Arrival, request_of
from epe.simulator.engine import simulate
from epe.simulator.machine import Physics
from epe.simulator.outcome import Outcome

Make = Callable[[], Policy]

WORLD = 4
WIDTHS = (1, 2, 4)
SIZES = (1024, 4096, 16384)

plenty = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
some = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check_policy(make: Make) -> None:
    """All of the contract."""
    check_every_plan_is_sound(make)
    check_nothing_waits_while_all_ranks_idle(make)
    check_every_request_ends(make)


def fault_of(view: View, plan: tuple[Assignment, ...]) -> str | None:
    """What is wrong with a plan, in one sentence, or None."""
    return fault_among({t.request_id: t for t in view.trajectories}, plan, open_ranks=view.open_ranks)


def check_every_plan_is_sound(make: Make, *, search: settings = plenty) -> None:
    """In whatever state the world is: no fault, and the same view gives the same plan, from a fresh policy too."""

    @search
    @given(views())
    def sound(view: View) -> None:
        policy = make()
        plan = policy.plan(view)
        assert fault_of(view, plan) is None
        assert policy.plan(view) == plan
        assert make().plan(view) == plan

    sound()


def check_nothing_waits_while_all_ranks_idle(make: Make) -> None:
    """An idle world and a request that waits: something is leased."""

    @plenty
    @given(st.lists(new_requests(), min_size=1, max_size=20, unique_by=lambda t: t.request_id))
    def busy(waiting: list[TrajectoryView]) -> None:
        assert make().plan(world_view({}, tuple(waiting)))

    busy()


def check_every_request_ends(make: Make) -> None:
    """In a closed loop each request runs each of its tasks once, in order, on ranks of its own, and finishes; the
    simulator itself refuses a policy that lets work wait on an idle world."""

    @some
    @given(workloads(), st.sampled_from([0.0, 0.05]))
    def ends(arrivals: list[Arrival], dispatch_s: float) -> None:
        physics = Physics(dispatch_s=dispatch_s)
        outcome = simulate(
            arrivals, policy=make(), name="contract", costs=costs(), world_size=WORLD, physics=physics
        )
        assert {record.request_id: record.end for record in outcome.records} == {
            arrival.request.id: "finished" for arrival in arrivals
        }
        _assert_tasks_in_order(arrivals, outcome)
        _assert_no_rank_twice(outcome)

    ends()


def _assert_tasks_in_order(arrivals: list[Arrival], outcome: Outcome) -> None:
    tasks: defaultdict[str, list[tuple[Stage, int, int]]] = defaultdict(list)
    for work in sorted(outcome.work, key=lambda work: work.begin_s):
        tasks[work.request_id].append((work.stage, work.first_step, work.num_steps))
    for arrival in arrivals:
        first, *steps, last = tasks[arrival.request.id]
        assert (first[0], last[0]) == (Stage.ENCODE, Stage.DECODE)
        assert all(stage is Stage.DENOISE for stage, _, _ in steps)
        reached = [0]
        for _, first_step, num_steps in steps:
            assert first_step == reached[-1]
            reached.append(first_step + num_steps)
        assert reached[-1] == arrival.request.num_steps


def _assert_no_rank_twice(outcome: Outcome) -> None:
    until_s = [0.0] * WORLD
    for work in sorted(outcome.work, key=lambda work: work.begin_s):
        for rank in work.ranks:
            assert work.begin_s >= until_s[rank] - 1e-9
            until_s[rank] = work.end_s


# --- what is drawn ---


def costs() -> CostTable:
    """Small sizes gain nothing by more ranks, large ones nearly all."""
    measured: dict[CostKey, float] = {}
    for tokens, speed_up in zip(SIZES, (-0.05, 0.7, 0.95), strict=True):
        for width in range(1, WORLD + 1):
            step = CostKey(stage=Stage.DENOISE, tokens=tokens, width=width)
            measured[step] = 1e-4 * tokens / width**speed_up
            measured[CostKey(stage=Stage.ENCODE, tokens=tokens, width=width)] = 0.05
            measured[CostKey(stage=Stage.DECODE, tokens=tokens, width=width)] = 2e-5 * tokens
    return CostTable(measured)


def world_view(busy: dict[int, tuple[int, float]], trajectories: tuple[TrajectoryView, ...]) -> View:
    """At second 0. `busy` has the leases of a rank and when they end."""
    ranks = [(rank, *busy.get(rank, (0, 0.0))) for rank in range(WORLD)]
    return View(
        now_s=0.0,
        ranks=tuple(RankView(rank=rank, num_leases=leases, free_s=free_s) for rank, leases, free_s in ranks),
        trajectories=trajectories,
        costs=costs(),
    )


def new_requests() -> st.SearchStrategy[TrajectoryView]:
    """Requests that have had no lease."""
    return st.builds(
        TrajectoryView,
        request_id=st.uuids().map(str),
        workload=st.builds(Workload, tokens=st.sampled_from(SIZES), conditions=st.just(1)),
        stage=st.just(Stage.ENCODE),
        step=st.just(0),
        num_steps=st.integers(1, 50),
        arrival_s=st.floats(-10, 0),
        served_s=st.floats(-100, 0),
        ready_s=st.just(0.0),
        deadline_s=st.none() | st.floats(-5, 100),
        priority=st.integers(-2, 2),
        client_id=st.sampled_from(["", "ada", "ben"]),
        lane=st.just(()),
        holders=st.just(()),
        num_leases=st.just(0),
    )


@st.composite
def views(draw: st.DrawFn) -> View:
    """A world in the middle of its work: lanes that run or are about to, decodes that nobody waits for, requests
    that are parked between two steps, and new ones."""
    waiting = draw(st.lists(new_requests(), max_size=12, unique_by=lambda t: t.request_id))
    ranks = draw(st.permutations(range(WORLD)))
    busy: dict[int, tuple[int, float]] = {}
    trajectories = []
    for trajectory in waiting:
        lane = tuple(sorted(ranks[: draw(st.sampled_from(WIDTHS))]))
        num_leases, end_s = draw(st.integers(0, 2)), draw(st.floats(0.0, 3.0))
        kind = draw(st.sampled_from(["new", "parked", "running"]))
        if kind == "parked":
            trajectories.append(_later(draw, trajectory, lane, num_leases=0, ready_s=0.0))
        elif kind == "running" and num_leases and not busy.keys() & set(lane):
            ranks = ranks[len(lane) :] or ranks
            busy |= dict.fromkeys(lane, (num_leases, end_s))
            trajectories.append(_later(draw, trajectory, lane, num_leases=num_leases, ready_s=end_s))
        else:
            trajectories.append(trajectory)
    for rank in draw(st.sets(st.integers(0, WORLD - 1), max_size=2)) - busy.keys():
        busy[rank] = (1, draw(st.floats(0.0, 3.0)))
    return world_view(busy, tuple(trajectories))


def _later(
    draw: st.DrawFn, trajectory: TrajectoryView, lane: tuple[int, ...], *, num_leases: int, ready_s: float
) -> TrajectoryView:
    """The same request after some of its work."""
    step = draw(st.integers(0, trajectory.num_steps))
    return replace(
        trajectory,
        stage=Stage.DECODE if step == trajectory.num_steps else Stage.DENOISE,
        step=step,
        lane=lane,
        holders=lane,
        num_leases=num_leases,
        ready_s=ready_s,
    )


@st.composite
def workloads(draw: st.DrawFn) -> list[Arrival]:
    """A few requests at irregular times."""
    arrivals, now_s = [], 0.0
    for index in range(draw(st.integers(1, 12))):
        now_s += draw(st.sampled_from([0.0, 0.01, 0.3, 2.0]))
        request = request_of(
            f"request-{index}",
            height=512,
            width=512,
            num_frames=1,
            num_steps=draw(st.integers(1, 8)),
            conditions=1,
            deadline_s=draw(st.none() | st.sampled_from([0.1, 1.0, 10.0])),
            priority=draw(st.integers(-1, 1)),
        )
        request = replace(request, client_id=draw(st.sampled_from(["", "ada", "ben"])))
        workload = Workload(tokens=draw(st.sampled_from(SIZES)), conditions=1, state_bytes=100_000)
        arrivals.append(
            Arrival(arrival_s=now_s, request=request, workload=workload, size="any", single_s=1.0, best_s=1.0)
        )
    return arrivals
