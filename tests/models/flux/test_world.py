"""The same bits on real lanes: four processes over gloo."""

from __future__ import annotations

import numpy as np
import pytest

from epe.messages import Split
from tests.models.flux.drawing import Subject
from tests.models.on_ranks import Loading, Turn, draw
from tests.world import World

pytestmark = pytest.mark.world

# Ranks in an order that is not sorted, and lanes that share ranks with the one before.
MOVES: list[Turn] = [
    ((2,), Split(), 1),
    ((3, 1), Split(cp=2), 1),
    ((0, 1, 2), Split(cp=3), 1),
    ((2, 0, 3, 1), Split(cp=4), 1),
]


@pytest.mark.parametrize("attention_mode", ["agkv", "ulysses", "auto"])
def test_a_request_that_moves_between_lanes_over_gloo_keeps_the_pipelines_bits(
    attention_mode: str, world: World, subject: Subject
) -> None:
    request = subject.request(num_steps=len(MOVES))
    drawn = world.run(draw, str(subject.checkpoint), request, MOVES, Loading(attention_mode=attention_mode))
    expected = subject.latents(request).numpy()
    assert all(np.array_equal(drawn[rank], expected) for rank in MOVES[-1][0])
