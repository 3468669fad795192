"""The last of this folder: it ends the service that all others share."""

from __future__ import annotations

import asyncio
import signal

import aiohttp
import pytest

from tests.launch.service import eventually
from tests.service.served import Served, Traces
from tests.service.test_launch import ENDLESS

pytestmark = pytest.mark.world


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_request_whose_rank_dies_gets_the_picture_of_an_undisturbed_one_and_the_rank_comes_back(
    service: Served, number: signal.Signals
) -> None:
    wanted = {"size": "512x512", "seed": 5, "num_inference_steps": 12}
    undisturbed = await service.draw(**wanted)
    mark = service.mark()
    work = [asyncio.create_task(service.draw(**wanted)) for _ in range(3)]
    await service.until_at_work()
    rank = await a_busy_rank(service)
    service.kill_rank(rank, number)
    for reply in await asyncio.gather(*work):
        assert reply.file == undisturbed.file
    await service.until_all_ranks_work()
    assert [event["rank"] for event in service.events("rank.was_lost", since=mark)] == [rank]
    assert any(service.events("request.resumed", since=mark))
    assert (await service.draw(**wanted)).file == undisturbed.file


async def test_a_job_whose_leader_dies_gets_the_picture_of_an_undisturbed_one_and_its_id_still_answers(
    service: Served,
) -> None:
    wanted = {"size": "512x512", "seed": 5, "num_inference_steps": 12}
    before = await service.until_ended(await service.job(key="before", **wanted))
    picture = (await service.ask("GET", before["data"][0]["content"]))[1]
    jobs = [await service.job(key=f"job-{index}", **wanted) for index in range(3)]
    cut_off = asyncio.create_task(service.draw(**ENDLESS))
    states = service.log_path.parent / "jobs" / "states"
    stored = [states / job["id"] for job in jobs]
    await asyncio.to_thread(eventually, lambda: any(path.exists() for path in stored), within_s=60)
    mark = service.mark()
    service.kill_leader(signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await cut_off
    again = [await service.job(key=f"job-{index}", **wanted) for index in range(3)]
    assert [job["id"] for job in again] == [job["id"] for job in jobs]
    for job in [before, *jobs]:
        ended = await service.until_ended(job)
        assert ended["status"] == "completed"
        assert (await service.ask("GET", ended["data"][0]["content"]))[1] == picture
    steps = [step for event in service.events("job.went_on", since=mark) for step in event["steps"]]
    assert any(step is not None for step in steps), "none went on from its state on disk"
    await service.until_all_ranks_work()
    assert (await service.draw(**wanted)).file == picture


async def a_busy_rank(service: Served) -> int:
    while True:
        for rank in (await service.health())["ranks"]:
            if rank["state"] == "busy":
                return int(rank["rank"])


async def test_nothing_outlives_a_parent_that_is_killed(service: Served) -> None:
    await service.draw()
    traces = Traces(service)
    cut_off = asyncio.create_task(service.draw(**ENDLESS))
    await service.until_at_work()
    service.parents[0].kill()
    await asyncio.to_thread(traces.assert_gone, within_s=5)
    with pytest.raises(aiohttp.ClientError):
        await cut_off
