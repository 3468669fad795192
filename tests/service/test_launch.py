"""One service under every launcher: its own parent, torchrun, and plain processes; and how each of them ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from epe.launch.parent import SAME_CTRL_C_S
from tests.launch.service import eventually
from tests.launch.test_serve import free_port
from tests.service.conftest import Drawn
from tests.service.served import (
    EPE,
    TORCHRUN,
    Served,
    Traces,
    serve,
    user_environment,
    wait_for_log,
    write_stage,
)

pytestmark = pytest.mark.world

BODY = {"prompt": "a green chair", "size": "304x272", "num_inference_steps": 3, "seed": 21}
# Long enough to be at work when a signal comes, short enough to be waited for.
LONG = {"prompt": "a red cube", "size": "304x272", "num_inference_steps": 60, "seed": 22}
ENDLESS = {"prompt": "a city", "size": "512x512", "num_inference_steps": 1000}


@pytest.fixture(scope="module")
def services(tiny_zimage: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """The same stage of two ranks started in three ways, all at once."""
    folders = {way: tmp_path_factory.mktemp(way) for way in ("alone", "torchrun", "plain")}
    stage = write_stage(folders["alone"], tiny_zimage, num_ranks=2)
    services = {
        "alone": serve(folders["alone"], stage),
        "torchrun": under_torchrun(folders["torchrun"], stage),
        "plain": as_plain_processes(folders["plain"], stage),
    }
    yield services
    for service in services.values():
        service.close()


def under_torchrun(folder: Path, stage: Path) -> Served:
    command = (*TORCHRUN, "--nproc-per-node=2", "-m", "epe", "serve", "--stage-config", str(stage))
    return Served(folder, [command], [user_environment()])


def as_plain_processes(folder: Path, stage: Path) -> Served:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = (*EPE, "serve", "--stage-config", str(stage))
    envs = [user_environment(RANK=str(rank), LOCAL_RANK=str(rank), **meeting) for rank in range(2)]
    return Served(folder, [command, command], envs)


async def test_every_launcher_gives_the_same_service(
    services: dict[str, Served], diffusers_draws: Drawn
) -> None:
    for service in services.values():
        eventually(lambda service=service: bool(service.url), within_s=0)
    replies = await asyncio.gather(*(service.draw(**BODY) for service in services.values()))
    alone, torchrun, plain = (reply.file for reply in replies)
    assert alone == torchrun == plain
    assert np.array_equal(replies[0].pixels, diffusers_draws(**BODY))
    health = [await service.health() for service in services.values()]
    assert [[rank["rank"] for rank in each["ranks"]] for each in health] == [[0, 1]] * 3


async def test_one_sigint_drains_what_runs_and_refuses_what_comes(
    services: dict[str, Served], diffusers_draws: Drawn
) -> None:
    service = services["alone"]
    traces = Traces(service)
    running = asyncio.create_task(service.draw(**LONG))
    await service.until_at_work()
    mark = service.mark()
    service.signal(signal.SIGINT)
    await asyncio.to_thread(wait_for_log, service, "service.changed_phase", since=mark)
    refused = await service.draw(**BODY)
    assert refused.status == 503
    assert "draining" in refused.body["error"]["message"]
    finished = await running
    assert np.array_equal(finished.pixels, diffusers_draws(**LONG))
    assert await asyncio.to_thread(service.exit_codes) == [0]
    traces.assert_gone(within_s=5)
    assert "Traceback" not in service.said()


async def test_two_sigints_end_at_once(services: dict[str, Served]) -> None:
    service = services["plain"]
    traces = Traces(service)
    cut_off = asyncio.create_task(service.draw(**ENDLESS))
    await service.until_at_work()
    service.signal(signal.SIGINT)
    await asyncio.sleep(SAME_CTRL_C_S + 0.3)
    assert service.is_alive, "it drains"
    service.signal(signal.SIGINT)
    assert await asyncio.to_thread(service.exit_codes) == [130, 130]
    traces.assert_gone(within_s=5)
    with pytest.raises(aiohttp.ClientError):
        await cut_off
    assert "Traceback" not in service.said()


async def test_nothing_outlives_a_torchrun_that_is_killed(services: dict[str, Served]) -> None:
    service = services["torchrun"]
    traces = Traces(service)
    cut_off = asyncio.create_task(service.draw(**ENDLESS))
    await service.until_at_work()
    service.parents[0].kill()
    await asyncio.to_thread(traces.assert_gone, within_s=5)
    with pytest.raises(aiohttp.ClientError):
        await cut_off
