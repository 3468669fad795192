"""A rank before it works: it can be told to end while it loads, and refuses what it cannot keep."""

from __future__ import annotations

import pytest
import torch

from epe.actors.core import ActorSystem
from epe.actors.worker import Ending
from epe.config.load import build_stage
from epe.errors import BadSetting
from epe.messages import Stop
from epe.runtime.embedded import directory_of
from epe.runtime.rank import Rank, Seat, lane_backend


async def test_a_rank_that_is_told_to_end_while_it_loads_ends_before_it_is_loaded(tiny_zimage):
    stage = build_stage(
        {
            "name": "image",
            "factory": "zimage",
            "gpu": [0],
            "device": "cpu",
            "factory_args": {"model_path": str(tiny_zimage)},
        }
    )
    system = ActorSystem("r0")
    rank = Rank(system, seat=Seat(rank=0, world_size=1, device_index=0), directory=directory_of(1))
    system.ref("worker0").tell(Stop(reason="enough"))
    assert not await rank.load(stage)
    assert rank.stopped_by.result() == Ending("enough", orderly=True)
    await rank.close()


@pytest.mark.parametrize("method", ["agkv", "ulysses"])
def test_nccl_that_was_asked_for_and_cannot_be_had_is_an_error(tiny_zimage, method: str):
    stage = build_stage(
        {
            "name": "image",
            "factory": "zimage",
            "gpu": [0, 1],
            "parallelism": {"cp": {"attention_mode": method, f"{method}_transport": "nccl"}},
            "factory_args": {"model_path": str(tiny_zimage)},
        }
    )
    with pytest.raises(BadSetting, match=f"{method}_transport: nccl needs a GPU for each rank.*use auto"):
        lane_backend(stage, torch.device("cpu"), world_size=2)
