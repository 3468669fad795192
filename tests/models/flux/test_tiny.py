from __future__ import annotations

from tests.models.flux.drawing import Subject


def test_it_has_the_shape_of_the_real_one(subject: Subject) -> None:
    transformer = subject.pipeline.transformer
    assert len(transformer.transformer_blocks) + len(transformer.single_transformer_blocks) >= 4
    assert subject.pipeline.vae_scale_factor == 8
    family = subject.adapter.family
    assert subject.pipeline.vae.config.latent_channels == family.latent_channels
    assert transformer.config.in_channels == 4 * family.latent_channels
