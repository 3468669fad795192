"""Diffusers' own pipeline in a loop behind HTTP, first come, first served: what a user would write without EPE.

    python -m benchmarks.diffusers_front CHECKPOINT --port 0 --device cuda

It takes the fields of `POST /v1/images/generations` that it knows. One picture is drawn at a time; files are made in
threads beside the loop.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aiohttp import web
from diffusers import DiffusionPipeline

from epe.media.picture import encode_image
from epe.messages import OutputFormat

Body = dict[str, Any]


class Front:
    """One pipeline, and the thread that runs it."""

    def __init__(self, checkpoint: Path, *, device: str) -> None:
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        pipeline = DiffusionPipeline.from_pretrained(checkpoint, dtype=dtype, local_files_only=True)
        self._pipeline: Any = pipeline.to(device)
        self._pipeline.set_progress_bar_config(disable=True)
        self._loop = ThreadPoolExecutor(1, thread_name_prefix="loop")
        self._files = ThreadPoolExecutor(4, thread_name_prefix="files")

    async def draw(self, http: web.Request) -> web.Response:
        """A picture as base64 of a PNG. Requests wait in the queue of the one thread."""
        body = await http.json()
        run = asyncio.get_running_loop().run_in_executor
        pixels = await run(self._loop, partial(self._pixels, body))
        # With the effort of our own files, so that only the drawing differs.
        file = await run(self._files, partial(encode_image, pixels, format=OutputFormat.PNG))
        return web.json_response({"data": [{"b64_json": base64.b64encode(file).decode()}]})

    def _pixels(self, body: Body) -> np.ndarray:
        width, height = map(int, body["size"].split("x"))
        (picture,) = self._pipeline(
            prompt=body["prompt"],
            height=height,
            width=width,
            num_inference_steps=body["num_inference_steps"],
            guidance_scale=body["guidance_scale"],
            generator=torch.Generator("cpu").manual_seed(body["seed"]),
        ).images
        return np.asarray(picture)


async def memory(http: web.Request) -> web.Response:
    """Bytes of the device that this process has."""
    used = torch.cuda.memory_reserved() if torch.cuda.is_available() else 0
    return web.json_response({"reserved_bytes": used})


async def serve(front: Front, *, port: int) -> None:
    app = web.Application()
    app.add_routes([web.post("/v1/images/generations", front.draw), web.get("/memory", memory)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(json.dumps({"event": "service.became_ready", "url": f"http://{host}:{port}"}), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    asyncio.run(serve(Front(arguments.checkpoint, device=arguments.device), port=arguments.port))


if __name__ == "__main__":
    main()
