"""What crosses the edges between ranks: no more than the rows that convolutions see beyond their own."""

from __future__ import annotations

import pytest
import torch

from benchmarks.vaep import DECODERS, Counting, Subject, least_bytes
from epe.vae import decode
from tests.lanes import ThreadExchange, on_lane

SIZE = (32, 16)


@pytest.mark.parametrize("kind", DECODERS)
def test_the_rows_that_travel_are_the_least_that_convolutions_need(kind: str) -> None:
    torch.set_num_threads(1)
    subject = Subject(kind, is_tiny=True)
    latents = subject.latents(SIZE)

    def task(exchange: ThreadExchange) -> int:
        counting = Counting(exchange)
        with torch.inference_mode():
            decode(subject.vae, latents, counting)  # type: ignore[arg-type]
        return counting.sent["rows"]

    assert sum(on_lane(4, task)) == least_bytes(subject, num_edges=3, size=SIZE)
