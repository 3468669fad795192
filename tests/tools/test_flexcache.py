"""The benchmark of FlexCache: what it compares, how it measures likeness, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import flexcache_page, flexcache_settings, flexcache_speed
from benchmarks.flexcache_drawing import Drawing
from benchmarks.flexcache_settings import Setting, evenly
from benchmarks.flexcache_timing import speeds
from benchmarks.likeness import psnr, ssim
from epe.cache import FILE, NAMES, read_profile
from epe.config.demo import model_folder
from epe.models.contract import LATENTS
from tests.cache.profiles import made_up

CPU = torch.device("cpu")


@pytest.mark.parametrize("num_steps", [50, 20])
def test_every_strategy_is_compared_and_freecache_with_even_steps_at_equal_counts(num_steps: int) -> None:
    found = list(flexcache_settings.settings(made_up(), num_steps))
    assert {each.strategy for each in found} == {*NAMES, "even"}
    for count in flexcache_settings.COUNTS[num_steps]:
        alike = [each for each in found if each.value == count and each.strategy in ("freecache", "even")]
        assert [len(each.reuse.computed) for each in alike] == [count, count]
    for each in found:
        if each.strategy == "magcache":
            assert len(each.reuse.computed) == each.value


@pytest.mark.parametrize("num_steps", [50, 20])
def test_magcache_is_compared_at_every_count_that_freecache_is(num_steps: int) -> None:
    """With the demo model it had no threshold for the largest ones."""
    found = flexcache_settings.settings(read_profile(model_folder("demo") / FILE, "zimage"), num_steps)
    counts = tuple(len(each.reuse.computed) for each in found if each.strategy == "magcache")
    assert counts == flexcache_settings.COUNTS[num_steps]


@pytest.mark.parametrize("family", flexcache_speed.FAMILIES_MEASURED)
def test_real_sizes_are_measured_with_one_setting_of_each_strategy_first(family: str) -> None:
    found = list(flexcache_speed.settings(family))
    kinds = [strategy for strategy, _, _ in found]
    assert len(set(kinds[: len(set(kinds))])) == len(set(kinds))
    assert "pab" in kinds


def test_likeness_is_that_of_the_definitions() -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    darker = (pictures // 2).astype(np.uint8)
    assert psnr(pictures, pictures) == 100.0
    assert ssim(pictures, pictures, CPU) == 1.0
    errors = [np.mean((a.astype(float) - b) ** 2) for a, b in zip(pictures, darker, strict=True)]
    assert psnr(pictures, darker) == pytest.approx(
        np.mean([10 * np.log10(255**2 / e) for e in errors]), abs=1e-3
    )
    assert 0.3 < ssim(pictures, darker, CPU) < 0.95
    noise = rng.integers(0, 256, pictures.shape, dtype=np.uint8)
    assert ssim(pictures, noise, CPU) < 0.1


def test_a_small_form_on_a_cpu_has_freecache_nearer_than_even_steps_at_half_of_them() -> None:
    plan = flexcache_settings.QUICK
    (num_steps,) = plan.step_counts
    profile = read_profile(model_folder("demo") / FILE, "zimage")
    half = {
        each.strategy: each
        for each in flexcache_settings.settings(profile, num_steps)
        if each.value == num_steps // 2
    }
    drawing = Drawing(plan, CPU)
    whole, _ = drawing.pictures(num_steps, None)
    near = {
        name: psnr(drawing.pictures(num_steps, half[name].reuse)[0], whole) for name in ("freecache", "even")
    }
    assert near["freecache"] > near["even"] + 5.0
    two = Setting(strategy="even", value=2, reuse=evenly(2, 4))
    _, timed = speeds(drawing, [two], 4, deadline_s=0.0)
    assert (timed["plan"], timed["computed"], timed["rounds"]) == ([0, 3], 2, 1)
    assert timed["kept_bytes"] == drawing.states[0].tensors[LATENTS].nbytes


def test_the_page_tells_what_the_lines_say(tmp_path: Path) -> None:
    right = {"colour": 1.0, "place": 0.5, "kind": 1.0, "number": 1.0}
    likeness = {"psnr_db": 30.5, "ssim": 0.96, "computed": 6.0}
    times = {
        "speed_up": 1.95,
        "least": 1.9,
        "most": 2.0,
        "whole_speed_up": 1.85,
        "kept_bytes": 2048,
        "rounds": 3,
    }
    about = {
        "size": "quick",
        "device": "cpu",
        "gpu": None,
        "python": "3",
        "torch": "2",
        "side": 128,
        "num_prompts": 2,
    }
    lines: list[dict[str, Any]] = [
        {"case": "setting", **about, "num_seeds": 1, "rounds": 3, "step_counts": [12]},
        {"case": "quality", "steps": 12, "strategy": "none", "value": 12, **right},
        {
            "case": "speed",
            "steps": 12,
            "strategy": "none",
            "value": 12,
            "rounds": 3,
            "steps_s": 1.0,
            "whole_s": 1.1,
        },
    ]
    for strategy, more in (("freecache", 0.0), ("even", -2.5)):
        named = {"steps": 12, "strategy": strategy, "value": 6}
        lines.append({"case": "quality", **named, **right, **likeness, "psnr_db": 30.5 + more})
        lines.append({"case": "speed", **named, **times})
        lines.append({"case": "captured speed", **named, **times, "speed_up": 9.99, "rounds": 1})
    lines += _captured_lines(times)
    drawn = np.zeros((2, 16, 16, 3), dtype=np.uint8)
    run = flexcache_page.Run(lines, {"12/none/12": drawn, "12/freecache/6": drawn})
    text = flexcache_page.page(run, _real_lines(), commands="`made up`", note="All in one run.")
    assert "\n\nAll in one run.\n\n" in text
    assert (
        "| freecache | 6 | 6 | 1.95 (1.90 to 2.00) | 1.85 | | 30.50 | 0.9600 | 1.000 | 0.500 | 1.000 | 2 |"
        in text.replace("|  |", "| |")
    )
    assert "9.99" not in text, "one round of three says nothing"
    assert "FreeCache with 6 of 12 computed: +2.50 dB to even." in text
    assert "beside the 2.00 ms of each computed step, each of the 12 steps takes 0.25 ms (6 computed)" in text
    assert "| zimage | captured | none | | 50 | 1 | 20.0 ms | | |" in text
    assert "| zimage | captured | freecache | 25 | 25 | 1.98 | 1.003 | 0.20 | 2.00 |" in text
    assert "from the least to the most (settings): zimage 20.1 to 20.3 (2)." in text
    flexcache_page.plot(run, 12, tmp_path / "plot.png")
    flexcache_page.sheet(run, 12, tmp_path / "sheet.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
    assert (tmp_path / "sheet.png").exists()


def _captured_lines(times: dict[str, Any]) -> list[dict[str, Any]]:
    """Twelve steps of 2 ms; with half of them computed twice as fast but for 0.25 ms a step."""
    about = {"case": "captured speed", "steps": 12, "rounds": 3}
    return [
        {**about, "strategy": "none", "value": 12, "steps_s": 0.024, "whole_s": 0.03},
        {**about, **times, "strategy": "teacache", "value": 0.1, "computed": 6, "speed_up": 1.6},
    ]


def _real_lines() -> list[dict[str, Any]]:
    named = {"family": "zimage", "captured": True}
    taken = {
        "speed_up": 1.98,
        "computed_step": 1.003,
        "reused_step_s": 0.0002,
        "kept_bytes": 2**21,
        "plain_s": 0.0201,
    }
    return [
        {"case": "machine", "gpu": "a GPU", "torch": "2"},
        {"case": "plain", **named, "step_s": 0.02, "made_s": 1.0},
        {"case": "setting", **named, "strategy": "freecache", "value": 25, "computed": 25, **taken},
        {
            "case": "setting",
            **named,
            "strategy": "pab",
            "value": 2,
            "computed": 50,
            **taken,
            "plain_s": 0.0203,
        },
    ]
