"""Modulations that are computed once a step: the bits of a block's own, and how often."""

from __future__ import annotations

import torch
from diffusers import QwenImageTransformer2DModel
from torch import nn

from epe.models.modulating import MODULATIONS, Modulations

NAMES = ("img_mod", "txt_mod")
NUM_BLOCKS = 2


def tiny_model() -> QwenImageTransformer2DModel:
    torch.manual_seed(3)
    return QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=NUM_BLOCKS,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=8,
        axes_dims_rope=(4, 6, 6),
    ).eval()


def counted(model: nn.Module) -> list[str]:
    """Hears of each product of a modulation."""
    heard: list[str] = []
    for name, module in model.named_modules():
        if name.endswith(tuple(f"{each}.1" for each in NAMES)):
            module.register_forward_hook(lambda *_, name=name: heard.append(name))
    return heard


@torch.inference_mode()
def test_all_passes_of_a_step_share_modulations_with_the_bits_of_their_own() -> None:
    model = tiny_model()
    generator = torch.Generator().manual_seed(5)
    latents = torch.randn(2, 6, 16, generator=generator)
    texts = [torch.randn(2, rows, 8, generator=generator) for rows in (3, 5)]
    levels = torch.tensor([0.9, 0.4])

    def passes(options: dict[str, torch.Tensor] | None) -> list[torch.Tensor]:
        shapes = [[(1, 2, 3)]] * 2
        return [
            model(latents, text, timestep=levels, img_shapes=shapes, attention_kwargs=options).sample
            for text in texts
        ]

    alone = passes(None)
    modulations = Modulations(model.transformer_blocks, NAMES)
    heard = counted(model)
    given = modulations.of(model.time_text_embed(levels, latents))
    assert given.shape == (NUM_BLOCKS, len(NAMES), 2, 6 * 32)
    shared = passes({MODULATIONS: given})
    assert all(map(torch.equal, shared, alone))
    assert len(heard) == NUM_BLOCKS * len(NAMES)
    assert all(map(torch.equal, passes(None), alone))


@torch.inference_mode()
def test_other_options_of_attention_stay_with_their_block() -> None:
    model = tiny_model()
    block = model.transformer_blocks[1]
    modulations = Modulations(model.transformer_blocks, NAMES)
    given: list[object] = []
    block.register_forward_pre_hook(lambda _, args, kwargs: given.append(kwargs), with_kwargs=True)
    table = modulations.of(torch.zeros(1, 32))
    rows = {"hidden_states": torch.zeros(1, 4, 32), "encoder_hidden_states": torch.zeros(1, 2, 32)}
    options = {MODULATIONS: table, "attention_mask": None}
    block(**rows, encoder_hidden_states_mask=None, temb=torch.zeros(1, 32), joint_attention_kwargs=options)
    (kwargs,) = given
    assert isinstance(kwargs, dict)
    assert kwargs["joint_attention_kwargs"] == {"attention_mask": None}
    assert torch.equal(kwargs["temb"], table[1])
    assert MODULATIONS in options
