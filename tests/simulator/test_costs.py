"""Cost sets: what was published is what is looked up, and what was not is refused."""

from __future__ import annotations

import json

import pytest

from epe.errors import BadSetting
from epe.messages import Stage
from epe.planning.cost_set import cost_set_of
from epe.planning.costs import CostKey, CostTable, Workload
from epe.simulator.costs import read_cost_set
from epe.simulator.published import PUBLISHED
from tests.simulator.scenes import LARGE, SMALL, machine

# Copied from the sources a second time, so that a slip in one place is seen.
QWEN_STEP_MS = {
    "512x512": {1: 155, 2: 161, 4: 172},
    "1024x1024": {1: 605, 2: 350, 4: 207},
    "1536x1536": {1: 1557, 2: 880, 4: 464},
}
CHITU_LOOP_S = {
    "flux2-klein": (4, {1: 1.358, 2: 0.74, 4: 0.409, 8: 0.278}),
    "flux1-dev": (50, {1: 38.027, 2: 21.018, 4: 11.58, 8: 7.852}),
    "qwen-image": (50, {1: 138.819, 2: 69.569, 4: 41.325, 8: 25.688}),
    "wan": (50, {1: 311.412, 2: 155.658, 4: 80.912, 8: 42.939}),
}
XDIT_WHOLE_S = {
    "schnell-1024": {1: 1.88, 2: 1.25, 4: 0.96, 8: 0.82},
    "schnell-2048": {1: 10.31, 2: 5.42, 4: 3.4, 8: 2.4},
    "dev-1024": {1: 12.77, 2: 8.16, 4: 5.55, 8: 4.13},
    "dev-2048": {1: 65.0, 2: 37.7, 4: 20.6, 8: 11.0},
}


def seconds(name: str, size: str, stage: Stage, width: int) -> float | None:
    found = PUBLISHED[name]()
    (chosen,) = (each for each in found.sizes if each.name == size)
    return found.seconds(chosen.workload, stage, width)


def test_qwen_steps_are_gf_dits():
    for size, row in QWEN_STEP_MS.items():
        for width, ms in row.items():
            assert seconds("qwen-h20", size, Stage.DENOISE, width) == pytest.approx(ms / 1e3)


def test_the_four_models_loops_are_chitubenchs():
    for size, (steps, row) in CHITU_LOOP_S.items():
        for width, whole_s in row.items():
            assert steps * seconds("four-models", size, Stage.DENOISE, width) == pytest.approx(whole_s)
    assert seconds("four-models", "flux2-klein", Stage.DECODE, 8) == 0.044
    assert seconds("four-models", "qwen-image", Stage.DECODE, 8) == 0.225


def test_flux_requests_take_what_xdit_shows():
    for size, row in XDIT_WHOLE_S.items():
        steps = 4 if size.startswith("schnell") else 28
        for width, whole_s in row.items():
            stages = seconds("flux", size, Stage.ENCODE, 1) + seconds("flux", size, Stage.DECODE, 1)
            assert stages + steps * seconds("flux", size, Stage.DENOISE, width) == pytest.approx(whole_s)


def test_wan_steps_are_the_formula_also_between_its_anchors():
    assert seconds("wan", "720p-81f", Stage.DENOISE, 1) == pytest.approx(0.1323e-3 * 75600)
    assert seconds("wan", "720p-81f", Stage.DENOISE, 8) == pytest.approx(0.1323e-3 * 75600 / 5.88 + 0.14)
    assert seconds("wan", "720p-81f", Stage.DECODE, 1) == pytest.approx(6.8, abs=0.05)
    between = Workload(tokens=50_000, conditions=1)
    formula_s = 0.1323e-3 * 50_000 / 3.33 + 0.06
    assert PUBLISHED["wan"]().seconds(between, Stage.DENOISE, 4) == pytest.approx(formula_s, rel=0.01)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_set_names_its_sources_and_covers_its_sizes(name: str):
    found = PUBLISHED[name]()
    assert found.name == name
    assert len(found.sources) >= 3
    table = found.table([size.workload for size in found.sizes], world_size=8)
    stages = {(key.stage, key.width) for key in table.measured}
    assert {(Stage.DENOISE, width) for width in found.widths(8)} <= stages
    assert {(Stage.DECODE, width) for width in range(1, 9)} <= stages
    assert found.widths(3) == (1, 2)


