"""Decodes whose norms and activations are compiled, by a compiler that leaves operations as they are."""

from __future__ import annotations

import pytest
import torch

from epe.models.decoding import decoded
from epe.transport.exchange import Exchange
from epe.vae import bands_of, compiled_writers
from epe.vae.writers import (
    OverChannels,
    OverGroups,
    Writers,
    add_bias,
    add_taps,
    write_over_channels,
    write_over_groups,
)
from tests.lanes import on_lane
from tests.vae.conftest import Subject

TOLERANCE = 2e-5
HEIGHT = 24  # three bands
PLAIN = Writers(write_over_groups, write_over_channels, add_bias, add_taps)


@torch.inference_mode()
def test_one_band_and_many_give_what_diffusers_gives_and_every_width_the_same_bits(subject: Subject) -> None:
    latents = subject.latents(HEIGHT)
    expected = subject.whole(latents)

    def task(exchange: Exchange) -> torch.Tensor | None:
        with torch.inference_mode():
            return decoded(subject.vae, latents, exchange, writers=PLAIN)

    one = decoded(subject.vae, latents, None, writers=PLAIN)
    (alone,), (beside, *_) = on_lane(1, task), on_lane(3, task)  # type: ignore[arg-type]
    assert one is not None
    assert alone is not None
    torch.testing.assert_close(one, expected, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(alone, expected, rtol=0, atol=TOLERANCE)
    assert torch.equal(alone, beside)
    assert len(bands_of(HEIGHT)) > 1


@torch.inference_mode()
@pytest.mark.parametrize("shape", [(1, 8, 6, 5), (1, 8, 2, 6, 5)])
def test_a_compiled_writer_writes_what_the_norm_and_the_activation_make(shape: tuple[int, ...]) -> None:
    torch.compiler.reset()
    generator = torch.Generator().manual_seed(0)
    given, frame = torch.randn(shape, generator=generator), torch.zeros(*shape[:-2], 8, 5)
    mean, variance, weight, bias = torch.rand(4, 8, generator=generator).unbind()
    writers = compiled_writers("eager")
    norms = [
        OverChannels(weight),
        *([OverGroups(mean, variance, weight, bias, 1e-6)] if len(shape) == 4 else []),
    ]
    for norm in norms:
        assert writers.write(frame[..., 1:7, :], given, norm)
        torch.testing.assert_close(frame[..., 1:7, :], torch.nn.functional.silu(norm(given)))
        assert not frame[..., ::7, :].any()
    assert not writers.write(frame, frame, torch.nn.Identity())
