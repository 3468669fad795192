"""`/v1/videos`, in each of the forms in which clients send it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, FormData
from msgspec.structs import replace
from PIL import Image

from epe.errors import NonFinite
from epe.families import family
from epe.jobs.jobs import Jobs
from epe.jobs.store import MemoryStore
from epe.media import encode_video
from epe.messages import OutputFormat, Progress, Stage
from tests.server.conftest import Serving
from tests.server.stand_in import VIDEO, StandIn, until

VIDEOS = "/v1/videos"
BODY: dict[str, Any] = {"prompt": "a cat", "size": "832x480", "seconds": "4", "seed": 5}


@pytest.fixture
async def client(serving: Serving) -> AsyncIterator[ClientSession]:
    async with serving(family=family("wan"), name="video") as session:
        yield session


def multipart(**fields: Any) -> FormData:
    """As OpenAI's clients send it, also where there is no file."""
    form = FormData(default_to_multipart=True)
    for name, value in fields.items():
        form.add_field(name, str(value))
    return form


async def post(client: ClientSession, **how: Any) -> tuple[int, dict[str, Any]]:
    async with client.post(VIDEOS, **how) as response:
        return response.status, await response.json()


async def get(client: ClientSession, path: str = "", **query: Any) -> tuple[int, dict[str, Any]]:
    async with client.get(VIDEOS + path, params=query) as response:
        return response.status, await response.json()


async def made(client: ClientSession, **fields: Any) -> dict[str, Any]:
    status, video = await post(client, json={**BODY, **fields})
    assert status == 200, video
    return video


async def ended(client: ClientSession, video: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            _, now = await get(client, f"/{video['id']}")
            if now["status"] in ("completed", "failed"):
                return now
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["json", "multipart", "urlencoded"])
async def test_a_video_is_created_polled_and_fetched(
    how: str, client: ClientSession, engine: StandIn
) -> None:
    sent = {"json": {"json": BODY}, "multipart": {"data": multipart(**BODY)}, "urlencoded": {"data": BODY}}
    engine.gate.clear()
    status, video = await post(client, **sent[how])
    assert status == 200, video
    assert (video["object"], video["status"], video["progress"]) == ("video", "queued", 0)
    assert (video["size"], video["model"], video["prompt"], video["error"]) == (
        "832x480",
        "video",
        "a cat",
        None,
    )
    (request,) = engine.submitted
    # 64 frames are asked for, and Wan draws 4 n + 1.
    assert (request.width, request.height, request.num_frames, request.fps, request.seed) == (
        832,
        480,
        65,
        16,
        5,
    )
    assert video["seconds"] == "4.0625"
    assert video["epe"]["num_frames"] == 65
    status, error = await get(client, f"/{video['id']}/content")
    assert (status, error["error"]["type"]) == (404, "invalid_request_error")
    engine.gate.set()
    video = await ended(client, video)
    assert (video["status"], video["progress"]) == ("completed", 100)
    assert video["expires_at"] == video["completed_at"] + 86400
    assert video["epe"]["drawn"]["num_migrations"] == 1
    for query in ({}, {"variant": "video"}, {"variant": "0"}):
        async with client.get(f"{VIDEOS}/{video['id']}/content", params=query) as response:
            assert (response.status, response.content_type) == (200, "video/mp4")
            assert await response.read() == VIDEO


@pytest.mark.parametrize(
    ("asked", "status", "part", "content_range"),
    [
        ("bytes=0-9", 206, VIDEO[:10], "bytes 0-9/1024"),
        ("bytes=1000-", 206, VIDEO[1000:], "bytes 1000-1023/1024"),
        ("bytes=-24", 206, VIDEO[-24:], "bytes 1000-1023/1024"),
        ("bytes=1000-9999", 206, VIDEO[1000:], "bytes 1000-1023/1024"),
        ("bytes=4096-", 416, None, "bytes */1024"),
        ("pages=1-2", 200, VIDEO, None),
    ],
)
async def test_a_part_of_the_file_is_answered_as_such(
    asked: str, status: int, part: bytes | None, content_range: str | None, client: ClientSession
) -> None:
    video = await ended(client, await made(client))
    async with client.get(f"{VIDEOS}/{video['id']}/content", headers={"Range": asked}) as response:
        assert response.status == status
        assert response.headers.get("Content-Range") == content_range
        if part is not None:
            assert await response.read() == part


