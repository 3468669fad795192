"""Trains the autoencoder: first on whole pictures, then on cut-outs around the things, where the edges are."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from demo_model.model import Sizes, build_vae
from demo_model.renderer import render
from demo_model.scenes import draw_scene

PSNR_SIDES = (128, 256, 512)
EDGE_WEIGHT, SQUARE_WEIGHT = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of the training. `shares` are those of the picture sides 128, 256 and 512."""

    name: str
    num_steps: int
    batch: int
    window: int
    learning_rate: float
    kl_weight: float
    shares: tuple[float, float, float]


PHASES = (
    Phase("whole", 1715, batch=64, window=256, learning_rate=5e-4, kl_weight=1e-3, shares=(0.20, 0.55, 0.25)),
    Phase("edges", 4041, batch=64, window=128, learning_rate=4e-4, kl_weight=2e-4, shares=(0.20, 0.60, 0.20)),
)
SIDES = (128, 256, 512)
WARMUP_STEPS = 200
GALLERY_SIZE, GALLERY_CHUNK, RENEW_EVERY = {128: 6144, 256: 6144, 512: 1024}, 4 * 2**20, 40


def train_vae(
    folder: Path, *, device: str, phases: tuple[Phase, ...], limit_s: float, seed: int, compiled: bool
) -> bool:
    """Trains until the phases or `limit_s` end; goes on from `folder/vae.pt`. True when training is complete."""
    deadline = time.monotonic() + limit_s
    torch.manual_seed(seed)
    vae = build_vae(Sizes()).to(device, memory_format=torch.channels_last)
    number, step = _load(folder / "vae.pt", vae, device)
    while number < len(phases) and time.monotonic() < deadline:
        run = VaeTraining(vae, phases[number], device=device, seed=seed, compiled=compiled)
        step = run.go(step, deadline)
        if step == phases[number].num_steps:
            number, step = number + 1, 0
        torch.save({"phase": number, "step": step, "model": vae.state_dict()}, folder / "vae.pt")
    return number == len(phases)


def load_vae(folder: Path, device: str) -> AutoencoderKL:
    """The trained autoencoder, frozen, with its latents' mean and scale in its config."""
    vae = build_vae(Sizes())
    _load(folder / "vae.pt", vae, "cpu")
    vae = vae.to(device).eval().requires_grad_(False)
    shift, scale = _latent_statistics(vae, device)
    vae.register_to_config(shift_factor=shift, scaling_factor=scale)
    return vae


@torch.no_grad()
def measure_psnr(vae: AutoencoderKL, *, device: str, num: int = 96, seed: int = 1234) -> dict[int, float]:
    """Mean peak signal to noise in dB of 8-bit reconstructions of unseen scenes, by side in pixels."""
    results = {}
    for side in PSNR_SIDES:
        rng, ratios = Random(f"psnr/{seed}/{side}"), []
        for _ in range(0, num, 16):
            scenes = [draw_scene(rng, split="held_out") for _ in range(16)]
            pictures = render(scenes, height=side, width=side, device=device)
            decoded = vae.decode(vae.encode(pictures * 2 - 1).latent_dist.mode()).sample
            seen = ((decoded / 2 + 0.5).clamp(0, 1) * 255).round() / 255
            ratios.append(-10 * torch.log10(((seen - pictures) ** 2).mean((1, 2, 3))))
        results[side] = round(torch.cat(ratios).mean().item(), 2)
    return results


