from __future__ import annotations

from pathlib import Path

from diffusers import QwenImagePipeline


def test_it_has_the_shape_of_the_real_one(tiny_qwen_image: Path, pipeline: QwenImagePipeline) -> None:
    assert len(pipeline.transformer.transformer_blocks) >= 4
    assert pipeline.vae_scale_factor == 8


def test_its_template_begins_with_the_34_tokens_that_the_pipeline_drops(pipeline: QwenImagePipeline) -> None:
    before, _, _ = pipeline.prompt_template_encode.partition("{}")
    assert len(pipeline.tokenizer(before).input_ids) == pipeline.prompt_template_encode_start_idx == 34
