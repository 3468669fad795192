"""Faults of plans, the static policies, forecasts, the warm-up program and the split of a lane."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from epe.config.load import build_stage
from epe.errors import BadSetting
from epe.families import FAMILIES, family
from epe.messages import Split, Stage
from epe.planning.calibration import Program, Round, tour
from epe.planning.costs import CostKey, CostTable, Workload
from epe.planning.forecast import play
from epe.planning.static import StaticCp, StaticDp
from epe.planning.view import Assignment
from epe.planning.work import split_of
from tests.planning.contract import fault_of
from tests.planning.views import trajectory, view


def plan(*ranks: int, steps: int = 1, name: str = "a") -> Assignment:
    return Assignment(request_id=name, ranks=ranks, num_steps=steps)


@pytest.mark.parametrize(
    ("assignments", "word"),
    [
        ((plan(),), "empty"),
        ((plan(1, 1),), "twice"),
        ((plan(7),), "do not exist"),
        ((plan(0), plan(0, name="b")), "two lanes"),
        ((plan(0), plan(1)), "planned twice"),
        ((plan(0, name="unknown"),), "not waiting"),
        ((plan(0, steps=0),), "1 to 20 remain"),
        ((plan(0, steps=21),), "1 to 20 remain"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_named(assignments, word):
    assert word in fault_of(view(trajectory("a"), trajectory("b")), assignments)


def test_a_lane_on_which_some_rank_would_have_too_few_rows_is_a_fault():
    small = trajectory("a", workload=Workload(tokens=12, conditions=2))
    assert "at most 3" in fault_of(view(small), (plan(0, 1, 2, 3),))
    assert fault_of(view(small), (plan(0, 1, 2),)) is None


def test_a_sound_plan_has_no_fault():
    assert fault_of(view(trajectory("a"), trajectory("b")), (plan(0, 2), plan(1, name="b"))) is None


def test_static_cp_draws_one_request_at_a_time_over_the_world():
    policy = StaticCp(widths=(1, 2, 4), pulse_s=1.0, pulse_steps=1)
    (only,) = policy.plan(view(trajectory("late", arrival_s=1.0), trajectory("early", arrival_s=0.0)))
    assert (only.request_id, only.ranks) == ("early", (0, 1, 2, 3))


def test_static_cp_ends_what_it_began_before_a_larger_priority():
    begun = trajectory("begun", lane=(0, 1, 2, 3))
    (only,) = StaticCp(widths=(1, 2, 4), pulse_s=1.0, pulse_steps=1).plan(
        view(begun, trajectory("vip", priority=9))
    )
    assert only.request_id == "begun"


def test_static_dp_keeps_a_request_on_its_rank():
    running = trajectory("running", lane=(2,))
    assignments = StaticDp(pulse_s=1.0, pulse_steps=1).plan(view(running, trajectory("new")))
    assert {a.request_id: a.ranks for a in assignments} == {"running": (2,), "new": (0,)}


def test_static_dp_gives_the_next_request_to_a_rank_that_is_about_to_be_free_unless_another_one_idles():
    policy = StaticDp(pulse_s=1.0, pulse_steps=1)
    ending = {0: 0.03, 1: 0.02, 2: 9.0, 3: 9.0}
    (only,) = policy.plan(view(trajectory("new"), free_s=ending, leases=dict.fromkeys(ending, 1)))
    assert only.ranks == (1,)
    del ending[3]
    (only,) = policy.plan(view(trajectory("new"), free_s=ending, leases=dict.fromkeys(ending, 1)))
    assert only.ranks == (3,)


def test_playing_the_queue_puts_each_job_on_the_ranks_that_are_free_first():
    assert play([0.0, 0.0], [(1, 5.0), (1, 1.0), (2, 1.0)]) == [5.0, 1.0, 6.0]


def of_tasks(costs: CostTable | None = None, **fields) -> list[Round]:
    """The rounds of a program that measure tasks."""
    rounds = Program(family=family("zimage"), num_steps=3, **fields).rounds(costs or CostTable())
    return [each for each in rounds if each.measures == "tasks"]


def test_the_warm_up_uses_all_lanes_of_a_width_at_once():
    rounds = of_tasks(sizes=((512, 256, 1),), widths=(1, 2, 4), world=4)
    assert [sorted(lane for (lane,) in each.paths.values()) for each in rounds] == [
        [(0,), (1,), (2,), (3,)],
        [(0, 1), (2, 3)],
        [(0, 1, 2, 3)],
    ]
    assert {request.num_steps for each in rounds for request in each.requests} == {3}


def test_the_warm_up_leaves_out_lanes_that_are_too_wide_for_a_size():
    rounds = of_tasks(sizes=((64, 64, 1),), widths=(1, 2, 4, 8), world=8)
    lanes = [lane for each in rounds for (lane,) in each.paths.values()]
    assert [len(lane) for lane in lanes] == [1] * 8 + [2] * 4 + [4] * 2


def known_costs(*widths: int) -> CostTable:
    """A table that an earlier service has kept of 512x256."""
    tasks = [(Stage.ENCODE, 1, 2), (Stage.DECODE, 1, 1), *((Stage.DENOISE, width, 2) for width in widths)]
    keys = [CostKey(stage=stage, tokens=512, width=width, conditions=two) for stage, width, two in tasks]
    return CostTable(dict.fromkeys(keys, 0.1))


def test_what_is_known_is_not_measured_again():
    program = {"sizes": ((512, 256, 1),), "widths": (1, 2, 4), "world": 4}
    (left,) = of_tasks(known_costs(1, 4), **program)
    assert sorted(left.paths.values()) == [((0, 1),), ((2, 3),)]
    assert of_tasks(known_costs(1, 2, 4), **program) == []


def test_what_is_known_is_drawn_twice_where_kernels_are_to_be_used_before_a_client_comes():
    """A decode is captured when it has come twice: measured before, two ranks seemed to take twice as long for it. And
    solvers of second order do something for the first time in their third step."""
    program = Program(family=family("zimage"), sizes=((512, 256, 1),), widths=(1, 2, 4), world=4, num_steps=3)
    rounds = list(program.rounds(known_costs(1, 2, 4), use_kernels=True))
    assert [each.measures for each in rounds] == ["nothing"] * 6 + ["moves"]
    assert {request.num_steps for each in rounds[:6] for request in each.requests} == {3}


def test_what_a_device_does_at_its_first_call_is_in_no_figure():
    program = Program(
        family=family("zimage"), sizes=((512, 256, 1),), widths=(1, 2), world=2, num_steps=3, batches=(2,)
    )
    rounds = list(program.rounds(CostTable(), use_kernels=True))
    shown = [(each.measures, len(next(iter(each.paths.values()))[0]), len(each.requests)) for each in rounds]
    ones = [*[("nothing", 1, 2)] * 2, ("tasks", 1, 2)]
    pairs = [*[("nothing", 2, 1)] * 2, ("tasks", 2, 1)]
    assert shown == [*ones, *pairs, ("tasks", 1, 4), ("tasks", 2, 2), ("moves", 1, 1)]
    ids = [request.id for each in rounds for request in each.requests]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("world", "num_times"), [(2, 3), (3, 3), (4, 3), (5, 3), (6, 2), (8, 1)])
def test_the_tour_passes_from_every_rank_to_every_other_equally_often(world: int, num_times: int):
    moves = Counter(pairwise(tour(world)))
    pairs = [(a, b) for a in range(world) for b in range(world) if a != b]
    assert moves == dict.fromkeys(pairs, num_times)


def test_the_tour_of_a_video_has_few_frames():
    program = Program(family=family("wan"), sizes=((480, 832, 81),), widths=(1,), world=2, num_steps=3)
    frames = {each.measures: {r.num_frames for r in each.requests} for each in program.rounds(CostTable())}
    assert frames == {"tasks": {81}, "moves": {1}}


def test_the_tour_of_many_ranks_is_short():
    assert len(tour(64)) == 128
    assert set(tour(64)) == set(range(64))


def test_a_world_that_cannot_move_states_has_no_tour():
    alone = Program(family=family("zimage"), sizes=((512, 256, 1),), widths=(1,), world=1, num_steps=3)
    assert [each.measures for each in alone.rounds(CostTable())] == ["tasks"]
    (still,) = (each for each in FAMILIES.values() if not each.migratable)
    rounds = Program(family=still, sizes=((512, 512, 1),), widths=(2,), world=2, num_steps=3).rounds(
        CostTable()
    )
    assert [each.measures for each in rounds] == ["tasks"]


def test_the_warm_up_draws_with_the_guidance_of_requests_that_name_none():
    (own,), (stages,) = (
        of_tasks(sizes=((512, 512, 1),), widths=(1,), world=1, guidance_scale=scale) for scale in (None, 0.0)
    )
    assert own.requests[0].guidance_scale == family("zimage").defaults.guidance_scale
    assert stages.requests[0].guidance_scale == 0.0


@pytest.mark.parametrize(
    ("width", "conditions", "degree", "split"),
    [
        (4, 2, 2, Split(cfg=2, cp=2)),
        (3, 2, 2, Split(cfg=1, cp=3)),
        (4, 1, 2, Split(cfg=1, cp=4)),
        (4, 2, 1, Split(cfg=1, cp=4)),
        (1, 2, 2, Split(cfg=1, cp=1)),
    ],
)
def test_only_an_even_lane_of_a_guided_request_splits_guidance(width, conditions, degree, split):
    assert split_of(width, conditions=conditions, cfg_parallel_degree=degree) == split


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "model_index.json").write_text('{"_class_name": "ZImagePipeline"}')
    return {
        "name": "image",
        "factory": "zimage",
        "gpu": [0, 1],
        "parallelism": {"cp": {"world_size": 2}, "scheduler": {}},
        "factory_args": {"model_path": str(tmp_path)},
    }


def test_a_policy_of_ones_own_is_found_by_its_dotted_path(settings):
    from epe.planning.policies import make_policy

    settings["parallelism"]["scheduler"]["policy"] = "tests.planning.own_policy.Lazy"
    policy = make_policy(build_stage(settings).parallelism.scheduler, widths=(1, 2))
    assert policy.plan(view()) == ()


@pytest.mark.parametrize("path", ["nowhere.Policy", "epe.planning.static.StaticDp"])
def test_a_policy_that_is_nowhere_or_wants_arguments_is_an_error_with_its_path(settings, path: str):
    from epe.planning.policies import make_policy

    settings["parallelism"]["scheduler"]["policy"] = path
    with pytest.raises(BadSetting, match=r"parallelism\.scheduler\.policy"):
        make_policy(build_stage(settings).parallelism.scheduler, widths=(1, 2))


def test_static_cp_keeps_to_allowed_widths_where_the_world_is_too_wide_for_a_size():
    small = trajectory("small", workload=Workload(tokens=12, conditions=1))
    (only,) = StaticCp(widths=(1, 2, 4), pulse_s=1.0, pulse_steps=1).plan(view(small))
    assert small.workload.max_width == 3
    assert only.ranks == (0, 1)
