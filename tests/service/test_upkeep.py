"""The shared service while its ranks are drained and restarted: every picture comes, and is the right one."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.service.served import EPE, START_WITHIN_S, Served, user_environment

pytestmark = pytest.mark.world
WANTED = {"size": "256x256", "seed": 5, "num_inference_steps": 6}


async def epe_ranks(service: Served, *argv: str) -> str:
    """What the command says; it succeeds."""
    process = await asyncio.create_subprocess_exec(
        *EPE,
        "ranks",
        *argv,
        "--url",
        service.url,
        env=user_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=sys.stderr,
    )
    async with asyncio.timeout(4 * START_WITHIN_S):
        said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode()


async def test_a_drained_rank_gets_no_work_until_it_is_readmitted(service: Served) -> None:
    said = await epe_ranks(service, "drain", "2")
    assert said.endswith("rank 2: drained\n")
    replies = await asyncio.gather(*(service.draw(**WANTED) for _ in range(4)))
    assert all(2 not in lane for reply in replies for lane in reply.lanes)
    assert (await service.health())["ranks"][2]["state"] == "drained"
    assert await epe_ranks(service, "readmit", "2") == "rank 2: idle\n"


async def test_all_ranks_are_restarted_while_pictures_are_drawn_and_the_pictures_are_the_same(
    service: Served,
) -> None:
    undisturbed = await service.draw(**WANTED)
    before = {process.rank: process.pid for process in service.processes() if process.rank is not None}
    mark = service.mark()
    restart = asyncio.create_task(epe_ranks(service, "restart"))
    drawn = []
    while not restart.done():
        drawn += await asyncio.gather(*(service.draw(**WANTED) for _ in range(3)))
        await asyncio.sleep(0.5)  # So that the ranks which start have a core too.
    assert (await restart).endswith("all ranks have been restarted\n")
    assert len(drawn) >= 3
    assert {reply.file for reply in drawn} == {undisturbed.file}
    assert {reply.body["data"][0]["epe"]["num_repeated_steps"] for reply in drawn} == {0}
    after = {process.rank: process.pid for process in service.processes() if process.rank is not None}
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert [event["rank"] for event in service.events("rank.was_restarted", since=mark)] == [0, 1, 2, 3]
    assert not list(service.events("rank.was_lost", since=mark))
