"""The page in a real browser, as a person sees and uses it, with a keyboard too."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import AsyncIterator
from io import BytesIO

import numpy as np
import pytest
from aiohttp import ClientSession
from PIL import Image

from epe.config.api_keys import ApiKey
from epe.config.request import resolve_request
from epe.families import family
from epe.media import encode_video
from epe.messages import (
    Accepted,
    Admitted,
    Departed,
    Ended,
    Failure,
    FailureKind,
    LaneAtWork,
    LayoutChanged,
    Live,
    OutputFormat,
    Progress,
    RankStatus,
    Stage,
)
from epe.server.app import make_app, serve
from epe.server.settings import HttpSettings
from tests.browser import Browser, Tab, open_tab
from tests.server import stand_in
from tests.server.stand_in import StandIn, account_of, until

PROMPT = "a secret"
# Long enough that nothing is predicted to have ended while a slow machine looks.
PREDICTED_S = 900.0


@pytest.fixture
async def tab(browser: Browser, client: ClientSession) -> AsyncIterator[Tab]:
    """The page of a service that has just come up, in touch with it."""
    async with open_tab(browser, address_of(client)) as tab:
        await tab.reads("#connection", "Live")
        yield tab


def address_of(client: ClientSession) -> str:
    return str(client._base_url)


def live(name: str, **more: object) -> Live:
    request = resolve_request(family("zimage"), id=name, prompt=PROMPT, **more)
    accepted = Accepted(request_id=name, predicted_s=PREDICTED_S)
    return Live(request=request, accepted=accepted, arrived_at=time.time())


def admit(engine: StandIn, name: str, **more: object) -> Live:
    """Have a request come, as the page hears of it and as it is listed."""
    one = live(name, **more)
    engine.live.append(one)
    engine.tell(Admitted(request=one.request, accepted=one.accepted, arrived_at=one.arrived_at))
    return one


def depart(engine: StandIn, one: Live, failure: Failure | None = None) -> None:
    engine.live.remove(one)
    account = account_of(one.request.id, order=1)
    ended = Ended(request_id=one.request.id, account=account, failure=failure)
    engine.tell(Departed(request=one.request, accepted=one.accepted, arrived_at=one.arrived_at, ended=ended))


def layout(engine: StandIn, **ranks: tuple[int, ...]) -> None:
    lanes = (LaneAtWork(ranks=each, request_id=name, stage=Stage.DENOISE) for name, each in ranks.items())
    engine.tell(LayoutChanged(lanes=tuple(lanes)))


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


def film() -> bytes:
    pixels = np.zeros((5, 64, 96, 3), dtype=np.uint8)
    pixels[:, :, 48:] = 200
    return encode_video(pixels, format=OutputFormat.WEBM, fps=5)


async def test_a_video_is_drawn_and_can_be_played(browser, serving, engine, monkeypatch):
    monkeypatch.setattr(stand_in, "VIDEO", film())
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


async def test_a_lost_connection_is_told_and_taken_up_again(browser, engine):
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    runner = await serve_on(sock, engine)
    async with open_tab(browser, f"http://127.0.0.1:{port}") as tab:
        await tab.reads("#connection", "Live")
        one = admit(engine, "one")
        layout(engine, one=(0, 1))
        await tab.reads("#lanes-now", "2 wide")
        await runner.cleanup()
        await tab.reads("#connection", "Connection lost")
        await tab.reads("#lanes-now", "No lane is at work.")
        engine.live.remove(one)
        runner = await serve_on(socket.create_server(("127.0.0.1", port)), engine)
        try:
            await tab.reads("#connection", "Live")
            await tab.reads("#queue-rest", "nothing waits")
            admit(engine, "two")
            await tab.reads("#queue", "two")
        finally:
            await runner.cleanup()


async def serve_on(sock: socket.socket, engine: StandIn):
    app = make_app(engine, family=family("zimage"), name="image")
    return await serve(app, sock, end_within_s=0.1)


async def test_a_key_is_asked_for_once_and_kept_in_the_tab_alone(browser, serving):
    key = "studio-has-this-key"
    settings = HttpSettings(keys={"studio": ApiKey(key=key)})
    async with serving(settings=settings) as client, open_tab(browser, address_of(client)) as tab:
        await tab.until("document.querySelector('#key-dialog')?.open")
        await tab.write("#key", "not-the-right-key")
        await tab.click("#key-form button[type=submit]")
        await tab.until("document.querySelector('#key').value === ''")
        await tab.until("document.querySelector('#key-dialog')?.open")
        await tab.click("#key-close")
        await tab.click("#key-button")
        await tab.write("#key", key)
        await tab.click("#key-form button[type=submit]")
        await tab.reads("#connection", "Live")
        await tab.reads("#ranks", "cpu")
        assert not await tab.run("document.querySelector('#key-dialog').open")
        assert await tab.run("JSON.stringify({...sessionStorage})") == json.dumps(
            {"epe-key": key}, separators=(",", ":")
        )
        assert await tab.run("localStorage.length + document.cookie.length") == 0


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
    roles = {node["role"]["value"] for node in nodes if not node["ignored"]}
    assert {"banner", "main", "region", "status", "table"} <= roles
    await tab.press("Tab", code=9)
    assert await tab.run("document.activeElement.className") == "skip"


async def test_events_are_the_same_in_whatever_pieces_they_come(tab):
    text = 'retry: 2\n\nevent: a\ndata: {"x":1}\n\n: keepalive\n\nevent: b\ndata: ["ä\\n"]\n\n'
    script = f"""import("/page/sse.js").then(({{ EventParser }}) => {{
        const text = {json.dumps(text)}, all = new Set();
        for (let size = 1; size <= text.length; size++) {{
            const parser = new EventParser(), events = [];
            for (let i = 0; i < text.length; i += size) events.push(...parser.push(text.slice(i, i + size)));
            all.add(JSON.stringify(events));
        }}
        return [...all];
    }})"""
    (events,) = await tab.run(script)
    assert json.loads(events) == [{"name": "a", "data": {"x": 1}}, {"name": "b", "data": ["ä\n"]}]


async def test_what_the_page_remembers_is_bounded(tab):
    script = """Promise.all([import("/page/world.js"), import("/page/history.js")]).then(([world, history]) => {
        const w = new world.World();
        const names = Array.from({length: 6000}, (_, i) => `r${i}`);
        names.forEach((id, i) => {
            const lanes = [{ranks: [i % 8], request_id: id, stage: "denoise"}];
            w.hear({name: "request.admitted", data: {id}}, i);
            w.hear({name: "layout.changed", data: {at: i / 100, lanes}}, i);
        });
        const sizes = () => [w.requests.size, w.numUnseen, w.ended.length, w.history.since(-1).length];
        const most = sizes();
        names.forEach((id, i) => w.hear({name: "request.ended", data: {id}}, i));
        w.history.layout(10000, []);
        return [most, sizes(), history.MAX_STRETCHES];
    })"""
    most, after, max_stretches = await tab.run(script)
    assert most == [2000, 4000, 0, max_stretches + 1]
    assert after == [0, 0, 20, 1]


async def test_a_request_that_ends_while_the_list_is_on_its_way_is_not_in_it(tab):
    script = """import("/page/world.js").then(({ World }) => {
        const w = new World();
        w.askedForList();
        w.hear({name: "request.ended", data: {id: "a"}}, 0);
        w.list({data: [{id: "a"}, {id: "b"}], total: 2});
        return [...w.requests.keys()];
    })"""
    assert await tab.run(script) == ["b"]


async def test_the_pause_before_a_new_try_grows_and_is_bounded(tab):
    script = 'import("/page/connection.js").then(({ pauseAfter }) => [0, 1, 3, 9, 99].map((n) => pauseAfter(n, 1)))'
    assert await tab.run(script) == [1, 2, 8, 30, 30]
