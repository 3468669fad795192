"""Requests over time under the default policy, on four ranks: every picture is right, whatever the lanes did."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from tests.service.conftest import Drawn
from tests.service.served import Reply, Served

pytestmark = pytest.mark.world

Layout = list[list[int]]

# What the lanes do follows from costs as they were measured; a wave on a loaded machine may happen to need no change.
MAX_WAVES = 3
# Seconds after the first one, and what is asked for.
ARRIVALS: list[tuple[float, dict[str, Any]]] = [
    (0.0, {"size": "512x512", "num_inference_steps": 14, "seed": 1}),
    (0.7, {"size": "256x256", "num_inference_steps": 6, "seed": 2}),
    (0.8, {"size": "128x64", "num_inference_steps": 9, "seed": 3}),
    (0.9, {"size": "304x272", "num_inference_steps": 7, "seed": 4, "negative_prompt": "a dog"}),
    (1.0, {"size": "256x256", "num_inference_steps": 1, "seed": 5}),
    (1.2, {"size": "128x64", "num_inference_steps": 12, "seed": 6, "guidance_scale": 0}),
    (1.4, {"size": "304x272", "num_inference_steps": 3, "seed": 7}),
    (1.6, {"size": "256x256", "num_inference_steps": 10, "seed": 8}),
    (1.8, {"size": "128x64", "num_inference_steps": 2, "seed": 9}),
    (2.5, {"size": "304x272", "num_inference_steps": 8, "seed": 10}),
]


async def draw_over_time(service: Served) -> list[Reply]:
    async def later(delay_s: float, body: dict[str, Any]) -> Reply:
        await asyncio.sleep(delay_s)
        return await service.draw(**body)

    return await asyncio.gather(*(later(delay_s, body) for delay_s, body in ARRIVALS))


async def test_ten_requests_share_the_ranks_in_changing_lanes_and_none_changes_a_pixel(
    service: Served, diffusers_draws: Drawn
) -> None:
    alone = [(await service.draw(**body)).file for _, body in ARRIVALS]
    expected = [diffusers_draws(**body) for _, body in ARRIVALS]
    mark = service.mark()
    for _ in range(MAX_WAVES):
        replies = await draw_over_time(service)
        assert [reply.status for reply in replies] == [200] * len(ARRIVALS)
        assert [reply.file for reply in replies] == alone
        assert all(map(np.array_equal, (reply.pixels for reply in replies), expected))
        if changed_width(replies) and differed_in_width(layouts(service, since=mark)):
            break
    assert changed_width(replies), [reply.lanes for reply in replies]
    assert differed_in_width(layouts(service, since=mark))
    for ranks in map(flat, layouts(service, since=mark)):
        assert len(ranks) == len(set(ranks)), "a rank in two lanes"


def changed_width(replies: list[Reply]) -> bool:
    """Whether a request ran at two widths."""
    return any(len(set(map(len, reply.lanes))) > 1 for reply in replies)


def differed_in_width(layouts: list[Layout]) -> bool:
    """Whether lanes of different width were at work at once."""
    return any(len(set(map(len, lanes))) > 1 for lanes in layouts)


def layouts(service: Served, *, since: int) -> list[Layout]:
    return [event["lanes"] for event in service.events("layout.changed", since=since)]


def flat(lanes: Layout) -> list[int]:
    return [rank for lane in lanes for rank in lane]


def test_each_rank_runs_its_leases_one_after_the_other_in_the_order_of_their_numbers(service: Served) -> None:
    """By the log of all that this service has done so far."""
    sent: defaultdict[int, list[int]] = defaultdict(list)
    ended: defaultdict[int, list[int]] = defaultdict(list)
    for event in service.events("lease.sent"):
        for rank in event["ranks"]:
            sent[rank].append(event["seq"])
    for event in service.events("lease.ended"):
        ended[event["rank"]].append(event["seq"])
    assert set(ended) == {0, 1, 2, 3}
    assert sum(map(len, ended.values())) > 50
    assert ended == sent
    assert all(numbers == sorted(numbers) for numbers in ended.values())
