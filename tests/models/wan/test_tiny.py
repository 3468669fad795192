from __future__ import annotations

from pathlib import Path

from diffusers import WanPipeline


def test_it_has_the_shape_of_the_real_one(tiny_wan: Path, pipeline: WanPipeline) -> None:
    assert len(pipeline.transformer.blocks) >= 4
    assert (pipeline.vae_scale_factor_spatial, pipeline.vae_scale_factor_temporal) == (8, 4)
    assert pipeline.transformer.config.rope_max_seq_len == 1024
    assert len(pipeline.tokenizer) == pipeline.text_encoder.config.vocab_size
