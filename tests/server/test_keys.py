"""Keys of clients: who may come in, and whose share is whose."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from epe.config.api_keys import ApiKey, read_keys
from epe.errors import BadSetting
from epe.server.routes import ROUTES
from epe.server.settings import HttpSettings
from tests.server.scenes import admit
from tests.server.stand_in import until

ALICE, BOB = "alice-has-this-key", "bob-has-another-key"
KEYS = {
    "alice": ApiKey(key=ALICE, at_once=1),
    "bob": ApiKey(sha256=hashlib.sha256(BOB.encode()).hexdigest(), megapixel_steps=1),
}
SETTINGS = HttpSettings(keys=KEYS)
BODY = {"prompt": "x", "size": "64x64"}
PATH = "/v1/images/generations"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


GUARDED = [(route.method, route.path) for route in ROUTES if route.guarded]


@pytest.mark.parametrize(("method", "path"), [*GUARDED, ("GET", "/nowhere"), ("POST", "/v1/models")])
@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong"), {"Authorization": ALICE}, bearer(ALICE[:-1]), bearer("\xff")]
)
async def test_without_a_key_all_is_closed_and_nothing_says_what_is_there(
    serving, engine, method, path, headers
):
    async with (
        serving(settings=SETTINGS) as client,
        client.request(method, path, json=BODY, headers=headers) as response,
    ):
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (401, "invalid_api_key")
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert not engine.submitted


async def test_liveness_results_and_the_page_alone_are_open_to_everybody(serving):
    assert {route.path for route in ROUTES if not route.guarded} == {
        "/",
        "/page/{name}",
        "/livez",
        "/v1/results/{name}",
    }
    async with serving(settings=SETTINGS) as client, client.get("/livez") as response:
        assert (response.status, await response.json()) == (200, {"status": "alive"})


@pytest.mark.parametrize(("key", "name"), [(ALICE, "alice"), (BOB, "bob")])
async def test_the_name_of_the_key_says_on_whose_account_a_request_runs(serving, engine, key, name):
    async with serving(settings=SETTINGS) as client:
        body = {**BODY, "user": "carol", "num_inference_steps": 3}
        async with client.post(PATH, json=body, headers=bearer(key)) as response:
            reply = await response.json()
    assert response.status == 200
    assert engine.submitted[0].client_id == name
    assert reply["warnings"] == ["user has no effect here"]


async def test_each_key_has_its_own_limits(serving, engine):
    engine.gate.clear()
    async with serving(settings=SETTINGS) as client:
        first = asyncio.ensure_future(client.post(PATH, json=BODY, headers=bearer(ALICE)))
        await until(lambda: engine.num_running == 1)
        async with client.post(PATH, json=BODY, headers=bearer(ALICE)) as response:
            assert response.status == 429
        second = asyncio.ensure_future(client.post(PATH, json=BODY, headers=bearer(BOB)))
        await until(lambda: engine.num_running == 2)
        engine.gate.set()
        assert [(await each).status for each in (first, second)] == [200, 200]
        async with client.post(PATH, json={"prompt": "x"}, headers=bearer(BOB)) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, "size")


def write(folder: Path, text: str, *, mode: int = 0o600) -> str:
    path = folder / "keys.yaml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_file_of_keys_is_read(tmp_path):
    digest = hashlib.sha256(BOB.encode()).hexdigest()
    keys = read_keys(write(tmp_path, f"alice: {{key: {ALICE}, at_once: 4}}\nbob: {{sha256: {digest}}}\n"))
    assert keys["alice"].at_once == 4
    assert [key.digest for key in keys.values()] == [
        hashlib.sha256(key.encode()).digest() for key in (ALICE, BOB)
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alice: {key: short-secret}", "alice.key is wrong"),
        (f"alice: {{key: {ALICE}, at_once: none}}", "alice.at_once is wrong"),
        (f"alice: {{kee: {ALICE}}}", "alice.kee is wrong"),
        ("alice: {}", "alice must have key or sha256"),
        ("alice: {sha256: abc}", "alice.sha256 is wrong"),
        (f"alice: {{key: {ALICE}}}\nbob: {{key: {ALICE}}}", "have the same key"),
        (f"alice: {{key: {ALICE}}}\nalice: {{key: {BOB}}}", "given twice"),
        (f"- {ALICE}", "must be a mapping"),
    ],
)
def test_a_wrong_file_of_keys_is_one_sentence_that_shows_no_key(tmp_path, text, words):
    with pytest.raises(BadSetting) as caught:
        read_keys(write(tmp_path, text))
    assert words in str(caught.value)
    assert not [secret for secret in (ALICE, BOB, "short-secret") if secret in str(caught.value)]


def test_a_file_that_everybody_may_read_is_refused(tmp_path):
    with pytest.raises(BadSetting, match="chmod 600"):
        read_keys(write(tmp_path, f"alice: {{key: {ALICE}}}", mode=0o644))


def test_a_missing_file_of_keys_is_one_sentence():
    with pytest.raises(BadSetting, match="there is no file /nowhere"):
        read_keys("/nowhere")


async def test_a_request_in_work_is_shown_to_and_cancelled_by_its_own_client_alone(serving, engine):
    admit(engine, "hers", client_id="alice")
    async with serving(settings=SETTINGS) as client:
        for method in ("GET", "DELETE"):
            async with client.request(method, "/v1/requests/hers", headers=bearer(BOB)) as response:
                assert response.status == 404
        assert engine.cancelled == []
        async with client.delete("/v1/requests/hers", headers=bearer(ALICE)) as response:
            assert (response.status, (await response.json())["status"]) == (200, "cancelled")
    assert engine.cancelled == ["hers"]
