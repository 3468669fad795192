"""Pipelines with random weights, made on the device: nothing is read or fetched.

Text encoders are left out: a prompt's embeddings are random numbers drawn from its text, and both diffusers' loop and
our adapter get them where they call `encode_prompt`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from accelerate import init_empty_weights
from torch import nn

from benchmarks.real_sizes import DEPTHS, MODELS, Config, Model
from epe.models.contract import Adapter
from epe.models.flux1.adapter import Flux1Adapter
from epe.models.flux2_klein.adapter import Flux2KleinAdapter
from epe.models.qwen_image.adapter import QwenImageAdapter
from epe.models.tiny_parts import chat_tokenizer, word_tokenizer
from epe.models.wan.adapter import WanAdapter
from epe.models.zimage.adapter import ZImageAdapter
from epe.parallel import TensorSharding, team_limits

Weights = dict[str, torch.Tensor]
# Rows of an encoded prompt where the family does not fill it up: a long one and an empty one.
LONG_ROWS, EMPTY_ROWS = 120, 9
FULL_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class Factory:
    """Makes the weights of one model, and pipelines around them; a `shallow` one has one layer of each kind, and a
    small VAE. `text_rows` are those of every encoded prompt, where it does not follow from the text."""

    name: str
    device: torch.device
    dtype: torch.dtype
    tiny: bool = False
    shared: bool = False
    shallow: bool = False
    text_rows: int | None = None

    @property
    def model(self) -> Model:
        return MODELS[self.name]

    @property
    def config(self) -> Config:
        model = self.model
        config = {
            **model.config,
            **(model.shared if self.shared else {}),
            **(model.tiny if self.tiny else {}),
        }
        return config | (dict.fromkeys(DEPTHS & config.keys(), 1) if self.shallow else {})

    def weights(self) -> Weights:
        """The transformer's, each drawn from its own name: a shallower model has the first layers of a deeper one."""
        transformer = self._skeleton()
        wide = set(getattr(transformer, "_keep_in_fp32_modules", None) or ())
        return {
            path: self._drawn(
                path, tuple(meta.shape), torch.float32 if wide & set(path.split(".")) else self.dtype
            )
            for path, meta in transformer.named_parameters()
        }

    def pipeline(self, weights: Weights) -> Any:
        """A pipeline around `weights`, which several pipelines may share."""
        model, tiny_vae = self.model, self.tiny or self.shallow
        transformer = self._skeleton()
        transformer.load_state_dict(weights, assign=True)
        torch.manual_seed(0)
        vae = model.vae(**{**model.vae_config, **(model.tiny_vae if tiny_vae else {})})
        # Past diffusers' own `to`, which warns of nothing that is so here.
        parts = {
            "transformer": nn.Module.to(transformer, self.device),
            "vae": nn.Module.to(vae, self.device, model.vae_dtype or self.dtype),
        }
        for part in parts.values():
            part.eval().requires_grad_(False)
        pipeline = model.pipeline(**parts, scheduler=model.scheduler(), **_texts(self.name))
        pipeline.set_progress_bar_config(disable=True)
        self.give_text(pipeline)
        return pipeline

    def give_text(self, pipeline: Any) -> None:
        """Let `pipeline` get its encoded prompts from here."""
        pipeline.encode_prompt = _ENCODERS[self.name](self, pipeline)

    def embeddings(self, text: str, *, rows: int = 0, width: int = 0) -> torch.Tensor:
        """(1, rows, width) random numbers: the same for the same text on every device."""
        rows = rows or self.text_rows or (LONG_ROWS if text.strip() else EMPTY_ROWS)
        generator = torch.Generator("cpu").manual_seed(crc32(text.encode()))
        drawn = torch.randn(1, rows, width or self.config[self.model.text_width], generator=generator)
        return drawn.to(self.device, self.dtype)

    def _skeleton(self) -> nn.Module:
        """The transformer without its weights; what it computes for itself (rotary tables) is there."""
        with init_empty_weights(include_buffers=False):
            transformer: nn.Module = self.model.transformer(**self.config)
        return transformer

    def _drawn(self, path: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """One weight: rows of about length 1, scales around 1, small offsets."""
        generator = torch.Generator(self.device).manual_seed(crc32(path.encode()))
        weight = torch.empty(shape, device=self.device, dtype=dtype)
        if len(shape) > 1:
            return weight.normal_(0, (shape[0] / weight.numel()) ** 0.5, generator=generator)
        return weight.normal_(float(path.endswith("weight")), 0.05, generator=generator)


def make_adapter(name: str, pipeline: Any, *, device: torch.device, mode: str, cfg: int = 1) -> Adapter:
    """Our adapter around a pipeline, which nobody else may use from then on."""
    options: dict[str, Any] = {"device": device, "team_limits": team_limits(mode, None)}
    match name:
        case "flux1":
            return Flux1Adapter(pipeline, **options)
        case "flux2-klein":
            return Flux2KleinAdapter(pipeline, **options)
        case "qwen-image":
            return QwenImageAdapter(pipeline, **options)
    options["tensor"] = TensorSharding(pipeline.transformer, ())
    if name == "wan":
        return WanAdapter(pipeline, **options)
    return ZImageAdapter(pipeline, cfg_parallel_degree=cfg, **options)


def _texts(name: str) -> Config:
    """Tokenizers, with which adapters count, and no encoders."""
    if name == "flux1":
        return {
            "tokenizer": None,
            "tokenizer_2": word_tokenizer(),
            "text_encoder": None,
            "text_encoder_2": None,
        }
    tokenizer = word_tokenizer() if name == "wan" else chat_tokenizer()
    return {"tokenizer": tokenizer, "text_encoder": None}


Encoder = Callable[..., Any]


def _flux1(factory: Factory, pipeline: Any) -> Encoder:
    def encode_prompt(*, prompt: str, **options: Any) -> Any:
        embeds = factory.embeddings(prompt, rows=factory.text_rows or FULL_ROWS)
        pooled = factory.embeddings(prompt, rows=1, width=factory.config["pooled_projection_dim"])[0]
        return embeds, pooled, embeds.new_zeros(embeds.shape[1], 3)

    return encode_prompt


def _flux2_klein(factory: Factory, pipeline: Any) -> Encoder:
    def encode_prompt(*, prompt: str, **options: Any) -> Any:
        embeds = factory.embeddings(prompt, rows=factory.text_rows or FULL_ROWS)
        return embeds, pipeline._prepare_text_ids(embeds).to(factory.device)

    return encode_prompt


def _zimage(factory: Factory, pipeline: Any) -> Encoder:
    def encode_prompt(
        *, prompt: Any, negative_prompt: Any, do_classifier_free_guidance: bool, **options: Any
    ) -> Any:
        texts = [each if isinstance(each, str) else each[0] for each in (prompt, negative_prompt)]
        positive, negative = ([factory.embeddings(text)[0]] for text in texts)
        return positive, negative if do_classifier_free_guidance else []

    return encode_prompt


def _qwen_image(factory: Factory, pipeline: Any) -> Encoder:
    return lambda *, prompt, **options: (factory.embeddings(prompt), None)


def _wan(factory: Factory, pipeline: Any) -> Encoder:
    def encode_prompt(
        *, prompt: str, negative_prompt: str, do_classifier_free_guidance: bool, **options: Any
    ) -> Any:
        positive, negative = (
            factory.embeddings(text, rows=factory.text_rows or FULL_ROWS)
            for text in (prompt, negative_prompt)
        )
        return positive, negative if do_classifier_free_guidance else None

    return encode_prompt


_ENCODERS: dict[str, Callable[[Factory, Any], Encoder]] = {
    "flux1": _flux1,
    "flux2-klein": _flux2_klein,
    "zimage": _zimage,
    "qwen-image": _qwen_image,
    "wan": _wan,
}
