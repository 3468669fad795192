"""A service whose ranks decode together: what a decode says of itself, and what becomes of one whose rank is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.service.conftest import Drawn
from tests.service.served import Reply, write_stage
from tests.service.test_faults import serve_with_faults

pytestmark = pytest.mark.world

PICTURE: dict[str, Any] = {"size": "272x304", "num_inference_steps": 3, "seed": 3}


def stage_of(folder: Path, checkpoint: Path) -> Path:
    """Three ranks that do all together, one of which is killed in the middle of a certain decode."""
    path = write_stage(folder, checkpoint, num_ranks=3)
    stage = yaml.safe_load(path.read_text())
    stage["parallelism"]["vae"] = {"enabled": True}
    stage["parallelism"]["scheduler"] |= {"policy": "static_cp"}
    stage["faults"] = [{"kind": "kill", "stage": "decode", "rank": 1, "prompt": "[kill 1]"}]
    path.write_text(yaml.safe_dump(stage))
    return path


def decoders(reply: Reply) -> list[tuple[int, ...]]:
    return [tuple(visit["ranks"]) for visit in reply.body["epe"]["lanes"] if visit["stage"] == "decode"]


async def test_a_decode_whose_rank_is_killed_is_repeated_elsewhere_with_the_same_picture(
    tmp_path: Path, tiny_zimage: Path, diffusers_draws: Drawn
) -> None:
    service = serve_with_faults(tmp_path, stage_of(tmp_path, tiny_zimage))
    try:
        prompt = "a cat [kill 1]"
        undisturbed = await service.draw(**PICTURE)
        assert decoders(undisturbed) == [(0, 1, 2)]
        whole = diffusers_draws(**PICTURE)
        assert np.abs(undisturbed.pixels.astype(int) - whole).max() <= 1
        disturbed = await service.draw(**PICTURE, prompt=prompt)
        assert [event["rank"] for event in service.events("rank.was_lost")] == [1]
        assert any(service.events("request.resumed"))
        await service.until_all_ranks_work()
        again = await service.draw(**PICTURE, prompt=prompt)  # its fault was for the first life alone
        assert disturbed.file == again.file
        assert decoders(again) == [(0, 1, 2)]
        assert not list(service.events("decode.whole"))
    finally:
        service.close()
