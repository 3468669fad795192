"""The stage files in `examples/` serve: each with a tiny model, on its four ranks, requests at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from epe.config.load import build_stage
from epe.config.request import resolve_request
from epe.messages import OutputFormat, Request
from epe.models.catalog import make_tiny
from tests.oracle import load_oracle, pixels_of
from tests.runtime.on_ranks import draw_together
from tests.world import World

pytestmark = pytest.mark.world

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("stage-*.yaml"))


def _requests(settings: dict[str, Any]) -> list[Request]:
    """Eight that differ in size, steps and seed; what they leave out comes from the stage file."""
    stage = build_stage(settings, env={})
    return [
        resolve_request(
            stage.family,
            prompt="a red cube on a white table" * (1 + number % 3),
            id=f"r{number}",
            height=64 + 16 * (number % 3),
            width=64 + 16 * (number % 4),
            num_frames=1 + 4 * (number % 2) if stage.family.makes == "video" else None,
            num_steps=2 + number % 3,
            # With guidance and without, from one request to the next.
            guidance_scale=(4.0, 0.0, None)[number % 3],
            seed=number,
            output_format=OutputFormat.RAW,
            defaults=stage.request_defaults,
        )
        for number in range(8)
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_eight_requests_at_once_are_each_what_the_pipeline_draws(
    path: Path, world: World, tmp_path: Path
) -> None:
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    checkpoint = tmp_path / settings["factory"]
    make_tiny(checkpoint.name, checkpoint)
    settings["factory_args"]["model_path"] = str(checkpoint)
    settings["device"] = "cpu"
    settings["parallelism"]["scheduler"]["cost_file"] = "off"
    requests, stage = _requests(settings), build_stage(settings, env={})
    drawn = world.run(draw_together, settings, requests)[0]
    oracle = load_oracle(checkpoint)
    # Z-Image's pipeline has both branches as one batch, this stage each alone, and others decode in bands: the last
    # bits of a value may differ.
    largest = int(stage.family.name == "zimage" or stage.decodes_in_bands)
    for request, pixels in zip(requests, drawn, strict=True):
        expected = pixels_of(oracle, request)
        assert np.abs(pixels.astype(int) - expected).max() <= largest, request.id
