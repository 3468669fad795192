"""Writes the trained networks as a ZImagePipeline folder: bf16 safetensors, real tokenizer, list of known words."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import ZImagePipeline
from transformers import Qwen3Model

from demo_model.captions import known_words
from demo_model.model import build_scheduler
from demo_model.tokens import build_tokenizer
from demo_model.train_dit import load_networks
from demo_model.train_vae import load_vae

WORDS_FILE = "words.json"
LIMIT_BYTES = 48_000_000


def export(run: Path, target: Path) -> int:
    """Writes `target` from the checkpoints in `run`; returns its size in bytes."""
    networks = load_networks(run, "cpu")
    pipeline = ZImagePipeline(
        scheduler=build_scheduler(),
        vae=load_vae(run, "cpu").bfloat16(),
        text_encoder=_without_last_layer(networks.text_encoder).bfloat16(),
        tokenizer=build_tokenizer(),
        transformer=networks.transformer.bfloat16(),
    )
    pipeline.save_pretrained(target)
    write_words(target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    if size > LIMIT_BYTES:
        raise ValueError(f"the model takes {size} bytes; at most {LIMIT_BYTES} may be shipped")
    return size


def write_words(target: Path) -> None:
    """The words that the model knows: what a service compares a prompt with to warn of the others."""
    (target / WORDS_FILE).write_text(json.dumps({"known_words": known_words()}, indent=1) + "\n")


def _without_last_layer(text_encoder: Qwen3Model) -> Qwen3Model:
    """Zeros in the layer that the pipeline never reads: they pack to nothing."""
    with torch.no_grad():
        for parameter in text_encoder.layers[-1].parameters():
            parameter.zero_()
    return text_encoder
