"""What stands between two convolutions, normalization and activation, in one pass over memory where it is compiled.

Each writes into the frame that the next convolution sees; no value sees another one's but those of its pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from epe.parallel.inductor import compiled

# So small that it counts only where all channels are zero.
TINY = 1e-24


@dataclass(frozen=True, slots=True)
class OverGroups:
    """Normalizes pictures by the moments of their channels, each those of its group: fp32, (channels,)."""

    mean: torch.Tensor
    variance: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(
            rows, self.mean, self.variance, self.weight, self.bias, training=False, eps=self.eps
        )

    def line(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as a product and a sum, by channel."""
        scale = self.weight * torch.rsqrt(self.variance + self.eps)
        return scale, self.bias - self.mean * scale


@dataclass(frozen=True, slots=True)
class OverChannels:
    """Normalizes each pixel of (batch, channels, ..., rows, columns) by the root of the mean of its squares."""

    gamma: torch.Tensor

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        pixels = rows.movedim(1, -1)
        normed = functional.rms_norm(pixels, [self.gamma.numel()], self.gamma.flatten(), eps=TINY)
        return normed.movedim(-1, 1)


@dataclass(frozen=True, slots=True)
class Writers:
    """What writes the results of a decoder's layers: the functions below, compiled."""

    over_groups: Callable[..., None]
    over_channels: Callable[..., None]
    add_bias: Callable[..., None]
    add_taps: Callable[..., None]

    def write(self, into: torch.Tensor, given: torch.Tensor, norm: object) -> bool:
        """Write what `norm` and SiLU make of a band; False if the norm is of neither kind."""
        for band in (into, given):
            torch._dynamo.mark_static(band, 1)
        match norm:
            case OverGroups():
                self.over_groups(into, given, *norm.line())
            case OverChannels():
                self.over_channels(into, given, norm.gamma.flatten())
            case _:
                return False
        return True


def compiled_writers(backend: str) -> Writers:
    """Once for all sizes; for each number of channels that is normalized anew, at its first use."""
    functions = (write_over_groups, write_over_channels, add_bias, add_taps)
    return Writers(*(compiled(function, backend=backend) for function in functions))


def write_over_groups(
    into: torch.Tensor, given: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> None:
    line = given.float() * scale[:, None, None] + shift[:, None, None]
    into.copy_(functional.silu(line).to(into.dtype))


def write_over_channels(into: torch.Tensor, given: torch.Tensor, gamma: torch.Tensor) -> None:
    pixels = given.movedim(1, -1).float()
    normed = pixels * torch.rsqrt(pixels.square().mean(dim=-1, keepdim=True) + TINY) * gamma
    into.copy_(functional.silu(normed).to(into.dtype).movedim(-1, 1))


def add_bias(into: torch.Tensor, bias: torch.Tensor) -> None:
    """As convolutions do it, which on a GPU takes them three times as long with the channels last."""
    into.add_(bias[:, None, None])


def add_taps(into: torch.Tensor, second: torch.Tensor, third: torch.Tensor, bias: torch.Tensor) -> None:
    """The frames of a convolution of videos, by convolutions of pictures with each of its three frames."""
    into.copy_(into + second + third + bias[:, None, None])
