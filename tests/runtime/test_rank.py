"""A rank before it works: it can be told to end while it loads."""

from __future__ import annotations

from epe.actors.core import ActorSystem
from epe.actors.worker import Ending
from epe.config.load import build_stage
from epe.messages import Stop
from epe.runtime.embedded import directory_of
from epe.runtime.rank import Rank, Seat


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
