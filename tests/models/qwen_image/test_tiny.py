from __future__ import annotations

from pathlib import Path

from diffusers import QwenImagePipeline

from epe.models.qwen_image.tiny import make_tiny


def _files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(
    tiny_qwen_image: Path, tmp_path: Path
) -> None:
    make_tiny(tmp_path / "again")
    make_tiny(tmp_path / "other", seed=1)
    assert _files(tmp_path / "again") == _files(tiny_qwen_image)
    assert _files(tmp_path / "other") != _files(tiny_qwen_image)


def test_it_is_small_and_has_the_shape_of_the_real_one(
    tiny_qwen_image: Path, pipeline: QwenImagePipeline
) -> None:
    assert sum(map(len, _files(tiny_qwen_image).values())) < 12e6
    assert len(pipeline.transformer.transformer_blocks) >= 4
    assert pipeline.vae_scale_factor == 8


def test_its_template_begins_with_the_34_tokens_that_the_pipeline_drops(pipeline: QwenImagePipeline) -> None:
    before, _, _ = pipeline.prompt_template_encode.partition("{}")
    assert len(pipeline.tokenizer(before).input_ids) == pipeline.prompt_template_encode_start_idx == 34
