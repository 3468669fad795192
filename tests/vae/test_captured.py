"""Decodes in bands that are captured, with graphs of the CPU: the bits of the same decodes as they are."""

from __future__ import annotations

import pytest
import torch

from epe.graphs import Graphs
from epe.models.decoding import decoded
from epe.transport.exchange import Exchange, SoloExchange
from epe.vae import bands_of
from tests.graphs.tape import TapeDevice
from tests.lanes import on_lane
from tests.vae.conftest import Subject

HEIGHT = 24  # three bands


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_captured_decode_has_its_bits(width: int, subject: Subject) -> None:
    if subject.num_frames > 1:
        pytest.skip("videos are decoded as they are")
    given = [subject.latents(HEIGHT, seed=seed) for seed in range(4)]
    expected = [subject.over(1, latents, bands_of(HEIGHT)) for latents in given]

    def task(exchange: Exchange) -> tuple[list[torch.Tensor | None], Graphs]:
        graphs = Graphs(TapeDevice(), budget_bytes=2**40)
        with torch.inference_mode():
            return [decoded(subject.vae, latents, exchange, graphs=graphs) for latents in given], graphs

    first, *others = on_lane(width, task) if width > 1 else [task(SoloExchange())]  # type: ignore[arg-type]
    drawn, graphs = first
    assert all(map(torch.equal, drawn, expected))
    assert graphs.statistics.num_replayed == 3
    assert graphs.statistics.num_refused == 0
    assert all(picture is None for pictures, _ in others for picture in pictures)
