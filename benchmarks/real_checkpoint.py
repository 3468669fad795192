"""A checkpoint of Z-Image at its real size with random weights, in the folder format, for services to be measured.

python -m benchmarks.real_checkpoint FOLDER cuda
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3Model

from benchmarks.random_pipeline import Factory
from epe.models.tiny_parts import save

FAMILY = "zimage"


def write(folder: Path, *, device: str, tiny: bool = False) -> None:
    """Write the transformer and the VAE of 6.2 B parameters in bfloat16 (12.5 GB), with a text encoder of three layers
    whose embeddings are as wide as the real one's; or a tiny one in the same way."""
    factory = Factory(name=FAMILY, device=torch.device(device), dtype=torch.bfloat16, tiny=tiny)
    pipeline = factory.pipeline(factory.weights())
    del pipeline.encode_prompt
    encoder = _text_encoder(len(pipeline.tokenizer), factory.config["cap_feat_dim"])
    pipeline.register_modules(text_encoder=encoder.to(device, torch.bfloat16))
    save(pipeline, folder)


def _text_encoder(num_symbols: int, width: int) -> Qwen3Model:
    config = Qwen3Config(
        vocab_size=num_symbols,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=3,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    return Qwen3Model(config).eval()


if __name__ == "__main__":
    write(Path(sys.argv[1]), device=sys.argv[2])
