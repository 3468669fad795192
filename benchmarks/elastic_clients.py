"""How a client of `benchmarks.elastic_service` asks for a picture or a video, and hears how long it took: seconds from
its acceptance to its file by the service's clock, since a client that asks again and again would know it less well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from epe.messages import Request

Ask = Callable[[aiohttp.ClientSession, Request], Awaitable[float]]
# Videos are jobs: a client asks so often whether its own is there. More often, and asking would keep the leader busy.
ASKED_AGAIN_S = 0.05


async def ask_for_picture(session: aiohttp.ClientSession, request: Request) -> float:
    body = {**_body(request), "output_format": "jpeg"}
    async with session.post("/v1/images/generations", json=body) as answer:
        found = await _json(answer)
    return float(found["epe"]["total_s"])


async def ask_for_video(session: aiohttp.ClientSession, request: Request) -> float:
    body = {**_body(request), "num_frames": request.num_frames}
    async with session.post("/v1/videos", json=body) as answer:
        job = await _json(answer)
    path = f"/v1/videos/{job['id']}"
    while job["status"] in ("queued", "in_progress"):
        await asyncio.sleep(ASKED_AGAIN_S)
        async with session.get(path) as answer:
            job = await _json(answer)
    if job["status"] != "completed":
        raise RuntimeError(f"the video was not drawn: {job}")
    return float(job["epe"]["drawn"]["total_s"])


def _body(request: Request) -> dict[str, Any]:
    deadline = {} if request.deadline_s is None else {"deadline_ms": round(1e3 * request.deadline_s)}
    return {
        "prompt": "a red cube on a white table",
        "size": f"{request.width}x{request.height}",
        "num_inference_steps": request.num_steps,
        "seed": 1,
        **deadline,
    }


async def _json(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    content = await answer.read()
    if answer.status >= 400:
        raise RuntimeError(f"the service answers {answer.status}: {content[:300]!r}")
    found: dict[str, Any] = await answer.json()
    return found
