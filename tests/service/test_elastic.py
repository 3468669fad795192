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

# Seconds after the first one, and what is asked for.
ARRIVALS: list[tuple[float, dict[str, Any]]] = [
    (0.0, {"size": "512x512", "num_inference_steps": 20, "seed": 1}),
    (0.7, {"size": "256x256", "num_inference_steps": 6, "seed": 2}),
    (0.8, {"size": "128x64", "num_inference_steps": 9, "seed": 3}),
    (0.9, {"size": "304x272", "num_inference_steps": 7, "seed": 4, "negative_prompt": "a dog"}),
    (1.0, {"size": "256x256", "num_inference_steps": 1, "seed": 5}),
    (1.2, {"size": "128x64", "num_inference_steps": 12, "seed": 6, "guidance_scale": 0}),
    (1.4, {"size": "304x272", "num_inference_steps": 3, "seed": 7}),
    (1.6, {"size": "256x256", "num_inference_steps": 10, "seed": 8}),
    (1.8, {"size": "128x64", "num_inference_steps": 2, "seed": 9}),
    (2.5, {"size": "304x272", "num_inference_steps": 12, "seed": 10}),
]


async def draw_over_time(service: Served) -> list[Reply]:
    async def later(delay_s: float, body: dict[str, Any]) -> Reply:
        await asyncio.sleep(delay_s)
        return await service.draw(**body)

    return await asyncio.gather(*(later(delay_s, body) for delay_s, body in ARRIVALS))


def widths(reply: Reply) -> set[int]:
    return set(map(len, reply.lanes))


def flat(lanes: list[list[int]]) -> list[int]:
    return [rank for lane in lanes for rank in lane]


async def test_ten_requests_share_the_ranks_in_changing_lanes_and_none_changes_a_pixel(
    service: Served, diffusers_draws: Drawn
) -> None:
    await service.draw()  # the service is ready
    mark = service.mark()
    replies = await draw_over_time(service)
    assert [reply.status for reply in replies] == [200] * len(ARRIVALS)
    assert any(len(widths(reply)) > 1 for reply in replies), [reply.lanes for reply in replies]
    layouts = [event["lanes"] for event in service.events("layout.changed", since=mark)]
    assert any(len(set(map(len, lanes))) > 1 for lanes in layouts), "lanes of different width at once"
    assert all(len(ranks) == len(set(ranks)) for ranks in map(flat, layouts)), "no rank in two lanes"
    for (_, body), reply in zip(ARRIVALS, replies, strict=True):
        assert (await service.draw(**body)).file == reply.file, "drawn alone it is the same file"
        assert np.array_equal(reply.pixels, diffusers_draws(**body)), body


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
