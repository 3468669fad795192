"""How the page keeps in touch with its service: keys, lost connections, events, and what it remembers."""

from __future__ import annotations

import json
import socket

from epe.config.api_keys import ApiKey
from epe.families import family
from epe.server.app import make_app, serve
from epe.server.settings import HttpSettings
from tests.browser import open_tab
from tests.server.scenes import address_of, admit, layout
from tests.server.stand_in import StandIn


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


async def test_what_is_heard_while_the_list_is_on_its_way_is_newer_than_the_list(tab):
    script = """import("/page/world.js").then(({ World }) => {
        const w = new World();
        w.hear({name: "request.admitted", data: {id: "old"}}, 0);
        w.hear({name: "request.admitted", data: {id: "works", step: 0}}, 0);
        w.askedForList();
        w.hear({name: "request.ended", data: {id: "ends"}}, 0);
        w.hear({name: "request.admitted", data: {id: "comes"}}, 0);
        w.hear({name: "request.progressed", data: {id: "works", step: 7}}, 0);
        w.list({data: [{id: "ends"}, {id: "works", step: 3}, {id: "waits"}], total: 3});
        return [[...w.requests.keys()], w.requests.get("works").step, w.numUnseen];
    })"""
    assert await tab.run(script) == [["works", "waits", "comes"], 7, 0]


async def test_a_list_that_is_cut_off_counts_the_rest(tab):
    script = """import("/page/world.js").then(({ World }) => {
        const w = new World(), counts = [];
        w.askedForList();
        w.list({data: [{id: "a"}, {id: "b"}], total: 10});
        counts.push([w.requests.size, w.numUnseen, w.wantsList]);
        w.hear({name: "request.ended", data: {id: "unseen"}}, 0);
        counts.push([w.requests.size, w.numUnseen, w.wantsList]);
        w.askedForList();
        w.list({data: [{id: "b"}], total: 1});
        counts.push([w.requests.size, w.numUnseen, w.wantsList]);
        w.loseTouch(0);
        return [...counts, w.wantsList];
    })"""
    assert await tab.run(script) == [[2, 8, True], [2, 7, True], [1, 0, False], True]


async def test_the_pause_before_a_new_try_grows_and_is_bounded(tab):
    script = 'import("/page/connection.js").then(({ pauseAfter }) => [0, 1, 3, 9, 99].map((n) => pauseAfter(n, 1)))'
    assert await tab.run(script) == [1, 2, 8, 30, 30]
