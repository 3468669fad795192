from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import ZImagePipeline

from tests.service.served import Served, serve, write_stage

MAX_STARTS = 2

Drawn = Callable[..., np.ndarray]


@pytest.fixture(scope="session")
def _services(tiny_zimage: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Served]]:
    running: list[Served] = []

    def living() -> Served:
        if not running or not running[-1].is_alive:
            assert len(running) < MAX_STARTS, "the service has ended again and again"
            folder = tmp_path_factory.mktemp("service")
            stage = write_stage(folder, tiny_zimage, num_ranks=4, jobs=folder / "jobs")
            running.append(serve(folder, stage, "--log-level", "debug"))
        return running[-1]

    yield living
    for service in running:
        service.close()


@pytest.fixture
def service(_services: Callable[[], Served]) -> Served:
    """Four CPU ranks, shared by all tests and started again only if one has ended them."""
    return _services()


@pytest.fixture(scope="session")
def diffusers_draws(tiny_zimage: Path) -> Drawn:
    """The picture (height, width, 3) that diffusers' own pipeline draws: the oracle."""
    torch.set_num_threads(1)
    pipeline = ZImagePipeline.from_pretrained(tiny_zimage, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)

    def draw(
        *,
        prompt: str = "a cat",
        size: str = "256x256",
        num_inference_steps: int = 4,
        seed: int = 7,
        guidance_scale: float = 5.0,
        negative_prompt: str = "",
    ) -> np.ndarray:
        width, height = map(int, size.split("x"))
        images = pipeline(
            prompt=prompt,
            negative_prompt=negative_prompt,
            height=height,
            width=width,
            num_inference_steps=num_inference_steps,
            guidance_scale=guidance_scale,
            generator=torch.Generator("cpu").manual_seed(seed),
        ).images
        return np.asarray(images[0])

    return draw
