"""What `benchmarks.h200_stream` does for a family: sizes, steps, loads."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stream_load import Draft

# As the distilled checkpoints of the families are drawn: FLUX.1 schnell, Z-Image Turbo.
DRAFTS = {"flux1": Draft(num_steps=4, guidance_scale=3.5), "zimage": Draft(num_steps=8, guidance_scale=0.0)}
SIDES = (256, 512, 1024)
SOAK_SIDES = (256, 320, 384, 448, 512, 640, 768)
TINY_SIDES, TINY_SOAK_SIDES = (64, 128, 256), (64, 80, 96, 112, 128, 160, 192)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done for one family: with a `checkpoint` that is there, or a new one; timed once the file `gate` is
    there."""

    family: str
    device: str
    tiny: bool
    sides: tuple[int, ...]
    soak_sides: tuple[int, ...]
    loads: tuple[float, ...]
    num_requests: int
    num_rounds: int
    num_soaked: int
    numerics: str
    checkpoint: Path | None
    gate: Path | None
    budget_s: float

    @property
    def draft(self) -> Draft:
        return DRAFTS[self.family]

    @property
    def new_side(self) -> int:
        """Of pictures that are in no stream."""
        return self.sides[0] + 64

    def wait_for_gate(self) -> None:
        while self.gate is not None and not self.gate.exists():
            time.sleep(0.2)
