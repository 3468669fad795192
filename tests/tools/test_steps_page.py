"""The page of steps on H200 is what its kept run says."""

from __future__ import annotations

import json

from benchmarks.steps_page import page
from tests.world import ROOT

RUNS = [ROOT / f"benchmarks/kept/h200-steps-{name}.jsonl" for name in "cdefghi"]
SETTING = {"device": "a GPU", "python": "3", "torch": "2", "diffusers": "0", "rounds": 3}


def test_the_page_is_what_its_kept_runs_say() -> None:
    texts = (line for run in RUNS for line in run.read_text().splitlines())
    lines = [json.loads(text) for text in texts if text.startswith("{")]
    assert (ROOT / "docs/results/h200.md").read_text() == page(lines) + "\n"


def test_columns_that_a_later_run_left_out_are_those_of_the_run_before() -> None:
    case = {
        "family": "wan",
        "size": "480x832x17",
        "text_rows": 512,
        "equal_bits": {},
        "graphs": {},
        "peak_gib": {},
    }

    def run(**ratios: float) -> dict[str, object]:
        steps = {name: [100.0 / ratio] * 3 for name, ratio in ratios.items()}
        return {
            **case,
            "step_ms": steps,
            "against_diffusers": {name: [each] * 3 for name, each in ratios.items()},
        }

    first, second = run(diffusers=1.0, ours=1.1, ours_compiled=1.2), run(diffusers=1.0, ours_compiled=1.5)
    row = next(line for line in page([SETTING, first, second]).splitlines() if line.startswith("| wan"))
    assert [cell.strip()[:5] for cell in row.split("|")[3:7]] == ["", "1.10×", "", "1.50×"]


def test_compiled_steps_that_stray_too_far_are_named() -> None:
    case = {
        "family": "wan",
        "text_rows": 512,
        "step_ms": {"diffusers": [2.0] * 3, "ours_compiled": [1.0] * 3},
        "against_diffusers": {"diffusers": [1.0] * 3, "ours_compiled": [2.0] * 3},
        "equal_bits": {"ours_compiled": False},
        "largest_difference": {"ours_compiled": [0.1, 5.0]},
        "graphs": {},
        "peak_gib": {},
    }
    kept = {**case, "size": "480x832x17", "psnr_db": {"ours_compiled": 45.1}}
    strayed = {**case, "size": "480x832x81", "psnr_db": {"ours_compiled": 39.9}}
    assert "The least here is 45 dB; below it: none." in page([SETTING, kept])
    assert "The least here is 40 dB; below it: wan 480x832x81, 512." in page([SETTING, kept, strayed])


def test_those_that_were_faster_are_named() -> None:
    def run(family: str, **ratios: float) -> dict[str, object]:
        return {
            "family": family,
            "size": "256x256",
            "text_rows": 128,
            "step_ms": {name: [100.0 / ratio] * 3 for name, ratio in ratios.items()},
            "against_diffusers": {name: [each] * 3 for name, each in ratios.items()},
            "equal_bits": {},
            "graphs": {},
            "peak_gib": {},
        }

    def decode(pixels: str, **ratios: float) -> dict[str, object]:
        each = {name: [ratio] * 3 for name, ratio in ratios.items()}
        milliseconds = {"diffusers": 1.0, "fast": 1.0}
        psnr_db = {"fast": None}
        named = {"decode": "KL", "pixels": pixels, "dtype": "torch.bfloat16"}
        return {**named, "ms": milliseconds, "ratio": each, "psnr_db": psnr_db}

    ahead = [
        run("wan", diffusers=1.0, diffusers_compiled=1.4, ours_compiled=1.5),
        run("flux1", diffusers=1.0, ours_compiled=1.5, xfuser=1.5, cache_dit_reusing=1.8, ours_reusing=1.9),
        decode("8x8", diffusers=1.0, diffusers_compiled=2.0, exact=1.0, fast=2.1),
    ]
    assert "\nNowhere: by the medians" in page([SETTING, *ahead])
    behind = [
        run("wan", diffusers=1.0, diffusers_compiled=1.6, ours_compiled=1.5),
        run("zimage", diffusers=1.0, ours_compiled=2.0, cache_dit_reusing=2.1, ours_reusing=2.0),
        decode("8x8", diffusers=1.0, diffusers_compiled=2.2, exact=1.0, fast=2.1),
    ]
    named = "wan 256x256, 128 (diffusers_compiled); zimage 256x256, 128 (cache_dit_reusing)"
    assert f"\n{named}; KL 8x8 (diffusers_compiled): by the medians" in page([SETTING, *behind])


def test_a_ratio_of_a_faster_host_stands_beside_that_of_the_last_run() -> None:
    def run(size: str, host_ms: float) -> dict[str, object]:
        times = {
            "diffusers": host_ms,
            "diffusers_compiled": 30.0,
            "ours_captured": 40.0,
            "ours_compiled": 20.0,
        }
        return {
            "family": "flux1",
            "size": size,
            "text_rows": 128,
            "step_ms": {name: [each] * 3 for name, each in times.items()},
            "against_diffusers": {name: [host_ms / each] * 3 for name, each in times.items()},
            "equal_bits": {},
            "graphs": {},
            "peak_gib": {},
        }

    runs = [run("256x256", 60.0), run("512x512", 60.0), run("1024x1024", 60.0), run("256x256", 90.0)]
    told = page([SETTING, *runs, run("1024x1024", 90.0)])
    table = told.split("## Small pictures and their hosts")[1].split("##")[0]
    assert [row for row in table.splitlines() if row.startswith("| flux1")] == [
        "| flux1 256x256, 128 | 60.0 | 30.0, 2.00× | 40.0, 1.50× | 20.0, 3.00× |",
        "| flux1 256x256, 128 | 90.0 | 30.0, 3.00× | 40.0, 2.25× | 20.0, 4.50× |",
    ]
    assert "in a run of flux1 256x256, 128; flux1 512x512, 128; flux1 1024x1024, 128. " in told


def test_where_exact_is_ahead_nothing_is_said_of_it() -> None:
    run = {
        "family": "flux1",
        "size": "256x256",
        "text_rows": 128,
        "step_ms": {name: [1.0] * 3 for name in ("diffusers", "diffusers_compiled", "ours_captured")},
        "against_diffusers": {"diffusers_compiled": [1.5] * 3, "ours_captured": [1.6] * 3},
        "equal_bits": {},
        "graphs": {},
        "peak_gib": {},
    }
    assert "Captured steps alone" not in page([SETTING, run])


def test_what_lanes_gave_in_several_runs_is_one_row() -> None:
    case = {"compiled_rows": "wan", "size": "480x832x17", "text_rows": 512}
    lines = [
        SETTING,
        {**case, "width_2": 0.0, "width_4": 0.25},
        {**case, "own_gpus": 0.0},
        {**case, "took_s": 3.0},
    ]
    assert "| wan 480x832x17, 512 | = | 0.25 | = |" in page(lines).splitlines()


def test_other_libraries_stand_in_a_table_of_their_own() -> None:
    names = ("diffusers", "ours_compiled", "cache_dit", "xfuser")
    alone = {
        "family": "flux1",
        "size": "1024x1024",
        "text_rows": 512,
        "step_ms": {"diffusers": [4.0, 4.0, 4.0], "ours_compiled": [2.0, 2.0, 2.0]},
        "against_diffusers": {"diffusers": [1.0, 1.0, 1.0], "ours_compiled": [2.0, 2.0, 2.0]},
        "equal_bits": {"diffusers": True, "ours_compiled": True},
        "graphs": {},
        "peak_gib": {},
    }
    beside = {
        **alone,
        "step_ms": {name: [8.0, 8.0, 8.0] for name in names},
        "against_diffusers": {name: [1.5, 1.5, 1.5] for name in names},
    }
    rows = [line for line in page([SETTING, alone, beside]).splitlines() if line.startswith("| flux1")]
    assert len(rows) == 3
    assert rows[0].split("|")[2] == " 4.0 "
    assert rows[2] == "| flux1 1024x1024, 512 | 3 | 8.0 | " + " | ".join(["1.50× (1.50 to 1.50)"] * 3) + " |"


