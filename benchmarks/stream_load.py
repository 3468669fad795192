"""A stream of requests for pictures of mixed sizes, and what a service makes of it, seen by its clients."""

from __future__ import annotations

import asyncio
import base64
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import aiohttp
import numpy as np
from PIL import Image

from epe.models.tiny_parts import WORDS

# Words of a prompt: every request has its own.
LEAST_WORDS, MOST_WORDS = 5, 60
TIMEOUT = aiohttp.ClientTimeout(total=600)


@dataclass(frozen=True, slots=True)
class Draft:
    """How every request of a stream is drawn."""

    num_steps: int
    guidance_scale: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request for a square picture, so many seconds after the begin of the stream."""

    at_s: float
    side: int
    prompt: str
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """When the last byte of the picture was there, in seconds after the begin of the stream."""

    arrival: Arrival
    end_s: float

    @property
    def latency_s(self) -> float:
        return self.end_s - self.arrival.at_s


def poisson(sides: Sequence[int], *, count: int, rate: float, seed: int) -> list[Arrival]:
    """`count` arrivals at `rate` a second, of each side equally many (as far as that divides) in random order."""
    source = Random(seed)
    mixed = [sides[place % len(sides)] for place in range(count)]
    source.shuffle(mixed)
    arrivals, at_s = [], 0.0
    for place, side in enumerate(mixed):
        at_s += source.expovariate(rate)
        arrivals.append(Arrival(at_s, side, prompt_of(source), seed * 10_000 + place))
    return arrivals


def prompt_of(source: Random, *, num_words: int | None = None) -> str:
    count = num_words or source.randint(LEAST_WORDS, MOST_WORDS)
    return " ".join(source.choices(WORDS.split(), k=count))


async def play(url: str, arrivals: Sequence[Arrival], draft: Draft) -> list[Answer]:
    """Each request at its time, whatever became of those before it."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=TIMEOUT, connector=connector) as session:
        begin_s = time.perf_counter()

        async def one(arrival: Arrival) -> Answer:
            await asyncio.sleep(arrival.at_s - (time.perf_counter() - begin_s))
            await _drawn(session, url, arrival, draft)
            return Answer(arrival, time.perf_counter() - begin_s)

        return await asyncio.gather(*map(one, arrivals))


async def play_at_once(url: str, arrivals: Sequence[Arrival], draft: Draft, *, num_clients: int) -> float:
    """So many clients, each of which asks for the next one when it has a picture; the seconds of all."""
    waiting = iter(arrivals)
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:

        async def client() -> None:
            for arrival in waiting:
                await _drawn(session, url, arrival, draft)

        begin_s = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(num_clients)))
        return time.perf_counter() - begin_s


async def picture(url: str, arrival: Arrival, draft: Draft) -> tuple[np.ndarray, float]:
    """One request alone: its pixels (height, width, 3), and the seconds that it took."""
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        begin_s = time.perf_counter()
        file = await _drawn(session, url, arrival, draft)
        took_s = time.perf_counter() - begin_s
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(file)))), took_s


async def _drawn(session: aiohttp.ClientSession, url: str, arrival: Arrival, draft: Draft) -> str:
    """The file in base64. Raises `RuntimeError` for any other answer."""
    body = {
        "prompt": arrival.prompt,
        "size": f"{arrival.side}x{arrival.side}",
        "seed": arrival.seed,
        "num_inference_steps": draft.num_steps,
        "guidance_scale": draft.guidance_scale,
    }
    async with session.post(f"{url}/v1/images/generations", json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {(await answer.text())[:400]}")
        file: str = (await answer.json())["data"][0]["b64_json"]
        return file
