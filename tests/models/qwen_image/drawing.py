"""Requests and references for the tests of Qwen-Image."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers import QwenImagePipeline

from epe.messages import Request

SHORT = "a cat"
LONG = "a cat on a red chair at the table in the city with rain and light, and a green dog in the rain"
# So many tokens that text is shared by the ranks of a lane, in parts that are not even.
LONGEST = "a green dog in the city " * 25
# (height, width) that make 16, 63 and 323 rows of picture; LARGE makes 1024.
SIZES = ((64, 64), (112, 144), (272, 304))
LARGE = (512, 512)
PROMPTS = ((SHORT, " "), (LONG, SHORT), (LONGEST, SHORT), (SHORT, LONGEST))


def make_request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "id": "r",
        "prompt": SHORT,
        "negative_prompt": LONG,
        "height": 112,
        "width": 144,
        "num_steps": 3,
        "guidance_scale": 4.0,
        "seed": 11,
    }
    return Request(**(fields | changes))


def reference(pipeline: QwenImagePipeline, request: Request, *, output_type: str) -> Any:
    """What diffusers' pipeline draws for a request: latents, or the picture as an array (height, width, 3)."""
    images = pipeline(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        height=request.height,
        width=request.width,
        num_inference_steps=request.num_steps,
        true_cfg_scale=request.guidance_scale,
        max_sequence_length=request.max_sequence_length,
        generator=torch.Generator("cpu").manual_seed(request.seed),
        output_type=output_type,
    ).images
    return images if output_type == "latent" else np.asarray(images[0])
