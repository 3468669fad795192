"""A small random-weight Wan 2.1 checkpoint in the folder format of the real one, made without a download."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from transformers import T5TokenizerFast, UMT5Config, UMT5EncoderModel

from epe.models.checkpoint import quiet_progress

_WORDS = "a an the of on in at and with cat dog red green blue chair table city rain light runs turns falls"
_TEXT_WIDTH = 32


def make_tiny(directory: Path, *, seed: int = 0) -> None:
    """Write the checkpoint (about 5 MB) into `directory`; the same seed writes the same bytes."""
    tokenizer = _tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = WanPipeline(
            tokenizer=tokenizer,
            text_encoder=_text_encoder(len(tokenizer)),
            vae=_vae(),
            scheduler=_scheduler(),
            transformer=_transformer(),
        )
    with quiet_progress():
        pipeline.save_pretrained(directory, safe_serialization=True)


def _tokenizer() -> T5TokenizerFast:
    """Whole words where it knows them, letters elsewhere."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(f"▁{word}", -3.0) for word in _WORDS.split()]
    pieces += [(letter, -6.0) for letter in string.ascii_letters + string.digits + string.punctuation]
    # Without sentinels: the model has a row for each symbol and no more.
    return T5TokenizerFast(vocab=pieces, extra_ids=0, additional_special_tokens=[], model_max_length=512)


def _text_encoder(num_symbols: int) -> UMT5EncoderModel:
    config = UMT5Config(
        vocab_size=num_symbols, d_model=_TEXT_WIDTH, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    return UMT5EncoderModel(config).eval()


def _scheduler() -> UniPCMultistepScheduler:
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, num_train_timesteps=1000
    )


def _transformer() -> WanTransformer3DModel:
    # Widths are multiples of 32, as in the real model: with others the last values of a shard go through the
    # scalar code of CPU vector loops, which has other bits. Three heads divide by no even width.
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=3,
        attention_head_dim=32,
        in_channels=16,
        out_channels=16,
        text_dim=_TEXT_WIDTH,
        freq_dim=256,
        ffn_dim=128,
        num_layers=4,
        rope_max_seq_len=1024,
    ).eval()


def _vae() -> AutoencoderKLWan:
    return AutoencoderKLWan(
        base_dim=8,
        z_dim=16,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    ).eval()
