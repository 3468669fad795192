"""What the control plane knows of one model family."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Axis = Literal["cfg", "cp", "tp", "ep"]
AttentionKind = Literal["self", "cross", "joint"]

# The widest lane (ranks in each plane), and the most planes of tensor parallelism, whose pictures have been compared
# with diffusers' own: docs/results/parity.md has every width and number of planes up to these, and no stage has more.
MAX_WIDTH = 8
MAX_PLANES = 2


class Defaults(Struct, frozen=True, kw_only=True):
    """The request's values where the user gives none."""

    height: int
    width: int
    num_steps: int
    guidance_scale: float
    seed: int
    num_frames: int = 1
    fps: int = 16
    negative_prompt: str = ""
    max_sequence_length: int = 512
    deadline_s: float | None = None


class AttentionModules(Struct, frozen=True, kw_only=True):
    """Those of one kind: the keys of the transformer's `config.json` whose sum says how many there are, and whether
    they give rows of text beside those of the picture."""

    kind: AttentionKind
    count_keys: tuple[str, ...]
    gives_text: bool = False


class FrameRule(Struct, frozen=True, kw_only=True):
    """Which frame counts a family draws, and how many latent frames they make.

    Allowed are `base + n * step` frames, which are `latent_base + n * latent_step` latent frames.
    The rule of a picture allows 1 frame alone.
    """

    base: int = 1
    step: int = 0
    latent_base: int = 1
    latent_step: int = 0

    def allows(self, num_frames: int) -> bool:
        extra = num_frames - self.base
        return extra == 0 or (self.step > 0 and extra > 0 and extra % self.step == 0)

    def nearest(self, num_frames: int) -> tuple[int, int]:
        """The allowed frame counts next below and above `num_frames`."""
        if self.step == 0 or num_frames <= self.base:
            return self.base, self.base
        below = self.base + (num_frames - self.base) // self.step * self.step
        return below, below if below == num_frames else below + self.step

    def num_latent_frames(self, num_frames: int) -> int:
        """Latent frames of an allowed frame count."""
        if self.step == 0:
            return self.latent_base
        return self.latent_base + (num_frames - self.base) // self.step * self.latent_step


class Family(Struct, frozen=True, kw_only=True):
    """One model family: names, axes, limits, defaults and the sizes of its tasks.

    `axes` are the parallel axes that work here and `planned_axes` those that the family has but that
    do not work yet; `pipeline` is the `_class_name` in the checkpoint's `model_index.json`; sides are
    multiples of `side_multiple` pixels, up to `max_side`; one token covers `patch` x `patch` pixels of
    one latent frame. `guidance` names the command's flag, or is None where guidance is built in. A guidance scale
    above `branches_above` makes a second branch a step (None: none does, as where the model takes the scale as an
    input), which a negative prompt steers where the family takes one. `text_bytes` are those of one encoded prompt.
    Where `flow_shift` is set, a request may say how far its steps lean to the noisy end. A scheduler keeps
    `num_histories` tensors as large as the latents between steps. `heads_key` is the key of the
    transformer's `config.json` that counts its heads, which the planes of tensor parallelism share, and the product of
    `width_keys` there is the width of its rows. `attention_modules` are those whose output may stand for that of a
    later step (none: they do more than attention). `parallel_vae` is whether decodes are in bands unless said
    otherwise, `vae_halo` whether the command has a flag for rows that nobody needs any more.
    """

    name: str
    title: str
    makes: Literal["picture", "video"]
    pipeline: str
    available: bool
    axes: tuple[Axis, ...] = ()
    planned_axes: tuple[Axis, ...] = ()
    side_multiple: int
    patch: int
    defaults: Defaults
    guidance: Literal["guidance_scale", "true_cfg_scale"] | None = "guidance_scale"
    branches_above: float | None = 0.0
    negative_prompt: bool = True
    flow_shift: bool = False
    parallel_vae: bool = True
    vae_halo: bool = True
    migratable: bool = True
    min_side: int = 64
    max_side: int = 4096
    min_steps: int = 1
    max_steps: int = 1000
    max_text_tokens: int = 512
    max_frames: int = 1
    latent_channels: int = 16
    latent_scale: int = 8
    frames: FrameRule = FrameRule()
    text_bytes: int = 0
    num_histories: int = 0
    heads_key: str | None = None
    width_keys: tuple[str, ...] = ("num_attention_heads", "attention_head_dim")
    attention_modules: tuple[AttentionModules, ...] = ()

    @property
    def attention(self) -> tuple[AttentionKind, ...]:
        """The kinds of attention that FlexCache may use again."""
        return tuple(each.kind for each in self.attention_modules)

    def owns(self, axis: Axis) -> bool:
        """Whether the family has this axis, working or planned."""
        return axis in self.axes or axis in self.planned_axes

    def num_tokens(self, *, height: int, width: int, num_frames: int = 1) -> int:
        """Picture tokens of one sequence (text tokens are not counted)."""
        frames = self.frames.num_latent_frames(num_frames)
        return frames * -(-height // self.patch) * -(-width // self.patch)

    def state_bytes(self, *, height: int, width: int, num_frames: int = 1) -> int:
        """Bytes that migrate with a request: latents and the scheduler's histories (fp32), one encoded prompt."""
        latents = self.latent_bytes(height=height, width=width, num_frames=num_frames)
        return latents * (1 + self.num_histories) + self.text_bytes

    def latent_bytes(self, *, height: int, width: int, num_frames: int = 1) -> int:
        """Bytes of latents in fp32, and of a velocity that FlexCache keeps."""
        pixels = (height // self.latent_scale) * (width // self.latent_scale)
        return 4 * self.latent_channels * self.frames.num_latent_frames(num_frames) * pixels

    def num_conditions(self, guidance_scale: float) -> int:
        """Guidance branches of a step: 2 with guidance that needs a second one, else 1."""
        return 1 if self.branches_above is None or guidance_scale <= self.branches_above else 2