def test_a_decode_on_more_ranks_than_were_measured_costs_what_the_widest_row_says():
    assert seconds("four-models", "flux1-dev", Stage.DECODE, 2) == 0.177
    assert seconds("four-models", "flux1-dev", Stage.DECODE, 8) == 0.072
    assert seconds("four-models", "flux1-dev", Stage.DENOISE, 3) is None


@pytest.mark.parametrize(
    ("name", "workload", "words"),
    [
        ("qwen-h20", Workload(tokens=16384, conditions=1), "covers from 1024 to 9216 tokens"),
        ("qwen-h20", Workload(tokens=512, conditions=1), "covers from 1024"),
        ("qwen-h20", Workload(tokens=4096, conditions=2), "2 guidance branches"),
        ("flux", Workload(tokens=9216, conditions=1, model="dev"), "covers 4096, 16384 tokens"),
        ("flux", Workload(tokens=4096, conditions=1, model="pro"), "model 'pro'"),
    ],
)
def test_a_size_outside_the_range_is_refused_not_guessed(name: str, workload: Workload, words: str):
    with pytest.raises(BadSetting) as caught:
        PUBLISHED[name]().table([workload], world_size=4)
    assert words in str(caught.value)


def test_between_two_sizes_a_step_lies_on_a_line_in_the_logarithms():
    middle = Workload(tokens=2048, conditions=1)
    expected_s = (0.155 * 0.605) ** 0.5  # 2048 is the geometric mean of 1024 and 4096
    assert PUBLISHED["qwen-h20"]().seconds(middle, Stage.DENOISE, 1) == pytest.approx(expected_s)


def test_what_a_service_has_measured_can_be_written_and_read(tmp_path):
    import msgspec

    costs = CostTable()
    for size in (SMALL, LARGE):
        for stage in (Stage.ENCODE, Stage.DENOISE, Stage.DECODE):
            costs.enter(CostKey(stage=stage, tokens=size.workload.tokens), 1.0)
    key = CostKey(stage=Stage.DENOISE, tokens=SMALL.workload.tokens)
    costs.observe(key, 1.5)
    path = tmp_path / "costs.json"
    path.write_bytes(
        msgspec.json.encode(cost_set_of(costs, name="mine", sizes=(SMALL, LARGE), fingerprint="x"))
    )
    found = read_cost_set(str(path))
    assert found.seconds(SMALL.workload, Stage.DENOISE, 1) == 1.5
    assert found.fingerprint == "x"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tasks": [{"stage": "denoise", "tokens": 256, "seconds": -1}]}, "tasks[0].seconds"),
        ({"tasks": [{"stage": "sleep", "tokens": 256, "seconds": 1}]}, "tasks[0].stage"),
        ({"tasks": [{"stage": "denoise", "tokens": 256, "width": 0, "seconds": 1}]}, "tasks[0].width"),
        ({"colour": "red"}, "colour"),
        ({"migration": {"speed": 3}}, "speed"),
        ({"tasks": []}, "tasks"),
        ({"sizes": [{"name": "a", "family": "nobody", "height": 256, "width": 256}]}, "sizes[0].family"),
        ({"sizes": [{"name": "a", "family": "zimage", "height": 2048, "width": 256}]}, "sizes[0]: "),
    ],
)
def test_a_cost_file_that_is_wrong_names_the_field(tmp_path, change: dict, words: str):
    import msgspec

    given = json.loads(msgspec.json.encode(machine()))
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**given, **change}))
    with pytest.raises(BadSetting) as caught:
        read_cost_set(str(path))
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n"name": "a",\n"sizes": oh\n}', ":3: is no cost set: JSON is malformed"),
        ('{\n"name": "a",\n', ":2: is no"),
    ],
)
def test_a_cost_file_that_is_no_json_names_the_line(tmp_path, text: str, words: str):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(BadSetting) as caught:
        read_cost_set(str(path))
    assert str(caught.value).startswith(f"{path}{words}")


def test_a_cost_file_may_not_give_two_costs_to_one_task(tmp_path):
    import msgspec

    given = json.loads(msgspec.json.encode(machine()))
    given["tasks"].append(given["tasks"][0])
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(given))
    with pytest.raises(BadSetting, match=r"tasks\[\d+\]: this task has two costs"):
        read_cost_set(str(path))
