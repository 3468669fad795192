"""Drawing in the page: previews, pictures, videos, what is wrong, and the end by a button."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

from epe.families import family
from epe.media import encode_video
from epe.media.thumbnail import thumbnail_of
from epe.messages import (
    OutputFormat,
    Progress,
    Stage,
)
from tests.browser import open_tab
from tests.server.scenes import address_of, admit, layout
from tests.server.stand_in import until


async def test_a_picture_is_drawn_and_its_previews_are_seen_on_the_way(tab, engine):
    engine.preview = lambda index: png(8 * (index + 1))
    engine.gate.clear()
    await tab.write("#prompt", "a red cube")
    await tab.write("#size", "64x64")
    await tab.write("#seed", "9")
    await tab.write("#deadline_s", "1,5")
    await tab.click("#draw-button")
    await tab.until("document.querySelector('#picture-image').naturalWidth === 24")
    assert "Preview after step 3" in await tab.text("#draw-state")
    (request,) = engine.submitted
    assert (request.prompt, request.width, request.seed, request.deadline_s) == ("a red cube", 64, 9, 1.5)
    engine.gate.set()
    await tab.reads("#draw-state", "Finished.")
    await tab.until("document.querySelector('#picture-image').naturalWidth === 64")
    assert await tab.run("document.querySelector('#picture-image').alt") == "A picture of: a red cube"
    assert "Seed 9; 3.0 s, predicted 2.5 s; 2 wide." in await tab.text("#picture-caption")
    assert await tab.run("document.querySelector('#picture-save').download") == "epe-9.png"
    assert engine.cancelled in ([], [request.id])  # of no effect on what has ended


def png(side: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (side, side), "teal").save(file, "png")
    return file.getvalue()


async def test_a_field_that_is_wrong_is_named_and_has_the_focus(tab, engine):
    await tab.write("#prompt", "x")
    await tab.write("#size", "1000x1000")
    await tab.click("#draw-button")
    await tab.reads("#draw-state", "not a multiple of 16")
    await tab.until("document.activeElement.id === 'size'")
    assert await tab.run("document.querySelector('#size').getAttribute('aria-invalid')") == "true"
    await tab.write("#size", "")
    await tab.write("#seed", "many")
    await tab.click("#draw-button")
    await tab.until("document.activeElement.id === 'seed'")
    assert not engine.submitted


def film() -> bytes:
    pixels = np.zeros((5, 64, 96, 3), dtype=np.uint8)
    pixels[:, :, 48:] = 200
    return encode_video(pixels, format=OutputFormat.WEBM, fps=5)


async def test_a_video_is_seen_in_the_making_and_can_be_played(browser, serving, engine):
    engine.video = film()
    engine.gate.clear()
    async with serving(family=family("wan")) as client, open_tab(browser, address_of(client)) as tab:
        await tab.until("document.querySelector('#seconds')?.closest('[hidden]') === null")
        await tab.write("#prompt", "a cat that walks")
        await tab.write("#seconds", "1")
        await tab.click("#draw-button")
        await until(lambda: len(engine.submitted) == 1)
        assert engine.submitted[0].num_frames == 17
        admit(engine, engine.submitted[0].id)
        await tab.reads("#detail-facts", engine.submitted[0].id)
        engine.previews[engine.submitted[0].id] = thumbnail_of(engine.video)
        engine.watchers[engine.submitted[0].id](
            Progress(request_id=engine.submitted[0].id, stage=Stage.DENOISE, step=9, num_steps=50)
        )
        await tab.reads("#draw-state", "Preview of the first frame.")
        await tab.until("document.querySelector('#picture-image').naturalWidth === 96")
        engine.gate.set()
        await tab.reads("#draw-state", "Finished.")
        await tab.until("document.querySelector('#picture-video').videoWidth === 96")
        assert "Seed" in await tab.text("#picture-caption")
        assert not await tab.run("document.querySelector('#picture-image').checkVisibility()")


async def test_a_video_is_cancelled_though_its_job_would_go_on_without_its_client(browser, serving, engine):
    engine.gate.clear()
    async with serving(family=family("wan")) as client, open_tab(browser, address_of(client)) as tab:
        await tab.until("document.querySelector('#seconds')?.closest('[hidden]') === null")
        await tab.write("#prompt", "x")
        await tab.click("#draw-button")
        await tab.reads("#draw-state", "Taken")
        await tab.click("#draw-cancel")
        await until(lambda: engine.cancelled == [engine.submitted[0].id])


async def test_what_the_page_draws_is_shown_in_time_and_cancelled_by_its_button(tab, engine):
    engine.gate.clear()
    await tab.write("#prompt", "x")
    await tab.click("#draw-button")
    await until(lambda: len(engine.submitted) == 1)
    name = engine.submitted[0].id
    assert name.startswith("page-")
    admit(engine, name)
    layout(engine, **{name: (0, 1)})
    engine.tell(Progress(request_id=name, stage=Stage.DENOISE, step=5, num_steps=50, ranks=(0, 1)))
    await tab.reads("#detail-stretches", "denoise on ranks 0–1 (2 wide)")
    await tab.until("document.querySelector('#draw-progress').value === 0.1")
    assert "15 min 0 s (guessed)" in await tab.text("#detail-facts")
    await tab.click("#detail-cancel")
    await tab.reads("#draw-state", "Cancelled.")
    await until(lambda: engine.cancelled == [name])