class VaeTraining:
    """One phase."""

    def __init__(self, vae: AutoencoderKL, phase: Phase, *, device: str, seed: int, compiled: bool) -> None:
        self.vae, self.phase, self.device, self.seed = vae, phase, device, seed
        self.optimizer = torch.optim.AdamW(vae.parameters(), betas=(0.9, 0.99), weight_decay=1e-4)
        self._loss_of = torch.compile(_loss, dynamic=False) if compiled else _loss

    def go(self, step: int, deadline: float) -> int:
        """Steps until the end of the phase or the deadline; returns the step reached."""
        source = whole_pictures if self.phase.window == 256 else cut_outs
        pictures = source(self.phase, Random(f"vae/{self.phase.name}/{self.seed}/{step}"), self.device)
        while step < self.phase.num_steps and time.monotonic() < deadline:
            error = self._train(next(pictures) * 2 - 1, step)
            step += 1
            if step % 250 == 0:
                decibels = 10 * math.log10(4 / error.item())
                print(f"vae {self.phase.name} step {step}: {decibels:.1f} dB in training", flush=True)
        return step

    def _train(self, pictures: Tensor, step: int) -> Tensor:
        falling = 0.5 * (1 + math.cos(math.pi * step / self.phase.num_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.phase.learning_rate * min(1.0, (step + 1) / WARMUP_STEPS) * max(0.01, falling)
        with torch.autocast(torch.device(self.device).type, torch.bfloat16):
            pictures = pictures.contiguous(memory_format=torch.channels_last)
            loss, error = self._loss_of(self.vae, pictures, self.phase.kl_weight)
        loss.backward()
        nn.utils.clip_grad_norm_(self.vae.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return error


def whole_pictures(phase: Phase, rng: Random, device: str) -> Iterator[Tensor]:
    """Batches of 256 x 256 in 0..1: whole pictures of 256, four of 128 joined, or quarters of one of 512."""
    while True:
        side = rng.choices(SIDES, phase.shares)[0]
        num = phase.batch * 256**2 // side**2
        pictures = render(_scenes(rng, num), height=side, width=side, device=device)
        if side == 128:
            rows = pictures.unflatten(0, (-1, 2, 2)).permute(0, 3, 1, 4, 2, 5)
            pictures = rows.flatten(4, 5).flatten(2, 3)
        elif side == 512:
            cut = pictures.unflatten(3, (2, 256)).unflatten(2, (2, 256))
            pictures = cut.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
        yield pictures


def cut_outs(phase: Phase, rng: Random, device: str) -> Iterator[Tensor]:
    """Batches of `window` x `window` in 0..1, cut at random from the lower three quarters of kept pictures."""
    galleries = {side: Gallery(side, size, rng, device) for side, size in GALLERY_SIZE.items()}
    generator = torch.Generator(device).manual_seed(rng.randrange(2**40))
    for step in range(2**62):
        gallery = galleries[rng.choices(SIDES, phase.shares)[0]]
        if step % RENEW_EVERY == 0:
            gallery.renew(rng)
        yield gallery.cut(phase.batch, phase.window, generator)


class Gallery:
    """Rendered pictures of one side, kept as bytes on the device; the oldest are replaced."""

    def __init__(self, side: int, size: int, rng: Random, device: str) -> None:
        self.side, self._device, self._next = side, device, 0
        self._pictures = torch.empty(size, 3, side, side, dtype=torch.uint8, device=device)
        self._chunk = max(1, GALLERY_CHUNK // side**2)
        for _ in range(0, size, self._chunk):
            self.renew(rng)

    def renew(self, rng: Random) -> None:
        """Draws a chunk of new pictures."""
        fresh = render(_scenes(rng, self._chunk), height=self.side, width=self.side, device=self._device)
        rows = (self._next + torch.arange(self._chunk, device=self._device)) % len(self._pictures)
        self._pictures[rows] = (fresh * 255).round().byte()
        self._next = (self._next + self._chunk) % len(self._pictures)

    def cut(self, batch: int, window: int, generator: torch.Generator) -> Tensor:
        """A batch of windows in 0..1."""
        draw = {"device": self._device, "generator": generator}
        room = self.side - window
        which = torch.randint(len(self._pictures), (batch, 1, 1), **draw)
        across = torch.randint(room + 1, (batch, 1, 1), **draw) + torch.arange(window, device=self._device)
        first = torch.randint(room // 4, room + 1, (batch, 1, 1), **draw)
        down = first + torch.arange(window, device=self._device)[:, None]
        return self._pictures[which, :, down, across].permute(0, 3, 1, 2).float() / 255


def _scenes(rng: Random, num: int) -> list:
    return [draw_scene(rng, split="train") for _ in range(num)]


def _loss(vae: AutoencoderKL, pictures: Tensor, kl_weight: float) -> tuple[Tensor, Tensor]:
    posterior = vae.encode(pictures).latent_dist
    difference = vae.decode(posterior.sample()).sample.float() - pictures
    edges = sum(difference.diff(dim=dim).abs().mean() for dim in (2, 3))
    error = difference.square().mean()
    divergence = (
        0.5 * (posterior.mean.float() ** 2 + posterior.var.float() - 1 - posterior.logvar.float()).mean()
    )
    loss = difference.abs().mean() + EDGE_WEIGHT * edges + SQUARE_WEIGHT * error + kl_weight * divergence
    return loss, error.detach()


def _load(path: Path, vae: AutoencoderKL, device: str) -> tuple[int, int]:
    if not path.exists():
        return 0, 0
    saved = torch.load(path, map_location=device, weights_only=True)
    vae.load_state_dict(saved["model"])
    return saved["phase"], saved["step"]


@torch.no_grad()
def _latent_statistics(vae: AutoencoderKL, device: str) -> tuple[float, float]:
    rng = Random("latent statistics")
    pictures = render(_scenes(rng, 128), height=256, width=256, device=device)
    latents = torch.cat([vae.encode(part * 2 - 1).latent_dist.mode() for part in pictures.split(16)])
    return round(latents.mean().item(), 5), round(1.0 / latents.std().item(), 5)
