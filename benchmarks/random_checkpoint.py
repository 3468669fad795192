"""Checkpoint folders of real size with random weights, for services that read them as they read any other.

The transformer and the VAE have the published sizes. Text encoders are small: one or two layers of the width that the
transformer reads.

    python -m benchmarks.random_checkpoint flux1 FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

from benchmarks.random_pipeline import Factory, Weights
from epe.models.checkpoint import quiet_progress
from epe.models.flux1.tiny import clip_tokenizer
from epe.models.tiny_parts import chat_tokenizer, word_tokenizer

FAMILIES = ("flux1", "zimage")
VIDEO_FAMILIES = ("wan",)
# Copies from the device and writes of a few tensors at once.
NUM_WRITERS = 8
_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}
_TEXT_HEADS = 4


def write_checkpoint(factory: Factory, folder: Path) -> int:
    """Write a checkpoint in diffusers' format; the bytes of its transformer."""
    weights = factory.weights()
    pipeline = factory.pipeline(weights)
    parts = _text_parts(factory)
    pipeline.register_modules(**parts)
    with quiet_progress():
        pipeline.save_config(folder)
        for name, part in {**parts, "vae": pipeline.vae, "scheduler": pipeline.scheduler}.items():
            part.save_pretrained(folder / name)
        pipeline.transformer.save_config(folder / "transformer")
    return _write_weights(folder / "transformer/diffusion_pytorch_model.safetensors", weights)


def _text_parts(factory: Factory) -> dict[str, Any]:
    """Text encoders, in the type of the weights, and tokenizers."""
    torch.manual_seed(0)
    width = factory.config[factory.model.text_width]
    if factory.name == "flux1":
        clip, words = clip_tokenizer(), word_tokenizer()
        pooled_width = factory.config["pooled_projection_dim"]
        return {
            "text_encoder": _clip(clip, width=pooled_width).to(factory.dtype),
            "tokenizer": clip,
            "text_encoder_2": _t5(len(words), width=width).to(factory.dtype),
            "tokenizer_2": words,
        }
    if factory.name == "wan":
        words = word_tokenizer()
        return {"text_encoder": _umt5(len(words), width=width).to(factory.dtype), "tokenizer": words}
    if factory.name == "zimage":
        chat = chat_tokenizer()
        return {"text_encoder": _qwen3(len(chat), width=width).to(factory.dtype), "tokenizer": chat}
    raise ValueError(
        f"no text encoder is known for {factory.name}; there are those of {', '.join((*FAMILIES, *VIDEO_FAMILIES))}"
    )


def _clip(tokenizer: Any, *, width: int) -> CLIPTextModel:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_attention_heads=_TEXT_HEADS,
        num_hidden_layers=1,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModel(config).eval()


def _t5(num_symbols: int, *, width: int) -> T5EncoderModel:
    return T5EncoderModel(T5Config(**_t5_sizes(num_symbols, width=width))).eval()


def _umt5(num_symbols: int, *, width: int) -> UMT5EncoderModel:
    return UMT5EncoderModel(UMT5Config(**_t5_sizes(num_symbols, width=width))).eval()


def _t5_sizes(num_symbols: int, *, width: int) -> dict[str, Any]:
    return {
        "vocab_size": num_symbols,
        "d_model": width,
        "d_kv": max(8, width // 64),
        "d_ff": width,
        "num_layers": 1,
        "num_heads": _TEXT_HEADS,
        "feed_forward_proj": "gated-gelu",
    }


def _qwen3(num_symbols: int, *, width: int) -> Qwen3Model:
    # The pipeline reads the layer before the last.
    config = Qwen3Config(
        vocab_size=num_symbols,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=_TEXT_HEADS,
        num_key_value_heads=_TEXT_HEADS,
        head_dim=max(8, width // 32),
        max_position_embeddings=4096,
    )
    return Qwen3Model(config).eval()


def _write_weights(path: Path, weights: Weights) -> int:
    """As safetensors: the length of a JSON header in 8 bytes, the header, the tensors. Tensors go from the device to
    their places a few at a time, so that the whole is never in the memory of this process."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in weights.items():
        begin, end = end, end + tensor.nbytes
        shape = list(tensor.shape)
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    start = 8 + len(head)
    with path.open("wb") as file, ThreadPoolExecutor(NUM_WRITERS) as writers:
        file.write(len(head).to_bytes(8, "little") + head)
        file.flush()
        os.truncate(file.fileno(), start + end)

        def write(name: str) -> None:
            at = start + header[name]["data_offsets"][0]
            left = memoryview(weights[name].cpu().contiguous().view(-1).view(torch.uint8).numpy())
            while left:  # Linux writes less than 2 GiB at once.
                num_bytes = os.pwrite(file.fileno(), left, at)
                left, at = left[num_bytes:], at + num_bytes

        list(writers.map(write, weights))
    return end


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", choices=(*FAMILIES, *VIDEO_FAMILIES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a small model in place of the real one")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    factory = factory_of(arguments.family, arguments.device, tiny=arguments.tiny)
    print(write_checkpoint(factory, arguments.folder))


def factory_of(family: str, device: str, *, tiny: bool) -> Factory:
    """In the type that a service takes on the device."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return Factory(name=family, device=torch.device(device), dtype=dtype, tiny=tiny)


if __name__ == "__main__":
    main()
