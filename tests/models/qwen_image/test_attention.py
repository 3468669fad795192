"""Qwen-Image's attention as compiled blocks have it."""

from __future__ import annotations

from pathlib import Path

import torch

from epe.models.qwen_image.adapter import QwenImageAdapter
from epe.models.qwen_image.attention import make_attention_fast
from tests.models.every_family import adapters_of
from tests.models.qwen_image.drawing import make_request
from tests.models.trajectories import solo


def held_bytes(model: torch.nn.Module) -> int:
    """Of all memory behind the parameters, that of several counted once."""
    memory = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in model.parameters()
    }
    return sum(memory.values())


def test_the_text_is_one_product_of_the_weights_that_were_there(
    tiny_qwen_image: Path, adapters: list[QwenImageAdapter]
) -> None:
    (fast,) = adapters_of(tiny_qwen_image, 1)
    model = fast.pipeline.transformer
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    before_bytes = held_bytes(model)
    make_attention_fast(model)
    fast.sharding.share_attention()
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert held_bytes(model) == before_bytes
    attn = model.transformer_blocks[0].attn
    assert attn.processor.of_text.weight.data_ptr() == attn.add_q_proj.weight.data_ptr()
    request = make_request(num_steps=2)
    expected = solo(adapters[0], request).tensors["latents"]
    drawn = solo(fast, request).tensors["latents"]
    torch.testing.assert_close(drawn, expected, rtol=0, atol=2e-5)
