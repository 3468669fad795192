"""The same bits on real lanes: four processes over gloo."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from diffusers import QwenImagePipeline

from epe.messages import Split
from tests.models.on_ranks import Loading, Turn, draw
from tests.models.qwen_image.drawing import LONGEST, make_request
from tests.oracle import latents_of
from tests.world import World

pytestmark = pytest.mark.world

# Ranks in an order that is not sorted, and lanes that share ranks with the one before.
MOVES: list[Turn] = [
    ((2,), Split(), 1),
    ((3, 1), Split(cfg=2), 1),
    ((0, 1, 2), Split(cp=3), 1),
    ((2, 0, 3, 1), Split(cfg=2, cp=2), 1),
    ((2, 0, 3, 1), Split(cp=4), 1),
]


@pytest.mark.parametrize("mode", ["agkv", "ulysses"])
def test_a_request_that_moves_between_lanes_over_gloo_at_every_boundary_keeps_the_pipelines_bits(
    mode: str, world: World, tiny_qwen_image: Path, pipeline: QwenImagePipeline
) -> None:
    request = make_request(num_steps=len(MOVES), prompt=LONGEST)
    drawn = world.run(draw, str(tiny_qwen_image), request, MOVES, Loading(attention_mode=mode))
    expected = latents_of(pipeline, request).numpy()
    assert all(np.array_equal(drawn[rank], expected) for rank in MOVES[-1][0])
