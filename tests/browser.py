"""A headless Chromium, spoken to over its DevTools protocol: what a person would see and do at the page."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

# The machine may be busy with much else; nothing here measures a time.
WITHIN_S = 90.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # it refuses to run as root with one; it sees this machine's page alone
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)


def find_chromium() -> str | None:
    """The browser of this machine, if it has one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """The process; `folder` holds all that it keeps."""

    def __init__(self, program: str, folder: Path) -> None:
        self._port_file = folder / "DevToolsActivePort"
        command = (program, *_FLAGS, f"--user-data-dir={folder}", "about:blank")
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def port(self) -> int:
        """Where it speaks, once it does."""
        end_s = time.monotonic() + WITHIN_S
        while not (self._port_file.exists() and self._port_file.read_text().count("\n")):
            assert self._process.poll() is None, "the browser has ended"
            assert time.monotonic() < end_s, "the browser does not come up"
            time.sleep(0.05)
        return int(self._port_file.read_text().splitlines()[0])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Tab:
    """One tab. `complaints` are what its page did wrong: exceptions, and what its policy forbids."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol; raises `AssertionError` where the browser refuses it."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(WITHIN_S):
            reply = await answer
        assert "error" not in reply, reply
        return reply["result"]

    async def listen(self) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                continue
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["source"] == "security":
                self.complaints.append(said["params"]["entry"]["text"])

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        reply = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    async def until(self, condition: str) -> Any:
        """The first value of an expression that counts as true."""
        try:
            async with asyncio.timeout(WITHIN_S):
                while not (value := await self.run(condition)):  # noqa: ASYNC110  a page has no event for all
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"in vain: {condition}\n{await self.text('body')}") from None
        return value

    async def text(self, selector: str) -> str:
        """The text of an element as it is seen."""
        return str(await self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def reads(self, selector: str, words: str) -> None:
        """Wait until an element says these words."""
        await self.until(
            f"document.querySelector({json.dumps(selector)})?.innerText.includes({json.dumps(words)})"
        )

    async def click(self, selector: str) -> None:
        """Click where the element is, as a mouse does."""
        place = await self.until(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            if (!e || e.disabled) return null; e.scrollIntoView({{block: "center", behavior: "instant"}});
            const r = e.getBoundingClientRect();
            return r.width ? {{x: r.x + r.width / 2, y: r.y + r.height / 2}} : null }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    async def write(self, selector: str, words: str) -> None:
        """Type into a field in place of what is in it."""
        await self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus(); e.select() }})()"
        )
        await self.call("Input.insertText", text=words)

    async def press(self, key: str, *, code: int) -> None:
        """Press one key; `code` is its virtual key code."""
        for kind in ("rawKeyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    async def look(self, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Give the window a size in CSS pixels, and the person a wish for light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def picture(self, **more: Any) -> bytes:
        """What is seen now, as a PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png", **more))["data"])


@asynccontextmanager
async def open_tab(browser: Browser, url: str) -> AsyncIterator[Tab]:
    """A new tab at this address, with nothing kept from others of its kind; what its page did wrong fails the test."""
    async with ClientSession(f"http://127.0.0.1:{browser.port}") as session:
        async with session.put("/json/new?about:blank") as response:
            target = await response.json()
        address = target["webSocketDebuggerUrl"]
        async with session.ws_connect(address, max_msg_size=0) as socket:
            tab = Tab(socket)
            listening = asyncio.create_task(tab.listen())
            try:
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                await tab.look()
                await tab.call("Page.navigate", url=url)
                yield tab
                assert tab.complaints == []
            finally:
                listening.cancel()
                with suppress(asyncio.CancelledError):
                    await listening
        async with session.get(f"/json/close/{target['id']}"):
            pass
