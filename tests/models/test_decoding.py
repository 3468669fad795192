"""When a decode is whole, in bands, or in bands that rest in host memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL

from epe.models import decoding
from epe.models.decoding import decoded
from epe.transport.exchange import SoloExchange
from tests.lanes import ThreadExchange, on_lane

LATENTS = torch.randn(1, 4, 24, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def vae() -> AutoencoderKL:
    torch.manual_seed(0)
    model = AutoencoderKL(
        block_out_channels=(8, 8),
        up_block_types=("UpDecoderBlock2D",) * 2,
        down_block_types=("DownEncoderBlock2D",) * 2,
        norm_num_groups=4,
    )
    return model.eval()


@torch.inference_mode()
def test_without_a_lane_it_is_diffusers_own(vae: AutoencoderKL) -> None:
    assert torch.equal(decoded(vae, LATENTS, None), vae.decode(LATENTS).sample)


@torch.inference_mode()
def test_a_rank_alone_without_memory_does_it_again_with_bands_in_host_memory_and_the_same_bits(
    vae: AutoencoderKL, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, homes = decoded(vae, LATENTS, SoloExchange()), []
    decode = decoding.bands.decode

    def scarce(*args: Any, home: torch.device | None = None, **options: Any) -> torch.Tensor | None:
        homes.append(home)
        if home is None:
            raise torch.OutOfMemoryError("no memory")
        return decode(*args, home=home, **options)

    monkeypatch.setattr(decoding.bands, "decode", scarce)
    assert torch.equal(decoded(vae, LATENTS, SoloExchange()), right)
    assert homes == [None, torch.device("cpu")]


def test_a_lane_without_memory_says_so(vae: AutoencoderKL, monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(decoding.bands, "decode", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        on_lane(2, lambda exchange: decoded(vae, LATENTS, exchange))  # type: ignore[arg-type]


def test_a_whole_decode_without_memory_says_what_needs_less(
    vae: AutoencoderKL, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(vae, "decode", full)
    with pytest.raises(torch.OutOfMemoryError, match=r"no memory; .*set parallelism\.vae\.enabled: true"):
        decoded(vae, torch.zeros(1, 4, 16, 16), None)
    vae.enable_tiling()
    with pytest.raises(torch.OutOfMemoryError, match=r"^no memory$"):
        decoded(vae, torch.zeros(1, 4, 16, 16), None)
    vae.disable_tiling()


def test_what_bands_do_not_know_is_decoded_whole_by_the_head_and_said_once(
    vae: AutoencoderKL, capsys: pytest.CaptureFixture[str]
) -> None:
    decoding._say.cache_clear()
    vae.enable_tiling()
    try:

        def task(exchange: ThreadExchange) -> torch.Tensor | None:
            with torch.inference_mode():
                return decoded(vae, LATENTS, exchange)  # type: ignore[arg-type]

        (head, other), again = on_lane(2, task), on_lane(2, task)
        with torch.inference_mode():
            assert torch.equal(head, vae.decode(LATENTS).sample)
        assert other is None
        assert torch.equal(again[0], head)
        assert capsys.readouterr().out.count("tiling is switched on") == 1
    finally:
        vae.disable_tiling()
