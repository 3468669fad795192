from __future__ import annotations

from pathlib import Path

from diffusers import WanPipeline

from epe.models.wan.tiny import make_tiny


def _files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tiny_wan: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path / "again")
    make_tiny(tmp_path / "other", seed=1)
    assert _files(tmp_path / "again") == _files(tiny_wan)
    assert _files(tmp_path / "other") != _files(tiny_wan)


def test_it_is_small_and_has_the_shape_of_the_real_one(tiny_wan: Path, pipeline: WanPipeline) -> None:
    assert sum(map(len, _files(tiny_wan).values())) < 8e6
    assert len(pipeline.transformer.blocks) >= 4
    assert (pipeline.vae_scale_factor_spatial, pipeline.vae_scale_factor_temporal) == (8, 4)
    assert pipeline.transformer.config.rope_max_seq_len == 1024
    assert len(pipeline.tokenizer) == pipeline.text_encoder.config.vocab_size
