"""Streams, series and results of the real service: what a client sees is what the ranks drew."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import aiohttp
import numpy as np
import pytest
from PIL import Image

from tests.service.conftest import Drawn
from tests.service.served import Served

pytestmark = pytest.mark.world

BODY: dict[str, Any] = {"prompt": "a cat", "size": "128x96", "num_inference_steps": 8, "seed": 41}


def pixels_of(data: dict[str, Any]) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data["b64_json"]))))


async def test_previews_come_while_the_picture_is_drawn_and_change_none_of_its_bits(
    service: Served, diffusers_draws: Drawn
) -> None:
    body = {**BODY, "stream": True, "partial_images": 3}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{service.url}/v1/images/generations", json=body) as answer,
    ):
        text = await answer.text()
    events = [
        json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")
    ]
    *previews, last = events
    assert previews, "at least one preview"
    for preview in previews:
        assert preview["type"] == "image_generation.partial_image"
        assert pixels_of(preview).shape == (96, 128, 3)
    steps = [preview["step"] for preview in previews]
    assert steps == sorted(set(steps))
    expected = diffusers_draws(size="128x96", num_inference_steps=8, seed=41)
    assert np.array_equal(pixels_of(last), expected)


async def test_picture_i_of_n_is_the_one_that_is_asked_for_alone_with_its_seed(service: Served) -> None:
    together = (await service.draw(**BODY, n=3)).body["data"]
    assert [each["seed"] for each in together] == [41, 42, 43]
    for each in together:
        alone = await service.draw(**{**BODY, "seed": each["seed"]})
        assert each["b64_json"] == alone.body["data"][0]["b64_json"]


async def test_a_result_by_url_has_the_bytes_of_one_in_the_reply(service: Served) -> None:
    within = (await service.draw(**BODY)).file
    (item,) = (await service.draw(**BODY, response_format="url")).body["data"]
    assert item["url"].startswith(service.url)
    async with aiohttp.ClientSession() as session, session.get(item["url"]) as answer:
        assert await answer.read() == within


async def test_a_plan_is_near_to_what_the_picture_then_takes(service: Served) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{service.url}/v1/plan", json=BODY) as answer,
    ):
        plan = await answer.json()
    told = (await service.draw(**BODY)).body["epe"]
    assert plan["predicted_s"] == pytest.approx(told["predicted_s"], rel=0.5)
    assert [each["width"] for each in plan["widths"]] == [1, 2, 4]
