"""A picture decoded in bands: the same bits on every lane, and diffusers' own picture within rounding."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from epe.vae import Bands, bands_of, canvas, decode, layers, why_not
from epe.vae.writers import OverChannels
from tests.lanes import ThreadExchange, on_lane
from tests.vae.conftest import Subject, load

# Of values about -1 to 1: kernels take bands in other blocks than a whole picture, and sum in another order.
TOLERANCE = 2e-5
WIDTHS = (2, 3, 4, 5, 6, 7, 8)


@pytest.mark.parametrize("height", [8, 11, 29])
def test_every_lane_gives_the_same_bits_and_the_whole_picture_within_rounding(
    height: int, subject: Subject
) -> None:
    latents, bands = subject.latents(height), bands_of(height, min_rows=1)
    alone = subject.over(1, latents, bands)
    assert float((alone - subject.whole(latents)).abs().max()) < TOLERANCE
    for width in WIDTHS if height == 11 else (2, 8):
        assert torch.equal(subject.over(width, latents, bands), alone), f"{width} ranks"


def test_one_band_has_the_bits_of_diffusers(subject: Subject) -> None:
    latents = subject.latents()
    assert torch.equal(subject.over(1, latents, Bands((11,))), subject.whole(latents))
    assert torch.equal(subject.over(3, latents, Bands((11,))), subject.whole(latents))


def test_bands_of_very_different_height_are_right_too(subject: Subject) -> None:
    latents = subject.latents()
    uneven = subject.over(3, latents, Bands((1, 7, 1, 2)))
    assert float((uneven - subject.whole(latents)).abs().max()) < TOLERANCE


def test_there_are_no_seams(subject: Subject) -> None:
    """A picture that does not change from row to row still does not where bands meet."""
    latents = subject.latents(1, 9).expand(*subject.latents(1, 9).shape[:-2], 12, 9).contiguous()
    bands = bands_of(12, min_rows=1)
    drawn, whole = subject.over(4, latents, bands), subject.whole(latents)
    rows = (drawn - whole).abs().amax(dim=tuple(d for d in range(drawn.ndim) if d != drawn.ndim - 2))
    starts = [start * drawn.shape[-2] // 12 for start in bands.starts()[1:]]
    assert float(rows[starts].max()) < TOLERANCE
    assert float(rows.max()) < TOLERANCE


def test_bands_that_rest_in_host_memory_have_the_same_bits(subject: Subject) -> None:
    latents, bands = subject.latents(), bands_of(11, min_rows=1)
    resting = subject.over(1, latents, bands, home=torch.device("cpu"))
    assert torch.equal(resting, subject.over(1, latents, bands))


def test_decodes_at_once_on_one_model_do_not_see_each_other(subject: Subject) -> None:
    """Unlike diffusers' own of causal models, which keep frames on the module."""
    bands = bands_of(11, min_rows=1)
    given = [subject.latents(seed=seed) for seed in range(4)]
    alone = [subject.over(1, latents, bands) for latents in given]

    def task(exchange: ThreadExchange) -> torch.Tensor | None:
        with torch.inference_mode():
            return decode(
                subject.vae, given[exchange.position], exchange.narrow((exchange.position,)), bands=bands
            )

    together = on_lane(4, task)
    assert all(map(torch.equal, together, alone))
    assert torch.equal(subject.whole(given[0]), subject.whole(given[0]))


def test_only_the_rows_that_are_needed_travel(subject: Subject) -> None:
    """For each convolution with rows beyond its own one exchange, and to each neighbour the rows that it lacks."""
    latents, bands = subject.latents(), bands_of(11, min_rows=1)

    def task(exchange: ThreadExchange) -> tuple[int, int]:
        with torch.inference_mode():
            decode(subject.vae, latents, exchange, bands=bands)  # type: ignore[arg-type]
        return exchange.num_exchanges, exchange.num_received_bytes

    (num_exchanges, _), *_ = on_lane(4, task)
    modules = dict(subject.vae.decoder.named_modules())
    kinds = [type(module).__name__ for module in modules.values()]
    reaching = sum(
        isinstance(module, torch.nn.Conv2d | torch.nn.Conv3d) and module.kernel_size[-2] > 1
        for module in modules.values()
    )
    norms = kinds.count("GroupNorm")
    middle = sum("Attention" in kind for kind in kinds)
    once = reaching + norms + middle + 1
    assert num_exchanges == once * subject.num_frames


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_the_same_bits_on_every_lane(dtype: torch.dtype, folder: Path) -> None:
    subject = load(folder.name, folder, dtype=dtype)
    latents, bands = subject.latents(), bands_of(11, min_rows=1)
    alone = subject.over(1, latents, bands)
    assert all(torch.equal(subject.over(width, latents, bands), alone) for width in (2, 3, 8))
    whole = subject.whole(latents)
    reference = Subject(subject.vae.float()).whole(latents.float())
    # As near to what the weights make in fp32 as diffusers' own decode in this type is.
    assert _farthest(alone, reference) < 2 * _farthest(whole, reference)


