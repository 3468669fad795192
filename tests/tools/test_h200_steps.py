"""`benchmarks.h200_steps` on a small model and a CPU, and the page that its lines make."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import chain, count
from typing import Any

import pytest
import torch

from benchmarks.h200_decode import main as decode
from benchmarks.h200_steps import main
from benchmarks.step_libraries import computed_steps
from benchmarks.steps_page import page
from epe.models.contract import State
from epe.models.flux1.adapter import Flux1Adapter


def test_a_case_becomes_a_row_of_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--tiny --device cpu --only zimage --sizes 256x256 --entrants diffusers,ours,ours_captured"
    monkeypatch.setattr(sys, "argv", ["h200_steps", *flags.split()])
    main()
    setting, *rounds = map(json.loads, capsys.readouterr().out.splitlines())
    assert setting["tiny"] is True
    assert [line["rounds_done"] for line in rounds] == [1, 2, 3]
    case = rounds[-1]
    assert case["equal_bits"] == {"diffusers": True, "ours": True, "ours_captured": True}
    assert case["graphs"]["ours_captured"]["captured"] == 1
    assert case["graphs"]["ours_captured"]["replayed"] == 19
    rows = [
        line for line in page([setting, *rounds]).splitlines() if line.startswith("| zimage 256x256, 128 |")
    ]
    assert len(rows) == 2
    assert rows[1].split("|")[3:5] == [" = ", " = "]


def test_a_case_that_fails_costs_its_own_line_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.h200_steps.ROUNDS", 1)
    monkeypatch.setattr("benchmarks.step_entrants.Ours.draw", _fails)
    flags = "--tiny --device cpu --only flux1 --sizes 256x256 --entrants diffusers,ours"
    monkeypatch.setattr(sys, "argv", ["h200_steps", *flags.split()])
    main()
    _, case = map(json.loads, capsys.readouterr().out.splitlines())
    assert case["errors"] == {"ours": "RuntimeError: no memory"}
    assert list(case["step_ms"]) == ["diffusers"]


def test_cache_dit_does_not_draw_with_what_was_compiled_for_diffusers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was warm after 1.9 s then, and after 150 by itself."""
    monkeypatch.setattr(sys, "argv", ["h200_steps", "--entrants", "diffusers_compiled,cache_dit"])
    with pytest.raises(SystemExit):
        main()
    assert "ask for them in two runs" in capsys.readouterr().err


def test_a_family_that_a_library_does_not_draw_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is left out of the case by a sentence, whether the library is installed or not."""
    monkeypatch.setattr("benchmarks.h200_steps.ROUNDS", 1)
    flags = "--tiny --device cpu --only zimage --sizes 256x256 --entrants diffusers,xfuser"
    monkeypatch.setattr(sys, "argv", ["h200_steps", *flags.split()])
    main()
    _, case = map(json.loads, capsys.readouterr().out.splitlines())
    told = "ValueError: xfuser does not draw zimage here; it draws flux1, qwen-image, wan"
    assert case["errors"] == {"xfuser": told}


def test_who_has_no_time_left_to_warm_up_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = chain([0.0, 1.0, 1.0, 1.0], count(4.0))
    monkeypatch.setattr("benchmarks.h200_steps.ROUNDS", 1)
    monkeypatch.setattr("benchmarks.h200_steps._now_s", lambda: next(clock))
    flags = "--tiny --device cpu --only flux1 --sizes 256x256 --entrants diffusers,ours --budget-s 3"
    monkeypatch.setattr(sys, "argv", ["h200_steps", *flags.split()])
    main()
    _, case = map(json.loads, capsys.readouterr().out.splitlines())
    assert case["errors"] == {"ours": "no time was left"}
    assert list(case["step_ms"]) == ["diffusers"]


def test_ours_leave_out_as_many_steps_as_other_libraries_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    computed: list[int] = []
    monkeypatch.setattr("benchmarks.h200_steps.ROUNDS", 0)
    monkeypatch.setattr(Flux1Adapter, "_passes", _counted(Flux1Adapter._passes, computed))
    flags = "--tiny --device cpu --only flux1 --sizes 256x256 --timed-steps 5 --entrants ours_reusing"
    monkeypatch.setattr(sys, "argv", ["h200_steps", *flags.split()])
    main()
    assert computed_steps(6) == (0, 2, 4)
    assert tuple(computed) == computed_steps(6)


def _counted(method: Callable[..., Any], computed: list[int]) -> Callable[..., Any]:
    def passes(adapter: Any, states: list[State], timesteps: torch.Tensor) -> Any:
        computed.append(states[0].step)
        return method(adapter, states, timesteps)

    return passes


def _fails(*args: object) -> None:
    raise RuntimeError("no memory")


def test_decodes_become_rows_of_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(sys, "argv", ["h200_decode", "--tiny", "--device", "cpu"])
    decode()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    decoders, rounds = ["AutoencoderKL"] * 3 + ["AutoencoderKLWan"] * 3, [1, 2, 3] * 2
    assert [(line["decode"], line["rounds"]) for line in lines] == list(zip(decoders, rounds, strict=True))
    assert all(each is None or each > 80 for line in lines for each in line["psnr_db"].values())
    setting = {"device": "cpu", "python": "3", "torch": "2", "diffusers": "0", "rounds": 3}
    rows = [line for line in page([setting, *lines]).splitlines() if line.startswith("| Autoencoder")]
    assert [row.split("|")[2] for row in rows] == [" 128x128 ", " 128x64x5 "]
