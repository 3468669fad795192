"""A small random-weight Qwen-Image checkpoint in the folder format of the real one, made without a download."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from epe.models.tiny_parts import save

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# The pipeline drops the first 34 tokens of its template: the tokenizer must know these words whole, as the real one.
_CORPUS = (
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the "
    "objects and background:",
    "system user assistant\n",
    "a cat on a red chair at the table in the city with rain and light, and a green dog in blue rain",
)
_TEXT_WIDTH = 32


def make_tiny(directory: Path, *, seed: int = 0) -> None:
    """Write the checkpoint (about 6 MB) into `directory`; the same seed writes the same bytes."""
    tokenizer = _tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = QwenImagePipeline(
            scheduler=_scheduler(),
            vae=_vae(),
            text_encoder=_text_encoder(tokenizer),
            tokenizer=tokenizer,
            transformer=_transformer(),
        )
    save(pipeline, directory)


def _tokenizer() -> Qwen2Tokenizer:
    blank = Qwen2Tokenizer(vocab={_SPECIAL[0]: 0}, merges=[]).backend_tokenizer
    blank.train_from_iterator(
        _CORPUS,
        BpeTrainer(
            vocab_size=1000,
            min_frequency=1,
            special_tokens=list(_SPECIAL),
            initial_alphabet=sorted(ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    learned = json.loads(blank.to_str())["model"]
    return Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(merge) for merge in learned["merges"]],
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(_SPECIAL[1:]),
        model_max_length=4096,
    )


def _text_encoder(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLForConditionalGeneration:
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": _TEXT_WIDTH,
            "intermediate_size": 2 * _TEXT_WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 4096,
            "initializer_range": 0.2,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": _TEXT_WIDTH,
        },
        tie_word_embeddings=False,
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        vision_token_id=tokenizer.convert_tokens_to_ids("<|vision_pad|>"),
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
    )
    return Qwen2_5_VLForConditionalGeneration(config).eval()


def _scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(
        shift=1.0,
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=0.9,
        base_image_seq_len=256,
        max_image_seq_len=8192,
        shift_terminal=0.02,
        time_shift_type="exponential",
    )


def _transformer() -> QwenImageTransformer2DModel:
    # Widths are multiples of 32, as in the real model: with others the last values of a shard go through the
    # scalar code of CPU vector loops, which has other bits. Three heads divide by no even width.
    return QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=64,
        out_channels=16,
        num_layers=4,
        attention_head_dim=32,
        num_attention_heads=3,
        joint_attention_dim=_TEXT_WIDTH,
        axes_dims_rope=(8, 12, 12),
    ).eval()


def _vae() -> AutoencoderKLQwenImage:
    return AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=16,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    ).eval()