def _farthest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).abs().max())


def test_a_rank_without_bands_has_nothing_to_do(subject: Subject) -> None:
    latents = subject.latents()
    assert torch.equal(subject.over(8, latents, Bands((6, 5))), subject.over(1, latents, Bands((6, 5))))


def test_a_decoder_that_is_known_has_nothing_against_it(subject: Subject) -> None:
    assert why_not(subject.vae) is None


def change(subject: Subject, what: str) -> str:
    """Change the decoder in a way that bands do not know; what is said of it."""
    vae = subject.vae
    if what == "tiling":
        vae.enable_tiling()
        return "tiling is switched on"
    first = next(m for m in vae.decoder.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Conv3d))
    if what == "stride":
        first.stride = (2,) * len(first.stride)
        return "a convolution with a stride"
    vae.decoder.conv_act2 = torch.nn.LayerNorm(3)
    return "decoder.conv_act2 is a LayerNorm, which is not known"


@pytest.mark.parametrize("what", ["tiling", "stride", "module"])
def test_what_is_not_known_is_named_and_refused(what: str, folder: Path) -> None:
    changed = load(folder.name, folder)
    said = change(changed, what)
    reason = why_not(changed.vae)
    assert reason is not None
    assert said in reason
    with pytest.raises(ValueError, match=r"decoder|tiling"):
        changed.over(1, changed.latents(), Bands((11,)))


def test_another_model_is_named() -> None:
    from diffusers import AsymmetricAutoencoderKL

    assert "AsymmetricAutoencoderKL is not among the decoders" in str(why_not(AsymmetricAutoencoderKL()))


def test_channels_last_is_the_same_picture_on_every_lane(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout that a GPU gets."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def channels_last(band: torch.Tensor) -> torch.memory_format:
        return formats.get(band.ndim, torch.contiguous_format)

    for module in (canvas, layers):
        monkeypatch.setattr(module, "layout_of", channels_last)
    latents, bands = subject.latents(), bands_of(11, min_rows=1)
    alone = subject.over(1, latents, bands)
    assert float((alone - subject.whole(latents)).abs().max()) < TOLERANCE
    assert torch.equal(subject.over(3, latents, bands), alone)


@pytest.mark.parametrize("num_bytes", [1, 4 * 2 * 40 * 3, 1 << 20])
def test_attention_in_parts_is_attention(num_bytes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, tokens, 384, generator=generator) for tokens in (13, 40, 40))
    expected = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)
    parts = layers.attended_in_parts(queries, keys, values, num_bytes=num_bytes)
    assert torch.allclose(parts, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["wan", "qwenimage"])
def test_pixels_normalized_in_one_pass_are_those_of_the_module(name: str, dtype: torch.dtype) -> None:
    """The way of a GPU."""
    module = importlib.import_module(f"diffusers.models.autoencoders.autoencoder_kl_{name}")
    kind = {"wan": "WanRMS_norm", "qwenimage": "QwenImageRMS_norm"}[name]
    norm = getattr(module, kind)(24, images=False)
    generator = torch.Generator().manual_seed(0)
    norm.gamma.data = torch.randn(norm.gamma.shape, generator=generator)
    rows = torch.randn(1, 24, 2, 5, 7, generator=generator).to(dtype)
    rows[..., 0] = 0.0
    expected = norm(rows.double()).detach()
    one = OverChannels(norm.gamma.detach().to(dtype))(rows).double()
    many = norm.to(dtype)(rows).detach().double()
    gamma_error = float((norm.gamma.double() - norm.to(dtype).gamma.double()).detach().abs().max())
    assert (
        float((one - expected).abs().max()) <= 2 * float((many - expected).abs().max()) + 1e-6 + gamma_error
    )
