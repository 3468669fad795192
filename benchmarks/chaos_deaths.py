"""Deaths of ranks in `benchmarks.chaos`: kill -9 and SIGSTOP at seeded moments, mostly of ranks at work."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass

from tests.service.served import Served

# Ranks at work are picked so often, if there is one.
AT_WORK = 0.85
TWO_AT_ONCE = 0.15
STOPS = 0.3
# Between two looks for a rank that is there to be killed.
LOOK_S = 0.05


@dataclass(frozen=True)
class Death:
    """`at_s` is seconds since the epoch."""

    at_s: float
    rank: int
    kind: str


async def kill_ranks(served: Served, *, num: int, over_s: float, seed: int) -> list[Death]:
    """`num` deaths over `over_s` seconds. A rank that is not there is not killed, so a moment may wait for one."""
    rng = random.Random(f"{seed}/deaths")
    begin_s = time.monotonic()
    moments = sorted(rng.uniform(0.05, 1.0) * over_s for _ in range(num))
    deaths: list[Death] = []
    for moment_s in moments:
        await asyncio.sleep(max(0.0, begin_s + moment_s - time.monotonic()))
        if len(deaths) < num:
            deaths += await _strike(served, rng, most=num - len(deaths))
    return deaths


async def _strike(served: Served, rng: random.Random, *, most: int) -> list[Death]:
    wants_work, two = rng.random() < AT_WORK, most > 1 and rng.random() < TWO_AT_ONCE
    ranks = await _victims(served, wants_work=wants_work)
    victims = rng.sample(ranks, min(len(ranks), 2 if two else 1))
    return [_end(served, rank, "stop" if rng.random() < STOPS else "kill") for rank in victims]


async def _victims(served: Served, *, wants_work: bool, within_s: float = 20.0) -> list[int]:
    """The ranks to choose from: those at work if there is one within a while, else those that are there."""
    end_s = time.monotonic() + within_s
    while True:
        states = {rank["rank"]: rank["state"] for rank in (await served.health())["ranks"]}
        there = [rank for rank, state in states.items() if state in ("idle", "busy")]
        at_work = [rank for rank in there if states[rank] == "busy"]
        if at_work and wants_work:
            return at_work
        if there and (not wants_work or time.monotonic() > end_s):
            return there
        await asyncio.sleep(LOOK_S)


def _end(served: Served, rank: int, kind: str) -> Death:
    at_s = time.time()
    for victim in (process for process in served.processes() if process.rank == rank):
        os.kill(victim.pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    return Death(at_s, rank, kind)
