"""What the control plane knows of one model family."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Defaults(Struct, frozen=True, kw_only=True):
    """The request's values where the user gives none."""

    height: int
    width: int
    num_steps: int
    guidance_scale: float
    seed: int
    num_frames: int = 1
    negative_prompt: str = ""


class Family(Struct, frozen=True, kw_only=True):
    """One model family: names, axes, limits, defaults and the sizes of its tasks.

    `axes` are the parallel axes that work here; `pipeline` is the `_class_name` in the checkpoint's
    `model_index.json`; sides are multiples of `side_multiple` pixels, up to `max_side`; one token covers
    `patch` x `patch` pixels of one latent frame.
    """

    name: str
    title: str
    makes: Literal["picture", "video"]
    pipeline: str
    available: bool
    axes: tuple[str, ...]
    side_multiple: int
    patch: int
    defaults: Defaults
    min_side: int = 64
    max_side: int = 4096
    max_steps: int = 1000
    latent_channels: int = 16
    latent_scale: int = 8
    frames_per_latent: int = 1

    def num_tokens(self, *, height: int, width: int, num_frames: int = 1) -> int:
        """Picture tokens of one sequence (text tokens are not counted)."""
        latent_frames = 1 + (num_frames - 1) // self.frames_per_latent
        return latent_frames * -(-height // self.patch) * -(-width // self.patch)

    def state_bytes(self, *, height: int, width: int, num_frames: int = 1) -> int:
        """Bytes of the latents that migrate with a request (fp32)."""
        latent_frames = 1 + (num_frames - 1) // self.frames_per_latent
        pixels = (height // self.latent_scale) * (width // self.latent_scale)
        return 4 * self.latent_channels * latent_frames * pixels