def beside(size: str, **step_ms: list[float]) -> dict[str, object]:
    """A run in which others drew beside ours; the first round's ratios stand for all."""
    return {
        "family": "zimage",
        "size": size,
        "text_rows": 128,
        "step_ms": step_ms,
        "against_diffusers": {
            name: [step_ms["diffusers"][0] / each[0]] * 3 for name, each in step_ms.items()
        },
        "equal_bits": {},
        "graphs": {},
        "peak_gib": {},
    }


def test_a_round_in_which_another_took_less_is_named_though_the_medians_hide_it() -> None:
    runs = [
        beside("512x512", diffusers=[4.0] * 3, ours_compiled=[2.0, 2.0, 2.5], cache_dit=[2.25] * 3),
        beside("512x512", diffusers=[4.0], ours_compiled=[2.0], cache_dit=[2.25], xfuser=[2.0]),
    ]
    told = page([SETTING, *runs])
    assert "\nNowhere: by the medians" in told
    named = "it took less in 1: cache_dit in round 3 of zimage 512x512, 128 (2.2 ms, ours 2.5)."
    assert f"Round by round, of 5 times that one of them drew beside ours, {named}" in told
    assert "By those of a run before" not in told
    rows = [line for line in told.splitlines() if line.startswith("| zimage 512x512, 128 |")]
    assert [row.split("|")[2:4] for row in rows] == [[" 3 ", " 4.0 "], [" 1 ", " 4.0 "]]


def test_a_run_that_another_won_is_named_though_a_later_one_was_ours() -> None:
    won = beside("512x512", diffusers=[4.0] * 2, ours_compiled=[2.0] * 2, cache_dit=[1.6] * 2)
    ours = beside("512x512", diffusers=[4.0] * 3, ours_compiled=[1.6] * 3, cache_dit=[2.0] * 3)
    named = "By those of a run before the last: zimage 512x512, 128 (cache_dit 2.50×, ours 2.00×, rounds: 2)."
    told = page([SETTING, won, ours])
    assert "\nNowhere: by the medians" in told
    assert named in told
    assert "By those of a run before" not in page([SETTING, ours, won])


def test_the_form_before_stands_beside_the_one_that_is_kept_and_in_no_other_row() -> None:
    run = beside("256x256", diffusers=[4.0] * 3, ours_three=[2.0, 2.0, 2.0], ours_compiled=[1.6, 2.5, 1.75])
    rows = {"compiled_rows": "zimage", "size": "256x256", "text_rows": 128}
    told = page([SETTING, run, {**rows, "width_2": 0.0}, {**rows, "form": "ours_three", "width_2": 0.5}])
    first, *_, lanes, forms = (line for line in told.splitlines() if line.startswith("| zimage"))
    assert [cell.strip() for cell in first.split("|")[2:8]] == ["4.0", "", "", "", "2.50× (2.50 to 2.50)", ""]
    assert lanes == "| zimage 256x256, 128 | = |  |  |"
    assert forms == "| zimage 256x256, 128 | 2.0, 2.00× | 1.8, 2.50× | 2 of 3 |"


def test_columns_of_two_runs_are_told_with_their_hosts_and_held_against_each_other_by_milliseconds() -> None:
    fast_host = beside("256x256", diffusers=[40.0], diffusers_compiled=[20.0], ours_compiled=[22.0])
    slow_host = beside("256x256", diffusers=[80.0], ours_compiled=[25.0])
    told = page([SETTING, fast_host, slow_host])
    row = next(line for line in told.splitlines() if line.startswith("| zimage"))
    assert row.startswith(
        "| zimage 256x256, 128 | 80.0 | 2.00× (2.00 to 2.00) of 40.0 |  |  | 3.20× (3.20 to 3.20) |"
    )
    assert "\nzimage 256x256, 128 (diffusers_compiled): by the medians" in told
