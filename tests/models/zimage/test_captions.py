"""Prompts of many lengths, padded to a few: the pipeline's bits, and one captured pass for all of a padded length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from epe.graphs import Graphs
from epe.messages import Request, Split
from epe.transport.exchange import SoloExchange
from tests.graphs.tape import TapeDevice
from tests.models.every_family import adapters_of, make_request
from tests.models.trajectories import solo
from tests.oracle import latents_of

# Words of prompts with 32 rows when padded, and one whose padding is more.
SHORT, LONG = (1, 6, 12), 40


def of_length(checkpoint: Path, num_words: int) -> Request:
    prompt = " ".join(["dog"] * num_words)
    return make_request(checkpoint, height=64, width=64, prompt=prompt, guidance_scale=0.0, num_steps=2)


@pytest.mark.parametrize("cfg_parallel_degree", [1, 2])
def test_prompts_of_one_padded_length_share_a_captured_pass_with_the_pipelines_bits(
    tiny_zimage: Path, pipeline: Any, cfg_parallel_degree: int
) -> None:
    (adapter,) = adapters_of(tiny_zimage, 1, cfg_parallel_degree=cfg_parallel_degree)
    graphs = Graphs(TapeDevice(), budget_bytes=2**40)
    adapter.use_graphs(graphs)  # type: ignore[attr-defined]
    for count in SHORT:
        request = of_length(tiny_zimage, count)
        drawn = solo(adapter, request).tensors["latents"]
        assert torch.equal(drawn, latents_of(pipeline, request)), count
    assert (graphs.statistics.num_eager, graphs.statistics.num_captured) == (1, 1)
    solo(adapter, of_length(tiny_zimage, LONG))
    assert graphs.statistics.num_captured == 2


def test_the_model_takes_captions_without_masks_as_ever(tiny_zimage: Path) -> None:
    (adapter,) = adapters_of(tiny_zimage, 1)
    request = of_length(tiny_zimage, 6)
    state = adapter.encode(request)
    transformer = adapter.pipeline.transformer
    latents = state.tensors["latents"].unsqueeze(2)
    with torch.inference_mode():
        adapter.velocities([state], SoloExchange(), Split())  # type: ignore[attr-defined]
        (drawn,) = transformer(
            [latents[0]], torch.tensor([0.5]), [state.tensors["prompt_embeds"]], return_dict=False
        )[0]
    assert drawn.shape == latents[0].shape