async def test_a_thumbnail_is_the_first_frame_as_a_picture(client: ClientSession, engine: StandIn) -> None:
    pytest.importorskip("av")
    engine.video = encode_video(np.full((2, 32, 64, 3), 200, np.uint8), format=OutputFormat.MP4, fps=8)
    video = await ended(client, await made(client))
    async with client.get(f"{VIDEOS}/{video['id']}/content", params={"variant": "thumbnail"}) as response:
        assert (response.status, response.content_type) == (200, "image/webp")
        assert Image.open(BytesIO(await response.read())).size == (64, 32)
    status, error = await get(client, f"/{video['id']}/content", variant="spritesheet")
    assert (status, error["error"]["param"]) == (400, "variant")


async def test_while_a_video_is_drawn_its_thumbnail_is_a_preview(
    client: ClientSession, engine: StandIn
) -> None:
    engine.gate.clear()
    video = await made(client)
    status, _ = await get(client, f"/{video['id']}/content", variant="thumbnail")
    assert status == 404
    engine.previews[engine.submitted[0].id] = b"preview"
    async with client.get(f"{VIDEOS}/{video['id']}/content", params={"variant": "thumbnail"}) as response:
        assert (response.status, response.content_type) == (200, "image/webp")
        assert (await response.read(), response.headers["Cache-Control"]) == (b"preview", "no-store")
    status, _ = await get(client, f"/{video['id']}/content")
    assert status == 404


async def test_a_failed_video_is_answered_200_and_says_why(client: ClientSession, engine: StandIn) -> None:
    engine.failures[5] = NonFinite("non-finite values in latents", stage=Stage.DENOISE, step=3)
    video = await ended(client, await made(client))
    assert video["status"] == "failed"
    assert video["error"] == {"code": "non_finite", "message": "non-finite values in latents"}
    status, error = await get(client, f"/{video['id']}/content")
    assert (status, error["error"]["code"]) == (500, "non_finite")


async def test_clients_are_told_when_to_ask_again_and_progress_only_grows(
    client: ClientSession, engine: StandIn
) -> None:
    engine.gate.clear()
    async with client.post(VIDEOS, json=BODY) as response:
        assert 200 <= int(response.headers["openai-poll-after-ms"]) <= 10_000
        video = await response.json()
    (request,) = engine.submitted
    seen = []
    for step in (0, 7, 20, 50):
        engine.watchers[request.id](
            Progress(
                request_id=request.id, stage=Stage.DENOISE, step=step, num_steps=request.num_steps, ranks=(0,)
            )
        )
        _, now = await get(client, f"/{video['id']}")
        seen.append(now["progress"])
    assert seen == sorted(seen)
    assert now["status"] == "in_progress"
    assert 0 < seen[2] < 100


async def test_delete_stops_the_work_and_the_id_is_gone(client: ClientSession, engine: StandIn) -> None:
    engine.held.add(5)
    video = await made(client)
    async with client.delete(f"{VIDEOS}/{video['id']}") as response:
        assert (response.status, await response.json()) == (
            200,
            {"id": video["id"], "object": "video.deleted", "deleted": True},
        )
    await until(lambda: engine.cancelled == [engine.submitted[0].id])
    assert (await get(client, f"/{video['id']}"))[0] == 404
    other = await ended(client, await made(client, seed=6))
    async with client.delete(f"{VIDEOS}/{other['id']}") as response:
        assert response.status == 200
    assert (await get(client, f"/{other['id']}/content"))[0] == 404


async def test_videos_are_listed_page_by_page(client: ClientSession) -> None:
    made_ids = [(await made(client, seed=seed))["id"] for seed in range(5)]
    _, first = await get(client, limit=2)
    assert [video["id"] for video in first["data"]] == made_ids[:2:-1]
    assert (first["object"], first["has_more"], first["last_id"]) == ("list", True, made_ids[3])
    _, rest = await get(client, limit=3, after=first["last_id"])
    assert [video["id"] for video in rest["data"]] == made_ids[2::-1]
    assert rest["has_more"] is False
    _, oldest = await get(client, order="asc", limit=1)
    assert [video["id"] for video in oldest["data"]] == made_ids[:1]
    for query in ({"limit": 0}, {"limit": "many"}, {"order": "up"}):
        status, error = await get(client, **query)
        assert (status, error["error"]["param"]) == (400, next(iter(query)))


