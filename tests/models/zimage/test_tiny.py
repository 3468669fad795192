from __future__ import annotations

from pathlib import Path

from diffusers import ZImagePipeline


def test_it_has_the_shape_of_the_real_one(tiny_zimage: Path, pipeline: ZImagePipeline) -> None:
    assert len(pipeline.transformer.layers) >= 4
    assert len(pipeline.transformer.noise_refiner) == 2
    assert pipeline.vae_scale_factor == 8
    assert pipeline.transformer.x_pad_token.abs().min() > 0
    assert pipeline.transformer.cap_pad_token.abs().min() > 0
