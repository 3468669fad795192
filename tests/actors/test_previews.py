"""When previews are made, and that they cost nobody his picture."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from epe.actors.previews import Previews
from epe.messages import Palette, Preview, StateHeader
from tests.actors.cluster import request


class Made:
    """What was rendered; a gate holds the rendering up, as a slow thread would."""

    def __init__(self) -> None:
        self.told: list[Preview] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.previews = Previews(render=self.render, run_elsewhere=self.run)
        self.previews.palette = Palette(weights=((0.0, 0.0, 0.0),))

    def render(self, latents: Any, noise: Any, palette: Palette, request: Any) -> bytes:
        if latents == "broken":
            raise ValueError("latents of an odd shape")
        return f"{latents} from {noise}".encode()

    async def run(self, render: Any, *given: Any) -> bytes:
        await self.gate.wait()
        return render(*given)

    async def see(self, *steps: int, latents: str = "latents") -> None:
        for step in steps:
            header = StateHeader(request_id="a", step=step, names=("latents",))
            self.previews.see(header, {"latents": f"{latents} {step}" if latents == "latents" else latents})
            for _ in range(3):
                await asyncio.sleep(0)


@pytest.mark.parametrize(("num_previews", "steps"), [(0, []), (1, [4]), (2, [2, 5]), (3, [2, 4, 6])])
async def test_previews_are_spread_over_the_steps(num_previews, steps):
    made = Made()
    made.previews.begin(request("a", steps=8), num_previews=num_previews, tell=made.told.append)
    await made.see(*range(9))
    assert [each.step for each in made.told] == steps
    assert [each.index for each in made.told] == list(range(num_previews))
    assert [each.data for each in made.told] == [f"latents {step} from latents 0".encode() for step in steps]


async def test_where_leases_are_long_there_are_fewer_previews_with_rising_numbers():
    made = Made()
    made.previews.begin(request("a", steps=8), num_previews=3, tell=made.told.append)
    await made.see(0, 5, 8)
    assert [(each.index, each.step) for each in made.told] == [(1, 5), (2, 8)]


async def test_a_checkpoint_that_comes_while_a_preview_is_made_is_let_pass():
    made = Made()
    made.previews.begin(request("a", steps=8), num_previews=3, tell=made.told.append)
    made.gate.clear()
    await made.see(0, 2, 4)
    made.gate.set()
    await made.see(3, 6)
    assert [(each.index, each.step) for each in made.told] == [(0, 2), (2, 6)]


async def test_nothing_is_made_for_a_request_that_has_ended():
    made = Made()
    made.previews.begin(request("a", steps=8), num_previews=3, tell=made.told.append)
    made.gate.clear()
    await made.see(0, 2)
    made.previews.end("a")
    made.gate.set()
    await made.see(4, 6)
    assert made.told == []


async def test_a_preview_that_cannot_be_made_ends_the_previews_alone():
    made = Made()
    made.previews.begin(request("a", steps=8), num_previews=3, tell=made.told.append)
    await made.see(0)
    await made.see(2, latents="broken")
    await made.see(4, 6)
    assert made.told == []


async def test_without_a_palette_there_are_none():
    made = Made()
    made.previews.palette = None
    made.previews.begin(request("a", steps=8), num_previews=3, tell=made.told.append)
    await made.see(*range(9))
    assert made.told == []


async def test_no_more_of_a_video_is_kept_than_what_is_looked_at():
    made = Made()
    made.previews = Previews(render=made.render, run_elsewhere=made.run, part=lambda latents: latents[:5])
    made.previews.palette = Palette(weights=((0.0, 0.0, 0.0),))
    made.previews.begin(request("a", steps=8), num_previews=1, tell=made.told.append)
    await made.see(0, 4)
    assert [each.data for each in made.told] == [b"laten from laten"]