async def test_pictures_in_the_same_store_take_no_place_of_a_video(serving: Serving, engine: StandIn) -> None:
    store = MemoryStore()
    async with serving(
        family=family("wan"), name="video", jobs=Jobs(store, engine=engine, made_for="video")
    ) as client:
        first = await ended(client, await made(client))
        job = await store.get(first["id"])
        assert job is not None
        picture = replace(job.requests[0], output_format=OutputFormat.PNG)
        for index in range(150):
            await store.add(replace(job, id=f"picture-{index}", requests=(picture,)))
        second = await ended(client, await made(client, seed=6))
        _, newest = await get(client, limit=1)
        assert ([each["id"] for each in newest["data"]], newest["has_more"]) == ([second["id"]], True)
        _, rest = await get(client, limit=1, after=second["id"])
        assert ([each["id"] for each in rest["data"]], rest["has_more"]) == ([first["id"]], False)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"seconds": "999"}, "seconds", "this model can draw at most"),
        ({"seconds": "soon"}, "seconds", "not allowed"),
        ({"seconds": 0}, "seconds", "not allowed"),
        ({"seconds": 4, "num_frames": 17}, "seconds", "beside num_frames"),
        ({"num_frames": 18}, "num_frames", "17"),
        ({"size": "831x480"}, "size", "832"),
        ({"fps": 0}, "fps", "0"),
        ({"output_format": "avi"}, "output_format", "mp4, webm"),
        ({"n": 2}, "n", "not known"),
        ({"input_reference": "x"}, "input_reference", "not known"),
        ({"model": "sora-3"}, "model", "not served"),
        ({"prompt": None}, "prompt", "missing"),
    ],
)
async def test_what_cannot_be_drawn_is_refused_with_the_name_of_its_field(
    fields: dict[str, Any], param: str, words: str, client: ClientSession, engine: StandIn
) -> None:
    body = {name: value for name, value in {**BODY, **fields}.items() if value is not None}
    if "num_frames" in fields and "seconds" not in fields:
        del body["seconds"]
    for how in ({"json": body}, {"data": multipart(**body)}):
        status, error = await post(client, **how)
        assert status in (400, 404), error
        assert error["error"]["param"] == param
        assert words in error["error"]["message"]
    assert not engine.submitted


async def test_a_file_in_the_form_is_refused_and_its_name_never_used(
    client: ClientSession, engine: StandIn
) -> None:
    form = multipart(**BODY)
    form.add_field("input_reference", b"\x89PNG", filename="../../etc/cron.d/x.png", content_type="image/png")
    status, error = await post(client, data=form)
    assert (status, error["error"]["param"]) == (400, "input_reference")
    assert "takes a prompt alone" in error["error"]["message"]
    assert not engine.submitted


async def test_extra_args_of_a_form_count_as_if_they_stood_beside_it(
    client: ClientSession, engine: StandIn
) -> None:
    extra = json.dumps({"num_inference_steps": 7, "guidance_scale": 2.5, "deadline_ms": 60000, "priority": 1})
    status, video = await post(client, data=multipart(**BODY, extra_args=extra))
    assert status == 200, video
    (request,) = engine.submitted
    assert (request.num_steps, request.guidance_scale, request.deadline_s, request.priority) == (
        7,
        2.5,
        60.0,
        1,
    )
    status, error = await post(client, data=multipart(**BODY, extra_args="{"))
    assert (status, error["error"]["param"]) == (400, "extra_args")


async def test_a_form_that_is_none_is_the_clients_fault(client: ClientSession) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    status, error = await post(client, data=b"this is no form", headers=headers)
    assert (status, error["error"]["type"]) == (400, "invalid_request_error")
    status, error = await post(client, data=b"<a/>", headers={"Content-Type": "text/xml"})
    assert status == 415


async def test_a_variant_that_is_not_kept_is_named(client: ClientSession) -> None:
    video = await ended(client, await made(client))
    status, error = await get(client, f"/{video['id']}/content", variant="spritesheet")
    assert (status, error["error"]["param"]) == (400, "variant")


async def test_a_model_of_pictures_says_that_this_route_draws_videos(serving: Serving) -> None:
    async with serving() as client:
        status, error = await post(client, json={"prompt": "a cat"})
        assert (status, error["error"]["param"]) == (400, "model")
        assert "draws pictures" in error["error"]["message"]


async def test_kept_pictures_are_no_videos(serving: Serving) -> None:
    """Found by schemathesis: a kept picture was handed out as the content of a video."""
    async with serving() as client:
        body = {"prompt": "x", "size": "64x64", "n": 2}
        async with client.post("/v1/requests", json=body) as response:
            name = (await response.json())["id"]
        for path in (f"/{name}", f"/{name}/content"):
            status, reply = await get(client, path)
            assert (status, reply["error"]["code"]) == (404, "not_found")
        async with client.delete(f"{VIDEOS}/{name}") as response:
            assert response.status == 404
        status, page = await get(client)
        assert (status, page["data"]) == (200, [])
        async with client.get(f"/v1/requests/{name}") as response:
            assert response.status == 200
