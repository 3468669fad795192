"""Requests, references and lanes for the tests of Z-Image."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers import ZImagePipeline

from epe.messages import Request, Split
from epe.models.contract import State
from epe.models.zimage.adapter import ZImageAdapter
from epe.transport.exchange import Exchange, SoloExchange
from tests.lanes import on_lane

WIDTHS = (1, 2, 3, 4)
# Short and long differ in their number of 32-token blocks, so that a batch of both needs a mask.
SHORT = "a cat"
LONG = "a cat on a red chair at the table in the city with rain and light, and a green dog in the rain"
SIZES = ((64, 64), (256, 256), (272, 304), (512, 512))
PROMPTS = ((SHORT, "a dog"), (LONG, ""), (SHORT, LONG))


def make_request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "id": "r",
        "prompt": SHORT,
        "negative_prompt": LONG,
        "height": 272,
        "width": 304,
        "num_steps": 3,
        "guidance_scale": 5.0,
        "seed": 11,
    }
    return Request(**(fields | changes))


def reference(pipeline: ZImagePipeline, request: Request, *, output_type: str) -> Any:
    """What diffusers' pipeline draws for a request: latents, or the picture as an array (height, width, 3)."""
    images = pipeline(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        height=request.height,
        width=request.width,
        num_inference_steps=request.num_steps,
        guidance_scale=request.guidance_scale,
        max_sequence_length=request.max_sequence_length,
        generator=torch.Generator("cpu").manual_seed(request.seed),
        output_type=output_type,
    ).images
    return images if output_type == "latent" else np.asarray(images[0])


def solo(adapter: ZImageAdapter, request: Request) -> State:
    """The finished state, drawn on a lane of one."""
    return advance(adapter, adapter.encode(request), SoloExchange(), Split(), num_steps=request.num_steps)


def advance(
    adapter: ZImageAdapter, state: State, exchange: Exchange, split: Split, *, num_steps: int = 1
) -> State:
    for _ in range(num_steps):
        state = adapter.step(state, exchange, split)
    return state


def drawn_by_lane(adapters: list[ZImageAdapter], request: Request, split: Split) -> list[torch.Tensor]:
    """The finished latents of every rank of a lane as wide as `split`."""

    def draw(exchange: Any) -> torch.Tensor:
        adapter = adapters[exchange.position]
        state = advance(adapter, adapter.encode(request), exchange, split, num_steps=request.num_steps)
        return state.tensors["latents"]

    return on_lane(split.cfg * split.cp, draw)
