"""The page and its files: what is served, and what a browser is told not to do with it."""

from __future__ import annotations

import re

import pytest
import yarl

from epe.config.api_keys import ApiKey
from epe.server.page import ASSETS
from epe.server.settings import HttpSettings

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
TEXTS = {name: asset.data.decode() for name, asset in ASSETS.items()}
# Names of a vocabulary and no address that anybody fetches.
NAMESPACES = {"http://www.w3.org/2000/svg"}


def policy_of(response) -> dict[str, list[str]]:
    parts = (part.split() for part in response.headers["Content-Security-Policy"].split(";"))
    return {name: values for name, *values in parts}


async def test_the_page_asks_for_no_key_and_what_it_shows_does(serving):
    keys = {"studio": ApiKey(key="studio-has-this-key")}
    async with serving(settings=HttpSettings(keys=keys)) as client:
        statuses = {}
        for path in ("/", "/page/main.js", "/v1/events", "/v1/requests", "/health"):
            async with client.get(path) as response:
                statuses[path] = response.status
    assert statuses == {
        "/": 200,
        "/page/main.js": 200,
        "/v1/events": 401,
        "/v1/requests": 401,
        "/health": 401,
    }


@pytest.mark.parametrize("path", ["/", "/page/main.js"])
async def test_a_browser_is_told_to_run_nothing_inline_and_nothing_of_others(client, path):
    async with client.get(path) as response:
        policy = policy_of(response)
        headers = response.headers
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == ["'none'"]
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == ["'self'"]
    assert policy["require-trusted-types-for"] == ["'script'"]
    assert {value for values in policy.values() for value in values} <= {
        "'none'",
        "'self'",
        "blob:",
        "'script'",
    }
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("name", sorted(ASSETS))
async def test_every_file_of_the_page_comes_with_its_type(client, name):
    async with client.get(f"/page/{name}") as response:
        assert await response.read() == ASSETS[name].data
    assert (response.status, response.content_type) == (200, TYPES[name.rpartition(".")[2]])


async def test_a_file_that_the_browser_has_is_not_sent_again(client):
    async with client.get("/") as first:
        tag = first.headers["ETag"]
    async with client.get("/", headers={"If-None-Match": tag}) as second:
        assert (second.status, await second.read(), second.headers["ETag"]) == (304, b"", tag)
    async with client.get("/page/main.js", headers={"If-None-Match": tag}) as other:
        assert other.status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/none.js",
        "/page/",
        "/page/..%2Fpage.py",
        "/page/../page.py",
        "/page/%2e%2e%2f%2e%2e%2fapp.py",
        "/page/%2Fetc%2Fpasswd",
        "/page/main.js%00",
        "/page/..\\page.py",
    ],
)
async def test_nothing_but_the_files_of_the_page_can_be_fetched(client, path):
    url = yarl.URL(f"{client._base_url}".rstrip("/") + path, encoded=True)
    async with client.get(url) as response:
        reply = await response.json()
    assert (response.status, reply["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_file_of_the_page_names_another_host(name):
    found = set(re.findall(r"""(?:https?:|wss?:|["'(])//[^\s"'`)>]*|https?://[^\s"'`)>]*""", TEXTS[name]))
    assert found <= NAMESPACES


def test_all_that_the_page_names_is_there():
    named = set(re.findall(r'"page/([^"]+)"', TEXTS["index.html"]))
    for name, text in TEXTS.items():
        if name.endswith(".js"):
            named |= set(re.findall(r'from "\./([^"]+)"', text))
    assert named == set(TEXTS) - {"index.html"}


def test_the_page_has_no_script_or_style_inline():
    html = TEXTS["index.html"]
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", html)


@pytest.mark.parametrize("name", sorted(name for name in TEXTS if name.endswith(".js")))
def test_no_text_becomes_markup_or_code(name):
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML|DOMParser"
    assert not re.search(ways, TEXTS[name])


def test_every_control_has_a_label_and_every_section_a_title():
    html = TEXTS["index.html"]
    ids = set(re.findall(r'\bid="([^"]+)"', html))
    labelled = set(re.findall(r'<label for="([^"]+)"', html))
    controls = set(re.findall(r'<(?:input|textarea|select)\b[^>]*\bid="([^"]+)"', html))
    assert controls
    assert controls <= labelled
    pointed = re.findall(r'aria-(?:labelledby|describedby)="([^"]+)"', html)
    assert {each for names in pointed for each in names.split()} <= ids
    assert all("aria-labelledby=" in tag for tag in re.findall(r"<(?:section|dialog)\b[^>]*>", html))


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_texts_can_be_read_in_light_and_dark_and_on_every_colour_of_a_request():
    for theme in re.findall(r":root \{([^}]*)\}", TEXTS["page.css"]):
        of = dict(re.findall(r"--([\w-]+): (#\w{6})", theme))
        for text in ("text", "quiet", "accent", "good", "warn", "bad"):
            assert contrast(of[text], of["ground"]) >= 4.5, text
            assert contrast(of[text], of["card"]) >= 4.5, text
        assert contrast(of["quiet"], of["empty"]) >= 4.5
        assert contrast(of["on-accent"], of["accent"]) >= 4.5
        assert contrast(of["edge"], of["ground"]) >= 3
    pairs = re.findall(r'fill: "(#\w{6})", text: "(#\w{6})"', TEXTS["colours.js"])
    assert len(pairs) == 10
    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []
