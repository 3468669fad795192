"""The clients of `benchmarks.chaos`: requests of mixed sizes and deadlines, some with FlexCache, some of whose clients
leave."""

from __future__ import annotations

import asyncio
import base64
import io
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import aiohttp
import msgspec
import numpy as np
from PIL import Image

from epe.cache import name_of
from epe.messages import OutputFormat, Pab, Strategy, TaylorSeer, TeaCache
from epe.runtime.embedded import EmbeddedDiffusionRuntime

PROMPT = "a red cube on a white table"


class Kind(NamedTuple):
    """What a request asks for: pixels, denoising steps, what FlexCache may do; the seed is its place in `KINDS`."""

    height: int
    width: int
    num_steps: int
    cache: Strategy | None = None


# Few enough to know all of their bits beforehand.
KINDS = (
    Kind(64, 64, 3),
    Kind(96, 64, 12, TeaCache(threshold=0.35, coefficients=(1.0, 0.0))),
    Kind(128, 128, 6),
    Kind(256, 256, 5),
    Kind(256, 256, 14, TaylorSeer(max_order=2)),
    Kind(208, 304, 8),
    Kind(384, 256, 10, Pab(warmup_steps=3)),
    Kind(512, 512, 4),
    Kind(512, 512, 9),
)
ALLOWED = [name_of(kind.cache) for kind in KINDS if kind.cache]
# A reply comes within this, or the request was lost.
PATIENCE_S = 300.0

Outcome = Literal["finished", "other bits", "failed", "left", "refused", "expired", "gone", "no reply"]


@dataclass(frozen=True)
class Plan:
    """One request to be: when it comes, what it asks for, and when its client leaves (None: it stays)."""

    name: str
    at_s: float
    kind: int
    leaves_after_s: float | None
    deadline_ms: int | None


@dataclass(frozen=True)
class End:
    """How a request ended for its client."""

    plan: Plan
    outcome: Outcome
    status: int = 0
    error: str = ""


def plan_requests(num: int, *, over_s: float, seed: int) -> list[Plan]:
    """`num` requests that come at random over `over_s` seconds; one of six has a client that leaves, one of five a
    deadline at which it wants to be ended."""
    rng = random.Random(f"{seed}/load")
    arrivals = sorted(rng.uniform(0, over_s) for _ in range(num))
    return [
        Plan(
            name=f"chaos-{index}",
            at_s=at_s,
            kind=rng.randrange(len(KINDS)),
            leaves_after_s=rng.uniform(0.0, 4.0) if rng.random() < 1 / 6 else None,
            deadline_ms=rng.choice((500, 5_000, 60_000)) if rng.random() < 1 / 5 else None,
        )
        for index, at_s in enumerate(arrivals)
    ]


async def undisturbed(checkpoint: Path) -> list[np.ndarray]:
    """The pictures of all kinds, uint8 (height, width, 3), drawn by one rank that nobody disturbs."""
    stage = {
        "name": "undisturbed",
        "factory": "zimage",
        "gpu": [0],
        "device": "cpu",
        "parallelism": {"model": {"cfg_parallel_degree": 1}},
        "cache": {"allowed": ALLOWED},
        "factory_args": {"model_path": str(checkpoint)},
    }
    pictures = []
    async with EmbeddedDiffusionRuntime.from_stage(stage) as runtime:
        for seed, kind in enumerate(KINDS):
            result = await runtime.generate(
                PROMPT,
                height=kind.height,
                width=kind.width,
                num_steps=kind.num_steps,
                seed=seed,
                cache=kind.cache,
                output_format=OutputFormat.RAW,
            )
            pictures.append(np.asarray(result.pixels)[0])
    return pictures


async def send_all(url: str, plans: list[Plan], expected: list[np.ndarray]) -> list[End]:
    """Every request at its time; returns when each has its end."""
    async with aiohttp.ClientSession() as session:
        return await asyncio.gather(*(_send(session, url, plan, expected[plan.kind]) for plan in plans))


async def _send(session: aiohttp.ClientSession, url: str, plan: Plan, expected: np.ndarray) -> End:
    await asyncio.sleep(plan.at_s)
    limit_s = PATIENCE_S if plan.leaves_after_s is None else plan.leaves_after_s
    try:
        async with asyncio.timeout(limit_s):
            return await _draw(session, url, plan, expected)
    except TimeoutError:
        return End(plan, "no reply" if plan.leaves_after_s is None else "left")
    except aiohttp.ClientError as error:
        return End(plan, "no reply", error=repr(error))


async def _draw(session: aiohttp.ClientSession, url: str, plan: Plan, expected: np.ndarray) -> End:
    async with session.post(
        f"{url}/v1/images/generations", json=_body(plan), headers={"x-request-id": plan.name}
    ) as answer:
        reply = await answer.json()
    if answer.status == 200:
        same = np.array_equal(_pixels(reply), expected)
        return End(plan, "finished" if same else "other bits", 200)
    outcome: dict[int, Outcome] = {429: "refused", 503: "gone", 504: "expired"}
    return End(plan, outcome.get(answer.status, "failed"), answer.status, reply["error"]["message"])


def _body(plan: Plan) -> dict[str, Any]:
    kind = KINDS[plan.kind]
    body = {
        "prompt": PROMPT,
        "height": kind.height,
        "width": kind.width,
        "num_inference_steps": kind.num_steps,
        "seed": plan.kind,
    }
    if kind.cache is not None:
        body["cache"] = msgspec.to_builtins(kind.cache)
    if plan.deadline_ms is not None:
        body |= {"deadline_ms": plan.deadline_ms, "on_deadline": "expire"}
    return body


def _pixels(reply: dict[str, Any]) -> np.ndarray:
    data = base64.b64decode(reply["data"][0]["b64_json"])
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
