"""A rank before it works: it can be told to end while it loads."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from epe.actors.core import Actor, ActorSystem
from epe.actors.directory import PLANNER
from epe.actors.worker import Ending
from epe.config.load import build_stage
from epe.config.stage import Stage
from epe.messages import Stop
from epe.runtime.embedded import directory_of
from epe.runtime.rank import COMPILED_CODE, Rank, Seat, keep_compiled_code


def stage_of(model: Path) -> Stage:
    return build_stage(
        {
            "name": "image",
            "factory": "zimage",
            "gpu": [0],
            "device": "cpu",
            "factory_args": {"model_path": str(model)},
        }
    )


class Noting(Actor):
    """Stands in for the planner, and notes what it is told."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    async def receive(self, message: object) -> None:
        self.told.append(type(message).__name__)


async def test_a_rank_that_is_told_to_end_while_it_loads_ends_before_it_is_loaded(tiny_zimage):
    system = ActorSystem("r0")
    rank = Rank(system, seat=Seat(rank=0, world_size=1, device_index=0), directory=directory_of(1))
    system.ref("worker0").tell(Stop(reason="enough"))
    assert not await rank.load(stage_of(tiny_zimage))
    assert rank.stopped_by.result() == Ending("enough", orderly=True)
    await rank.close()


async def test_a_rank_settles_its_garbage_before_it_is_given_work(tiny_zimage):
    """Else a collection looks at all of torch in the middle of a step, and the rank stands still for 0.3 s."""
    ready: list[str] = []
    system = ActorSystem("r0")
    system.spawn(PLANNER, lambda: Noting(ready))
    rank = Rank(system, seat=Seat(rank=0, world_size=1, device_index=0), directory=directory_of(1))
    heard_before: list[str] = []
    assert await rank.load(stage_of(tiny_zimage), loaded=lambda: heard_before.extend([*ready, "loaded"]))
    assert heard_before == ["loaded"]
    await rank.close()


def test_compiled_code_is_kept_for_the_next_start_where_the_user_can_keep_anything(tmp_path: Path) -> None:
    """Beside a home that cannot be written a service with compiled blocks could not start."""
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    keep_compiled_code(env)
    assert env[COMPILED_CODE] == str(tmp_path / "epe" / "compiled")
    env["XDG_CACHE_HOME"] = "/elsewhere"
    keep_compiled_code(env)
    assert env[COMPILED_CODE] == str(tmp_path / "epe" / "compiled"), "it was set"
    env = {"XDG_CACHE_HOME": "/proc"}
    with capture_logs() as lines:
        keep_compiled_code(env)
    assert COMPILED_CODE not in env
    assert [line["event"] for line in lines] == ["code.not_kept"]
