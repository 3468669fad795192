"""Trains the transformer and the text encoder together by flow matching, through the format that inference uses."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, ZImageTransformer2DModel
from torch import Tensor, nn
from transformers import Qwen3Model

from demo_model.bank import CAPTION_LENGTHS, Bank, Bucket, ExampleSource
from demo_model.model import (
    LATENT_CHANNELS,
    LATENT_SCALE,
    Sizes,
    build_text_encoder,
    build_transformer,
    caption_features,
    use_real_rotations,
    velocity,
)
from demo_model.tokens import build_tokenizer, token_lists
from demo_model.train_vae import load_vae

BUCKETS = (
    Bucket(256, 256, share=0.64, batch=320, capacity=20_480),
    Bucket(128, 128, share=0.10, batch=960, capacity=8_192),
    Bucket(192, 192, share=0.04, batch=480, capacity=3_072),
    Bucket(256, 384, share=0.04, batch=216, capacity=2_560),
    Bucket(384, 256, share=0.04, batch=216, capacity=2_560),
    Bucket(384, 384, share=0.06, batch=152, capacity=2_560),
    Bucket(512, 512, share=0.08, batch=80, capacity=2_048),
)
CAPTION_SHARES = (0.82, 0.14, 0.04)
LEARNING_RATE, WARMUP_STEPS = 1e-3, 400
DROPPED_CAPTIONS = 0.10
TIME_SHIFT = 2.0
"""Training times are logit-normal, moved towards noise as a scheduler with this shift would."""
EMA_DECAY = 0.999
RENEW_EVERY, CHUNK = 24, 256


@dataclass(frozen=True, slots=True)
class Networks:
    """What is trained here."""

    transformer: ZImageTransformer2DModel
    text_encoder: Qwen3Model

    def parameters(self) -> list[nn.Parameter]:
        """All parameters, in one order."""
        return [*self.transformer.parameters(), *self.text_encoder.parameters()]


def train_dit(
    folder: Path, *, device: str, num_steps: int, limit_s: float, seed: int, compiled: bool
) -> bool:
    """Trains until `num_steps` or `limit_s`; goes on from `folder/dit.pt`. True when training is complete."""
    deadline = time.monotonic() + limit_s
    torch.manual_seed(seed)
    run = Training(build_networks(device), num_steps=num_steps, device=device, compiled=compiled)
    run.resume(folder)
    workers = min(12, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        source = ExampleSource(pool, seed=seed + run.step, chunk=CHUNK, ahead=2 * workers)
        run.warm_up()
        print(f"compiled, {deadline - time.monotonic():.0f} s left", flush=True)
        banks = fill_banks(load_vae(folder, device), source, device)
        print(f"banks are full, {deadline - time.monotonic():.0f} s left", flush=True)
        run.go(banks, source, deadline)
    run.save(folder)
    return run.step >= num_steps


def build_networks(device: str) -> Networks:
    """Untrained networks on `device`."""
    vocabulary_size = -(-len(build_tokenizer()) // 64) * 64
    transformer = build_transformer(Sizes())
    text_encoder = build_text_encoder(Sizes(), vocabulary_size=vocabulary_size)
    return Networks(transformer.to(device), text_encoder.to(device))


def fill_banks(vae: AutoencoderKL, source: ExampleSource, device: str) -> list[Bank]:
    """One full bank a bucket."""
    banks = [Bank(bucket, latent_encoder(vae), device) for bucket in BUCKETS]
    for bank in banks:
        for _ in range(0, bank.bucket.capacity, CHUNK):
            bank.renew(source.take())
    return banks


def latent_encoder(vae: AutoencoderKL) -> Callable[[Tensor], Tensor]:
    """Pictures in -1..1 to the latents that the transformer sees, in bf16."""

    @torch.no_grad()
    def encode(pictures: Tensor) -> Tensor:
        with torch.autocast(pictures.device.type, torch.bfloat16):
            mean = vae.encoder(pictures).chunk(2, 1)[0]
        return ((mean.float() - vae.config.shift_factor) * vae.config.scaling_factor).bfloat16()

    return encode


class Training:
    """The state of one run: networks, their moving average, the optimizer and the step."""

    def __init__(self, networks: Networks, *, num_steps: int, device: str, compiled: bool) -> None:
        self.networks, self.num_steps, self.device, self.step = networks, num_steps, device, 0
        self.parameters = networks.parameters()
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.warm_from = 0
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            LEARNING_RATE,
            betas=(0.9, 0.98),
            weight_decay=0.01,
            fused=device.startswith("cuda"),
        )
        self._empty = torch.tensor(token_lists(build_tokenizer(), [""])[0], device=device)
        use_real_rotations(networks.transformer)
        if compiled:
            for block in _blocks(networks.transformer):
                block.compile(dynamic=True)

    def go(self, banks: list[Bank], source: ExampleSource, deadline: float) -> None:
        """Steps until the end or the deadline."""
        generator = torch.Generator(self.device).manual_seed(1 + self.step)
        started, first = time.monotonic(), self.step
        while self.step < self.num_steps and time.monotonic() < deadline:
            rng = Random(f"dit/{self.step}")
            bank = rng.choices(banks, [bank.bucket.share for bank in banks])[0]
            if self.step % RENEW_EVERY == 0:
                bank.renew(source.take())
            caption_length = rng.choices(CAPTION_LENGTHS, CAPTION_SHARES)[0]
            loss = self.train(bank, generator, caption_length=caption_length)
            if self.step % 250 == 0:
                pace_s = (time.monotonic() - started) / (self.step - first)
                print(
                    f"dit step {self.step}: loss {loss.item():.4f}, {pace_s * 1e3:.1f} ms a step", flush=True
                )

    def warm_up(self) -> None:
        """Compiles the blocks for every size while the workers start."""
        generator = torch.Generator(self.device).manual_seed(0)
        for bucket in BUCKETS:
            sides = (bucket.height // LATENT_SCALE, bucket.width // LATENT_SCALE)
            latents = torch.zeros(bucket.batch, LATENT_CHANNELS, *sides, device=self.device)
            for length in CAPTION_LENGTHS:
                ids = torch.zeros(bucket.batch, length, dtype=torch.long, device=self.device)
                self._loss(latents, ids, torch.full_like(ids[:, 0], length), generator).backward()
                self.optimizer.zero_grad()

    def train(self, bank: Bank, generator: torch.Generator, *, caption_length: int) -> Tensor:
        """One step on one batch; returns its loss."""
        latents, ids, lengths = bank.draw(generator, caption_length=caption_length)
        if caption_length == CAPTION_LENGTHS[0]:
            ids, lengths = self._drop_captions(ids, lengths, generator)
        self._set_pace()
        loss = self._loss(latents, ids, lengths, generator)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(
                self.average, [parameter.detach() for parameter in self.parameters], 1 - decay
            )
        return loss.detach()

    def resume(self, folder: Path) -> None:
        """Goes on from `dit.pt`, or from the weights alone in `dit-weights.pt`, or starts anew."""
        whole, light = folder / "dit.pt", folder / "dit-weights.pt"
        if whole.exists():
            saved = torch.load(whole, map_location=self.device, weights_only=True)
            self._set(saved["step"], saved["weights"], saved["average"])
            self.optimizer.load_state_dict(saved["optimizer"])
        elif light.exists():
            saved = torch.load(light, map_location=self.device, weights_only=True)
            self._set(saved["step"], saved["weights"], saved["weights"])
            self.warm_from = saved["step"]

    def save(self, folder: Path) -> None:
        """Writes `dit.pt` (all), `dit-weights.pt` (bf16, for short ways) and `dit-average.pt` (bf16, to export)."""
        weights = [parameter.detach() for parameter in self.parameters]
        state = {"step": self.step, "weights": weights, "average": self.average}
        torch.save({**state, "optimizer": self.optimizer.state_dict()}, folder / "dit.pt")
        for name, tensors in (("dit-weights.pt", weights), ("dit-average.pt", self.average)):
            torch.save(
                {"step": self.step, "weights": [tensor.bfloat16() for tensor in tensors]}, folder / name
            )

    def _loss(self, latents: Tensor, ids: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
        draw = {"device": self.device, "generator": generator}
        noise = torch.randn(latents.shape, **draw)
        sigma = torch.sigmoid(torch.randn(len(latents), **draw))
        sigma = TIME_SHIFT * sigma / (1 + (TIME_SHIFT - 1) * sigma)
        noisy = torch.lerp(latents, noise, sigma[:, None, None, None])
        is_word = torch.arange(ids.shape[1], device=self.device)[None] < lengths[:, None]
        with torch.autocast(torch.device(self.device).type, torch.bfloat16):
            features = caption_features(self.networks.text_encoder, ids)
            out = velocity(self.networks.transformer, noisy, 1 - sigma, features, is_word)
        return F.mse_loss(out.float(), latents - noise)

    def _drop_captions(
        self, ids: Tensor, lengths: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        dropped = torch.rand(len(ids), device=self.device, generator=generator) < DROPPED_CAPTIONS
        empty = F.pad(self._empty, (0, ids.shape[1] - len(self._empty)))
        return torch.where(dropped[:, None], empty, ids), torch.where(dropped, len(self._empty), lengths)

    def _set_pace(self) -> None:
        """Warm-up, a plateau, then linear decay to nearly nothing over the last half."""
        warm = min(1.0, (self.step - self.warm_from + 1) / WARMUP_STEPS)
        left = min(1.0, (1 - self.step / self.num_steps) / 0.5)
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * warm * max(0.002, left)

    @torch.no_grad()
    def _set(self, step: int, weights: list[Tensor], average: list[Tensor]) -> None:
        self.step = step
        torch._foreach_copy_([parameter.data for parameter in self.parameters], weights)
        torch._foreach_copy_(self.average, average)


def load_networks(folder: Path, device: str) -> Networks:
    """The trained networks, from the moving average, with the model's own forward."""
    networks = build_networks(device)
    saved = torch.load(folder / "dit-average.pt", map_location=device, weights_only=True)
    with torch.no_grad():
        torch._foreach_copy_([parameter.data for parameter in networks.parameters()], saved["weights"])
    return networks


def _blocks(transformer: ZImageTransformer2DModel) -> list[nn.Module]:
    return [*transformer.noise_refiner, *transformer.context_refiner, *transformer.layers]
