"""The demo model through the service: a newcomer's first picture, looked at."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.service.served import EPE, Served, user_environment

pytestmark = pytest.mark.world


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`epe serve` without a stage file, on two CPU ranks."""
    env = user_environment(CUDA_VISIBLE_DEVICES="")
    served = Served(tmp_path_factory.mktemp("demo"), [(*EPE, "serve", "--port", "0")], [env])
    yield served
    served.close()


def reds(pixels: np.ndarray) -> np.ndarray:
    """Where a picture is clearly red."""
    red, green, blue = (pixels[..., channel].astype(int) for channel in range(3))
    return (red > 110) & (red > 2 * green) & (red > 2 * blue)


@pytest.mark.parametrize(("place", "left", "right"), [("on the left", 0.1, 0.4), ("on the right", 0.6, 0.9)])
async def test_a_red_cube_on_a_white_table_is_red_and_where_it_was_asked_for(demo, place, left, right):
    reply = await demo.draw(prompt=f"a red cube {place} on a white table", num_inference_steps=12)
    pixels = reply.pixels
    assert pixels.shape == (256, 256, 3)
    rows, columns = np.nonzero(reds(pixels))
    assert len(rows) > 0.01 * pixels.shape[0] * pixels.shape[1]
    assert left < columns.mean() / pixels.shape[1] < right
    table = pixels[-30:, :, :].reshape(-1, 3)
    assert np.median(table, axis=0).min() > 150


async def test_words_that_the_model_does_not_know_are_named_in_the_reply(demo):
    reply = await demo.draw(prompt="a red zebra", num_inference_steps=1)
    assert any("'zebra'" in warning for warning in reply.body["warnings"])
    known = await demo.draw(prompt="a red cube", num_inference_steps=1)
    assert known.body["warnings"] == []


async def test_two_ranks_serve_it_on_loopback(demo: Served):
    health = await demo.health()
    assert [rank["device"] for rank in health["ranks"]] == ["cpu", "cpu"]
    assert demo.url.startswith("http://127.0.0.1:")


def test_it_ends_in_order_and_leaves_no_file(demo: Served):
    before = set(Path(tempfile.gettempdir()).glob("epe-*"))
    demo.signal(signal.SIGINT)
    assert demo.exit_codes() == [0]
    assert set(Path(tempfile.gettempdir()).glob("epe-*")) <= before
