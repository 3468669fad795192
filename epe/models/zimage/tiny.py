"""A small random-weight Z-Image checkpoint in the folder format of the real one, made without a download."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3Model

from epe.models.checkpoint import quiet_progress

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS = (
    "system user assistant a an the of on in at and with cat dog red green blue chair table city rain light"
)
# Roles, a generation prompt and the thinking switch: what the pipeline asks of a chat template.
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{% endif %}"
    "{% endif %}"
)
_TEXT_WIDTH = 32


def make_tiny(directory: Path, *, seed: int = 0) -> None:
    """Write the checkpoint (about 5 MB) into `directory`; the same seed writes the same bytes."""
    tokenizer = _tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = ZImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=False),
            vae=_vae(),
            text_encoder=_text_encoder(len(tokenizer)),
            tokenizer=tokenizer,
            transformer=_transformer(),
        )
    with quiet_progress():
        pipeline.save_pretrained(directory, safe_serialization=True)


def _tokenizer() -> Qwen2Tokenizer:
    symbols = [*_SPECIAL, *sorted(ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    for word in _WORDS.split():
        for piece in (word, f"Ġ{word}"):
            merges += [(piece[:end], piece[end]) for end in range(1, len(piece))]
    merges = list(dict.fromkeys(merges))
    symbols += dict.fromkeys(left + right for left, right in merges)
    tokenizer = Qwen2Tokenizer(
        vocab={symbol: index for index, symbol in enumerate(symbols)},
        merges=merges,
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(_SPECIAL[1:]),
        model_max_length=4096,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def _text_encoder(num_symbols: int) -> Qwen3Model:
    config = Qwen3Config(
        vocab_size=num_symbols,
        hidden_size=_TEXT_WIDTH,
        intermediate_size=2 * _TEXT_WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
        initializer_range=0.2,
    )
    return Qwen3Model(config).eval()


def _transformer() -> ZImageTransformer2DModel:
    # The inner width, 8/3 of `dim`, is a multiple of 32 as in the real model: with other widths the last values
    # of a shard go through the scalar code of CPU vector loops, whose SiLU has other bits.
    transformer = ZImageTransformer2DModel(
        in_channels=16,
        dim=48,
        n_layers=4,
        n_refiner_layers=2,
        n_heads=3,
        n_kv_heads=3,
        cap_feat_dim=_TEXT_WIDTH,
        axes_dims=[8, 4, 4],
        axes_lens=[1024, 512, 512],
    )
    # Zeros in a fresh model, trained in a real one: a lost pad row must show.
    nn.init.normal_(transformer.x_pad_token)
    nn.init.normal_(transformer.cap_pad_token)
    return transformer.eval()


def _vae() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 16, 32, 32),
        layers_per_block=1,
        latent_channels=16,
        norm_num_groups=8,
        sample_size=1024,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=0.3611,
        shift_factor=0.1159,
    ).eval()
