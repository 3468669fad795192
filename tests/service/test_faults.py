"""A service of two ranks with faults on purpose: each fails its own request, or none, and the service goes on.

A fault is bound to a mark in the prompt, so that all tests share one service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.service.conftest import Drawn
from tests.service.served import EPE, Served, user_environment, wait_for_log, write_stage

pytestmark = pytest.mark.world

SMALL: dict[str, Any] = {"size": "96x64", "num_inference_steps": 4, "seed": 3}
FAULTS: list[dict[str, Any]] = [
    {"kind": "raise", "stage": "encode", "prompt": "[raise encode]", "count": None},
    {"kind": "raise", "stage": "denoise", "step": 2, "prompt": "[raise denoise]", "count": None},
    {"kind": "raise", "stage": "decode", "prompt": "[raise decode]", "count": None},
    {"kind": "nan", "stage": "encode", "prompt": "[nan encode]", "count": None},
    {"kind": "nan", "stage": "denoise", "step": 2, "prompt": "[nan denoise]", "count": None},
    {"kind": "nan", "stage": "decode", "prompt": "[nan decode]", "count": None},
    {"kind": "oom", "stage": "decode", "prompt": "[oom decode]", "count": None},
    {"kind": "oom", "stage": "denoise", "prompt": "[oom everywhere]", "count": None},
    {"kind": "oom", "stage": "denoise", "step": 1, "rank": 0, "prompt": "[oom once]"},
    {"kind": "kill", "stage": "denoise", "step": 2, "rank": 0, "prompt": "[kill 0]"},
    {"kind": "hang", "stage": "denoise", "step": 1, "rank": 1, "prompt": "[hang 1]", "life": None},
    {"kind": "raise", "stage": "encode", "rank": 1, "prompt": "[sick 1]", "count": None, "life": None},
]
CODES = {"raise": "task_failed", "nan": "non_finite", "oom": "out_of_memory"}


def stage_of(folder: Path, checkpoint: Path, **service: Any) -> Path:
    """Two ranks with all the faults; a lease may be a few seconds late."""
    path = write_stage(folder, checkpoint, num_ranks=2)
    stage = yaml.safe_load(path.read_text())
    stage["faults"] = FAULTS
    # A task that was measured is soon found to hang.
    stage["parallelism"]["scheduler"]["warmup_resolutions"] = ["64x96"]
    stage["service"] |= service
    path.write_text(yaml.safe_dump(stage))
    return path


def serve_with_faults(folder: Path, stage: Path) -> Served:
    command = (*EPE, "serve", "--stage-config", str(stage), "--log-level", "debug")
    return Served(folder, [command], [user_environment(EPE_FAULTS="1")])


@pytest.fixture(scope="module")
def faulty(tiny_zimage: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("faulty")
    served = serve_with_faults(folder, stage_of(folder, tiny_zimage, hang_s=5))
    yield served
    served.close()


async def test_an_error_at_any_stage_fails_that_request_alone_with_stage_step_and_cause(
    faulty: Served, diffusers_draws: Drawn
) -> None:
    right = diffusers_draws(**SMALL)
    for mark in ("raise encode", "raise denoise", "raise decode", "nan encode", "nan denoise", "nan decode"):
        kind, _, stage = mark.partition(" ")
        bad, good = await asyncio.gather(faulty.draw(prompt=f"a cat [{mark}]", **SMALL), faulty.draw(**SMALL))
        error = bad.body["error"]
        assert (bad.status, error["code"], error["stage"]) == (500, CODES[kind], stage), error
        assert kind != "raise" or f"a fault was asked for at {stage}" in error["message"]
        assert stage != "denoise" or 0 <= error["step"] <= 2
        assert np.array_equal(good.pixels, right), mark
    await faulty.until_all_ranks_work()


async def test_want_of_memory_fails_alone_after_what_is_leaner_was_tried(
    faulty: Served, diffusers_draws: Drawn
) -> None:
    right = diffusers_draws(**SMALL)
    nowhere, decode, good = await asyncio.gather(
        faulty.draw(prompt="a cat [oom everywhere]", **SMALL),
        faulty.draw(prompt="a cat [oom decode]", **SMALL),
        faulty.draw(**SMALL),
    )
    assert (nowhere.status, nowhere.body["error"]["code"]) == (500, "out_of_memory")
    assert (decode.status, decode.body["error"]["stage"]) == (500, "decode")
    assert np.array_equal(good.pixels, right)


async def test_a_rank_that_dies_at_work_costs_nobody_a_picture(
    faulty: Served, diffusers_draws: Drawn
) -> None:
    body = {**SMALL, "prompt": "a cat [kill 0]"}
    mark = faulty.mark()
    replies = await asyncio.gather(*(faulty.draw(**body) for _ in range(4)))
    await asyncio.to_thread(wait_for_log, faulty, "rank.was_lost", since=mark)
    for reply in replies:
        assert np.array_equal(reply.pixels, diffusers_draws(**body))
    await faulty.until_all_ranks_work()


async def test_a_rank_that_hangs_while_its_loop_turns_is_started_again_and_its_request_goes_on(
    faulty: Served, diffusers_draws: Drawn
) -> None:
    await faulty.until_all_ranks_work()
    body = {**SMALL, "prompt": "a cat [hang 1]"}
    mark = faulty.mark()
    replies = await asyncio.gather(*(faulty.draw(**body) for _ in range(4)))
    lost = await asyncio.to_thread(wait_for_log, faulty, "rank.was_lost", since=mark)
    assert lost["rank"] == 1
    assert "it has not ended lease" in lost["reason"]
    for reply in replies:
        assert np.array_equal(reply.pixels, diffusers_draws(**body))
    await faulty.until_all_ranks_work()


async def test_a_rank_that_fails_again_and_again_is_quarantined_and_health_says_so(faulty: Served) -> None:
    await faulty.until_all_ranks_work()
    replies = []
    while (await faulty.health())["ranks"][1]["state"] != "quarantined":
        assert len(replies) < 80, "rank 1 is still trusted"
        replies += await asyncio.gather(*(faulty.draw(prompt="a [sick 1] cat", **SMALL) for _ in range(4)))
    assert sum(reply.status == 500 for reply in replies) >= 3
    reason = (await faulty.health())["ranks"][1]["reason"]
    assert "requests failed on it, with: InjectedFault" in reason
    after = await asyncio.gather(*(faulty.draw(prompt="a [sick 1] cat", **SMALL) for _ in range(4)))
    assert [reply.status for reply in after] == [200] * 4


def test_a_warm_up_that_hangs_ends_the_service_with_code_1_and_a_reason(
    tiny_zimage: Path, tmp_path: Path
) -> None:
    path = stage_of(tmp_path, tiny_zimage, start_s=8)
    stage = yaml.safe_load(path.read_text())
    stage["faults"] = [{"kind": "hang", "rank": 1, "stage": "denoise", "warm_up": True}]
    stage["parallelism"]["scheduler"]["cost_file"] = "none"
    path.write_text(yaml.safe_dump(stage))
    served = serve_with_faults(tmp_path, path)
    try:
        assert served.parents[0].wait(timeout=200) == 1
        assert "within 8 s (service.start_s)" in served.said()
    finally:
        served.close()


def test_a_file_with_faults_is_not_served_without_consent(tiny_zimage: Path, tmp_path: Path, capsys) -> None:
    from epe.cli.main import run

    assert run(["serve", "--stage-config", str(stage_of(tmp_path, tiny_zimage))]) == 2
    assert "set EPE_FAULTS=1 in the environment" in capsys.readouterr().err
