"""Results by URL: absolute, fetched by whoever has the address, and bounded."""

from __future__ import annotations

import pytest

from epe.config.load import build_stage
from epe.errors import TaskFailed
from epe.server.results import MAX_AGE_S, Results
from epe.server.settings import HttpSettings, http_settings, is_loopback
from tests.server.test_images import post


async def test_a_result_can_be_fetched_from_the_absolute_address_in_the_reply(client):
    for output_format in ("png", "jpeg", "webp"):
        body = {
            "prompt": "x",
            "size": "64x64",
            "n": 2,
            "response_format": "url",
            "output_format": output_format,
        }
        status, reply = await post(client, **body)
        assert status == 200
        assert len({item["url"] for item in reply["data"]}) == 2
        for item in reply["data"]:
            assert "b64_json" not in item
            assert item["url"].startswith(str(client._base_url))
            async with client.get(item["url"]) as response:
                assert (response.status, response.content_type) == (200, f"image/{output_format}")
                assert len(await response.read()) > 20


async def test_a_result_that_is_not_there_is_not_found(client):
    async with client.get("/v1/results/other.png") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("host", "start"),
    [
        (None, None),
        ("pictures.example", "http://pictures.example:18200/v1/results/"),
        ("pictures.example:80", "http://pictures.example:80/v1/results/"),
        ("[::1]", "http://[::1]:18200/v1/results/"),
        ("https://pictures.example/", "https://pictures.example/v1/results/"),
    ],
)
async def test_the_address_is_the_one_that_the_stage_file_names(serving, tmp_path, host, start):
    (tmp_path / "model_index.json").write_text('{"_class_name": "ZImagePipeline"}')
    args = {"model_path": str(tmp_path)}
    stage = build_stage(
        {
            "name": "x",
            "factory": "zimage",
            "gpu": [0],
            "factory_args": args,
            "service": {"advertise_host": host},
        }
    )
    async with serving(settings=http_settings(stage, port=18200)) as client:
        _, reply = await post(client, prompt="x", size="64x64", response_format="url")
        assert reply["data"][0]["url"].startswith(start or f"{client._base_url}/v1/results/")


async def test_where_no_results_are_kept_an_address_is_refused(serving, engine):
    async with serving(settings=HttpSettings(results_bytes=0)) as client:
        status, reply = await post(client, prompt="x", response_format="url")
    assert (status, reply["error"]["param"]) == (400, "response_format")
    assert not engine.submitted


def test_the_oldest_results_go_first_when_memory_is_full():
    results = Results(limit_bytes=100)
    names = [results.put(bytes(40), media_type="image/png") for _ in range(4)]
    assert [results.get(name) is not None for name in names] == [False, False, True, True]
    assert results.num_bytes == 80
    with pytest.raises(TaskFailed, match="101 bytes"):
        results.put(bytes(101), media_type="image/png")


def test_results_are_let_go_after_an_hour():
    now_s = 0.0
    results = Results(limit_bytes=100, clock=lambda: now_s)
    name = results.put(b"file", media_type="image/webp")
    now_s = MAX_AGE_S
    assert results.get(name) == (b"file", "image/webp")
    now_s = MAX_AGE_S + 1
    assert results.get(name) is None
    assert results.num_bytes == 0


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)],
)
def test_a_host_that_others_can_reach_is_told_from_loopback(host, inside):
    assert is_loopback(host) == inside
