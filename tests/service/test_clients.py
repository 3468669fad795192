"""Many clients, and clients that leave: what other systems are complained about."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.service.conftest import Drawn
from tests.service.served import Served, wait_for_log

pytestmark = pytest.mark.world

SMALL: list[dict[str, Any]] = [
    {"size": "64x64", "num_inference_steps": steps, "seed": seed}
    for seed, steps in enumerate((1, 2, 3, 5), start=50)
]
NUM_NORMAL = NUM_ABORTED = 40
AT_ONCE = 12


async def test_eight_requests_at_once_with_different_step_counts_are_each_right(
    service: Served, diffusers_draws: Drawn
) -> None:
    bodies = [{"size": "96x128", "num_inference_steps": steps, "seed": 30 + steps} for steps in range(1, 9)]
    replies = await asyncio.gather(*(service.draw(**body) for body in bodies))
    for body, reply in zip(bodies, replies, strict=True):
        assert np.array_equal(reply.pixels, diffusers_draws(**body)), body


async def test_a_request_whose_client_leaves_is_cancelled_and_the_next_one_starts(service: Served) -> None:
    expected = (await service.draw(**SMALL[0])).file
    mark = service.mark()
    leaving = asyncio.create_task(service.draw(size="512x512", num_inference_steps=1000))
    await service.until_at_work()
    leaving.cancel()
    ended = await asyncio.to_thread(wait_for_log, service, "request.failed", since=mark)
    assert ended["kind"] == "cancelled"
    assert (await service.draw(**SMALL[0])).file == expected
    health = await service.health()
    assert (health["num_running"], health["num_waiting"]) == (0, 0)
    assert all(rank["state"] == "idle" for rank in health["ranks"])


async def test_health_is_answered_again_and_again_while_every_rank_is_busy(service: Served) -> None:
    await service.draw(**SMALL[0])
    drawing = asyncio.gather(
        *(service.draw(size="512x512", num_inference_steps=8, seed=seed) for seed in range(4))
    )
    answers = []
    while not drawing.done():
        answers.append(await service.health())
        await asyncio.sleep(0.02)
    await drawing
    busy = [answer for answer in answers if any(rank["state"] == "busy" for rank in answer["ranks"])]
    assert len(busy) > 20, "health waits for the steps"
    assert all(answer["status"] == "running" for answer in answers)


async def test_requests_among_aborted_ones_are_all_right(service: Served) -> None:
    expected = [(await service.draw(**body)).file for body in SMALL]
    seeded, mark = random.Random(7), service.mark()
    gate = asyncio.Semaphore(AT_ONCE)

    async def normal(index: int) -> None:
        kind = index % len(SMALL)
        async with gate:
            assert (await service.draw(**SMALL[kind])).file == expected[kind]

    async def aborted(patience_s: float) -> None:
        async with gate:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await service.draw(size="256x256", num_inference_steps=500)

    work = [normal(index) for index in range(NUM_NORMAL)]
    work += [aborted(seeded.uniform(0.0, 0.4)) for _ in range(NUM_ABORTED)]
    seeded.shuffle(work)
    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(each)
    await service.until_idle()
    finished = list(service.events("request.finished", since=mark))
    failed = list(service.events("request.failed", since=mark))
    assert len(finished) == NUM_NORMAL
    assert {event["kind"] for event in failed} == {"cancelled"}


async def test_nothing_grows_over_sixty_identical_requests(service: Served) -> None:
    await draw_again_and_again(service, times=18)
    before = list(sizes(service))
    await draw_again_and_again(service, times=60)
    for (command, *was), (_, *now) in zip(before, sizes(service), strict=True):
        threads, descriptors, resident_mib = (b - a for a, b in zip(was, now, strict=True))
        assert threads <= 4, command
        assert descriptors <= 4, command
        assert resident_mib <= 24, command


async def draw_again_and_again(service: Served, *, times: int) -> None:
    """The same request, six at once."""
    for _ in range(times // 6):
        await asyncio.gather(*(service.draw(**SMALL[2]) for _ in range(6)))


def sizes(service: Served) -> Iterator[tuple[str, int, int, int]]:
    """Of each process: its command, threads, descriptors and resident MiB."""
    for each in service.processes():
        yield each.command, each.num_threads, each.num_descriptors, each.resident_bytes // 2**20


async def test_an_idle_service_sleeps(service: Served, record_property: Any) -> None:
    """In one second of a few: what the requests before have left to do comes first."""
    await service.draw(**SMALL[0])
    shares = []
    while len(shares) < 10 and min(shares, default=1.0) > 0.2:
        shares.append(await cores_used(service, over_s=1.0))
    record_property("cores_used_when_idle", min(shares))
    assert min(shares) <= 0.2, shares


async def cores_used(service: Served, *, over_s: float) -> float:
    """By all processes of a service together."""
    processes, begin_s = service.processes(), time.monotonic()
    before_s = sum(process.cpu_s for process in processes)
    await asyncio.sleep(over_s)
    return (sum(process.cpu_s for process in processes) - before_s) / (time.monotonic() - begin_s)
