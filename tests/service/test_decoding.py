"""A service whose ranks decode together: what a decode says of itself, and what becomes of one whose rank is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.service.conftest import Drawn
from tests.service.served import Reply, Served, write_stage
from tests.service.test_faults import serve_with_faults

pytestmark = pytest.mark.world

PICTURE: dict[str, Any] = {"size": "272x304", "num_inference_steps": 3, "seed": 3}


def stage_of(folder: Path, checkpoint: Path) -> Path:
    """Three ranks that do all together; one of them is killed in the middle of a certain decode, another one has no
    memory for one."""
    path = write_stage(folder, checkpoint, num_ranks=3)
    stage = yaml.safe_load(path.read_text())
    stage["parallelism"]["vae"] = {"enabled": True}
    stage["parallelism"]["scheduler"] |= {"policy": "static_cp"}
    stage["faults"] = [
        {"kind": "kill", "stage": "decode", "rank": 1, "prompt": "[kill 1]"},
        {"kind": "oom", "stage": "decode", "rank": 2, "prompt": "[oom 2]"},
    ]
    path.write_text(yaml.safe_dump(stage))
    return path


def decoders(reply: Reply) -> list[tuple[int, ...]]:
    return [tuple(visit["ranks"]) for visit in reply.body["epe"]["lanes"] if visit["stage"] == "decode"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_zimage: Path) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("decoding")
    served = serve_with_faults(folder, stage_of(folder, tiny_zimage))
    yield served
    served.close()


async def test_a_decode_without_memory_on_several_ranks_is_repeated_on_one_with_the_same_picture(
    service: Served,
) -> None:
    prompt = "a cat [oom 2]"
    disturbed = await service.draw(**PICTURE, prompt=prompt)
    assert decoders(disturbed) == [(0,)]
    again = await service.draw(**PICTURE, prompt=prompt)  # its fault was for one time alone
    assert decoders(again) == [(0, 1, 2)]
    assert disturbed.file == again.file
    assert [event["stage"] for event in service.events("request.goes_leaner")] == ["decode"]


async def test_a_decode_whose_rank_is_killed_is_repeated_elsewhere_with_the_same_picture(
    service: Served, diffusers_draws: Drawn
) -> None:
    prompt = "a cat [kill 1]"
    undisturbed = await service.draw(**PICTURE)
    assert decoders(undisturbed) == [(0, 1, 2)]
    whole = diffusers_draws(**PICTURE)
    assert np.abs(undisturbed.pixels.astype(int) - whole).max() <= 1
    mark = service.mark()
    disturbed = await service.draw(**PICTURE, prompt=prompt)
    assert [event["rank"] for event in service.events("rank.was_lost", since=mark)] == [1]
    assert any(service.events("request.resumed", since=mark))
    await service.until_all_ranks_work()
    again = await service.draw(**PICTURE, prompt=prompt)  # its fault was for the first life alone
    assert disturbed.file == again.file
    assert decoders(again) == [(0, 1, 2)]
    assert not list(service.events("decode.whole"))
