"""The page in a real browser, as a person sees and uses it, with a keyboard too."""

from __future__ import annotations

import asyncio
import base64
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from epe.messages import (
    Failure,
    FailureKind,
    RankStatus,
    Stage,
)
from tests.browser import Tab, open_tab
from tests.server.scenes import address_of, admit, depart, layout, live
from tests.server.stand_in import StandIn, until


async def colours_at_work(tab: Tab, *, num_ranks: int) -> list[str]:
    """What stands at the right edge of the picture of the lanes, row by row."""
    picture = await tab.run("document.querySelector('#lanes').toDataURL().split(',')[1]")
    pixels = np.asarray(Image.open(BytesIO(base64.b64decode(picture))).convert("RGB"))
    return ["#" + bytes(pixels[rank * 30 + 8, -2]).hex() for rank in range(num_ranks)]


async def test_a_lane_is_seen_to_change_its_width(tab, engine):
    admit(engine, "one")
    layout(engine, one=(0,))
    await tab.reads("#lanes-now", "one: denoise on rank 0")
    layout(engine, one=(0, 1, 2, 3))
    await tab.reads("#lanes-now", "one: denoise on ranks 0–3 (4 wide)")
    await tab.reads("#changes", "one 1 → 4 wide")
    admit(engine, "two")
    layout(engine, one=(0, 1), two=(2, 3))
    await tab.reads("#changes", "one 4 → 2 wide")
    await tab.reads("#lanes-now", "two: denoise on ranks 2–3 (2 wide)")
    await until_colours(tab, lambda rows: rows[0] == rows[1] != rows[2] == rows[3])
    layout(engine)
    await tab.reads("#lanes-now", "No lane is at work.")


async def until_colours(tab: Tab, fits) -> None:
    async with asyncio.timeout(60):
        while not fits(await colours_at_work(tab, num_ranks=4)):  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.1)


async def test_a_kept_request_is_chosen_with_the_keyboard_and_cancelled(tab, client, engine):
    engine.gate.clear()
    async with client.post("/v1/requests", json={"prompt": "x"}) as response:
        name = (await response.json())["id"]
    admit(engine, name)
    await tab.until("document.querySelectorAll('#queue button').length")
    await tab.run("document.querySelector('#queue button').focus()")
    await tab.press("Enter", code=13)
    await tab.call("Input.dispatchKeyEvent", type="char", text="\r")
    await tab.reads("#detail-facts", name)
    assert await tab.run("document.querySelector('#queue button').getAttribute('aria-pressed')") == "true"
    await tab.click("#detail-cancel")
    await until(lambda: engine.cancelled == [name])


async def test_a_request_of_somebody_else_is_cancelled_from_the_page(tab, engine):
    admit(engine, "somebodys")
    await tab.click("#queue button")
    await tab.reads("#detail-facts", "somebodys")
    await tab.click("#detail-cancel")
    await tab.reads("#detail-note", "It has ended: cancelled.")
    assert engine.cancelled == ["somebodys"]


async def test_predicted_and_actual_stand_side_by_side_at_the_end(tab, engine):
    one = admit(engine, "one", num_steps=4)
    layout(engine, one=(0, 1))
    await tab.click("#queue button")
    await tab.reads("#detail-facts", "denoise on ranks 0–1 (2 wide), step 0 of 4")
    layout(engine)
    depart(engine, one)
    await tab.reads("#detail-facts", "finished, 3.0 s later than predicted")
    await tab.reads("#detail-stretches", "0.5 s to 1.5 s: denoise, steps 1 to 4 on ranks 0–1 (2 wide)")
    assert await tab.run("document.querySelectorAll('#detail-chart rect').length") == 3
    assert await tab.run("document.querySelector('#detail-cancel').disabled")
    assert (await tab.text("#ended")).split("\t")[1:] == ["finished", "unknown", "3.0 s", "2 wide"]


async def test_text_of_others_stays_text(tab, engine):
    mark = "<img src=x onerror=alert(1)>"
    one = admit(engine, "one")
    await tab.until("document.querySelectorAll('#queue button').length")
    depart(engine, one, Failure(kind=FailureKind.TASK_RAISED, message=mark, stage=Stage.DENOISE))
    await tab.click("#ended button")
    await tab.reads("#detail-facts", mark)
    assert await tab.run("document.querySelectorAll('img').length") == 1


async def test_ten_thousand_that_wait_do_not_fill_the_page(browser, client, engine):
    engine.live.extend(live(f"r{index:05}") for index in range(10_000))
    async with open_tab(browser, address_of(client)) as tab:
        await tab.reads("#queue-rest", "and 9960 more")
        before = await tab.run("document.querySelectorAll('*').length")
        engine.live.extend(admit(StandIn(listeners=engine.listeners), f"s{index:05}") for index in range(900))
        await tab.reads("#queue-rest", "and 10860 more")
        assert await tab.run("document.querySelectorAll('#queue tr').length") == 40
        assert abs(await tab.run("document.querySelectorAll('*').length") - before) < 20


async def test_ranks_are_shown_with_their_health_and_memory(tab, engine):
    await tab.reads("#ranks", "cpu")
    lost = RankStatus(rank=2, state="lost", device="cuda:2", reason="no word for 10 s")
    full = RankStatus(rank=3, state="busy", device="cuda:3", memory_bytes=2**34, resident_bytes=2**33)
    engine.status_now = type(engine.status_now)(
        phase="running", ranks=(lost, full), num_waiting=3, num_running=1, num_finished=7
    )
    await tab.reads("#ranks", "lost: no word for 10 s")
    await tab.reads("#ranks", "8.0 GiB of 16.0 GiB")
    assert await tab.run("document.querySelectorAll('#ranks tr').length") == 2
    assert "1 in work, 3 wait, 7 finished" in await tab.text("#counts")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_on_a_phone_nothing_stands_beside_the_screen(tab, engine, scheme):
    await tab.look(width=360, height=740, scheme=scheme)
    admit(engine, "a-long-name-" * 5)
    layout(engine, **{"a-long-name-" * 5: (0, 1, 2, 3, 4, 5, 6, 7)})
    await tab.reads("#lanes-now", "8 wide")
    await tab.click("#queue button")
    assert await tab.run("document.scrollingElement.scrollWidth") <= 360
    grounds = {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 19, 23)"}
    assert await tab.run("getComputedStyle(document.body).backgroundColor") == grounds[scheme]


async def test_all_that_can_be_reached_with_a_keyboard_has_a_name(tab, engine):
    admit(engine, "one")
    await tab.until("document.querySelectorAll('#queue button').length")
    nodes = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
    nameless = [
        node["role"]["value"]
        for node in nodes
        if any(p["name"] == "focusable" and p["value"]["value"] for p in node.get("properties", ()))
        and node["role"]["value"] not in ("RootWebArea", "main")
        and not node.get("name", {}).get("value")
    ]
    assert nameless == []
    regions = [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "region"]
    assert sorted(regions) == ["Draw", "Lanes", "One request", "Queue", "Ranks"]
    roles = {node["role"]["value"] for node in nodes if not node["ignored"]}
    assert {"banner", "main", "region", "status", "table"} <= roles
    await tab.press("Tab", code=9)
    assert await tab.run("document.activeElement.className") == "skip"
