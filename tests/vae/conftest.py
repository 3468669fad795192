"""The tiny decoder of every kind, with real code and random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from epe.models.catalog import make_tiny
from epe.transport.exchange import Exchange, SoloExchange
from epe.vae import Bands, decode
from tests.lanes import on_lane

KINDS = {
    "AutoencoderKL": "flux1",
    "AutoencoderKLFlux2": "flux2-klein",
    "AutoencoderKLQwenImage": "qwen-image",
    "AutoencoderKLWan": "wan",
}


@dataclass(frozen=True)
class Subject:
    """A decoder and what it is given."""

    vae: Any

    @property
    def is_causal(self) -> bool:
        return hasattr(self.vae.config, "z_dim")

    @property
    def num_frames(self) -> int:
        return 3 if type(self.vae).__name__ == "AutoencoderKLWan" else 1

    def latents(self, height: int = 11, width: int = 9, *, seed: int = 0) -> torch.Tensor:
        channels = self.vae.config.z_dim if self.is_causal else self.vae.config.latent_channels
        frames = (self.num_frames,) if self.is_causal else ()
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(1, channels, *frames, height, width, generator=generator).to(self.vae.dtype)

    def whole(self, latents: torch.Tensor) -> torch.Tensor:
        """What diffusers makes of them."""
        with torch.inference_mode():
            return self.vae.decode(latents, return_dict=False)[0]

    def over(
        self, lane: int, latents: torch.Tensor, bands: Bands, *, home: torch.device | None = None
    ) -> torch.Tensor:
        """What the first of `lane` ranks has in the end."""

        def task(exchange: Exchange) -> torch.Tensor | None:
            with torch.inference_mode():
                return decode(self.vae, latents, exchange, bands=bands, home=home)

        first, *others = on_lane(lane, task) if lane > 1 else [task(SoloExchange())]  # type: ignore[arg-type]
        assert others == [None] * (lane - 1)
        assert first is not None
        return first


def load(family: str, folder: Path, *, dtype: torch.dtype = torch.float32) -> Subject:
    import diffusers

    (kind,) = (kind for kind, owner in KINDS.items() if owner == family)
    torch.set_num_threads(1)
    return Subject(getattr(diffusers, kind).from_pretrained(folder / "vae", torch_dtype=dtype).eval())


@pytest.fixture(scope="session", params=KINDS.values(), ids=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vae") / request.param
    make_tiny(request.param, folder)
    return folder


@pytest.fixture(scope="session")
def subject(folder: Path) -> Subject:
    return load(folder.name, folder)
