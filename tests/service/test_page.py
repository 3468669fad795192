"""The page of the real service: what a person sees there is what the ranks do."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from tests.browser import Browser, Tab, open_tab
from tests.service.served import Served

pytestmark = pytest.mark.world

STEPS = 12


async def shown(tab: Tab) -> np.ndarray:
    """The pixels of the picture in the page, uint8 (height, width, 3)."""
    url = await tab.run(
        """(() => { const image = document.querySelector("#picture-image"), canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        canvas.getContext("2d").drawImage(image, 0, 0);
        return canvas.toDataURL("image/png") })()"""
    )
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGB"))


async def test_a_person_draws_a_picture_in_the_page_sees_its_lane_and_gets_the_bits_of_any_other_client(
    service: Served, browser: Browser
) -> None:
    async with open_tab(browser, service.url) as tab:
        await tab.reads("#connection", "Live")
        fields = {
            "prompt": "a cat",
            "size": "256x256",
            "num_inference_steps": f"{STEPS}",
            "seed": "43",
            "deadline_s": "900",
        }
        for name, words in fields.items():
            await tab.write(f"#{name}", words)
        await tab.click("#draw-button")
        await tab.reads("#draw-state", "Finished.")
        pixels = await shown(tab)
        await tab.reads("#detail-facts", "finished")
        stretches = await tab.text("#detail-stretches")
        (row,) = [line for line in (await tab.text("#ended")).splitlines() if "finished" in line][:1]
    assert f"to {STEPS} on rank" in stretches
    assert "wide" in row
    reply = await service.draw(prompt="a cat", size="256x256", num_inference_steps=STEPS, seed=43)
    np.testing.assert_array_equal(pixels, reply.pixels)
