"""OpenAI's clients and LiteLLM run against the service as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from epe.config.api_keys import ApiKey
from epe.errors import Expired, Gone, Refused, TaskFailed
from epe.families import family
from epe.server.settings import HttpSettings
from tests.server.clients.conftest import Folder, play
from tests.server.conftest import Serving
from tests.server.stand_in import VIDEO, StandIn

pytestmark = pytest.mark.clients

PNG = b"\x89PNG".hex()
PREVIEW = "image_generation.partial_image"


@pytest.fixture
async def url(serving: Serving, engine: StandIn) -> AsyncIterator[str]:
    """A service that asks for a key and has the seeds of the scenes fail."""
    engine.failures |= {
        1001: TaskFailed("a block raised", stage="denoise", step=3),
        1002: Refused("the queue is full", retry_after_s=0.2),
        1003: Gone("the planner ended"),
        1004: Expired("the deadline has passed"),
    }
    keys = {"alice": ApiKey(key="alice-has-this-key")}
    async with serving(settings=HttpSettings(keys=keys, aliases=("gpt-image-1",))) as client:
        yield str(client._base_url).rstrip("/")


@pytest.mark.parametrize("name", ["openai1", "openai2", "openai3"])
async def test_openais_client_draws_streams_and_raises_its_own_errors(
    name: str, client_folder: Folder, url: str, engine: StandIn
) -> None:
    seen = await play(client_folder(name), "openai_scene.py", url)
    assert seen["version"].startswith(f"{name[-1]}.")
    drawn = seen["generate"]
    assert (drawn["seeds"], drawn["files"], drawn["size"]) == ([5, 6], [PNG, PNG], "64x64")
    assert drawn["created"]
    assert drawn["lanes"] == [0, 1]
    assert drawn["url"].startswith(f"{url}/v1/results/")
    assert drawn["plain"] == PNG
    stream = seen["stream"]
    assert stream["types"] == [PREVIEW, PREVIEW, "image_generation.completed"]
    assert (stream["indices"], stream["last"]) == ([0, 1], PNG)
    assert stream["classes"] == ["ImageGenCompletedEvent", "ImageGenPartialImageEvent"]
    assert "a block raised" in seen["stream_that_fails"]
    assert seen["models"] == ["image", "zimage", "gpt-image-1"]
    assert seen["model"] == "model"
    check_errors(seen["errors"])
    # What cannot help is not sent again, though the client would try twice more; what can is.
    tried = Counter(request.seed for request in engine.submitted)
    assert [tried[seed] for seed in (1001, 1002, 1003, 1004)] == [2, 3, 3, 1]


@pytest.mark.parametrize("name", ["openai2", "openai3"])  # The first major knows no videos.
async def test_openais_client_has_videos_drawn_polls_fetches_and_deletes_them(
    name: str, client_folder: Folder, serving: Serving, engine: StandIn
) -> None:
    engine.failures[1001] = TaskFailed("a block raised", stage="denoise", step=3)
    async with serving(family=family("wan"), name="video") as client:
        seen = await play(client_folder(name), "openai_videos_scene.py", str(client._base_url).rstrip("/"))
    assert seen["version"].startswith(f"{name[-1]}.")
    assert seen["video"] == ["video", "completed", 100, "4.0625", "832x480", "video"]
    assert seen["files"] == [VIDEO[:4].hex()] * 2
    assert seen["failed"] == ["failed", "task_failed", "a block raised"]
    assert seen["deleted"] == [True, True, "video.deleted"]
    assert seen["gone"] == "NotFoundError not_found"
    assert seen["listed"] == [True]
    assert [request.seed for request in engine.submitted] == [5, 1001], "nothing was drawn twice"
    assert all(request.deadline_s == 60 for request in engine.submitted)


def check_errors(errors: dict[str, dict]) -> None:
    """Each is of its class, with what a program can go by."""
    told = {
        name: (error["class"], error["status"], error["code"], error["param"])
        for name, error in errors.items()
    }
    assert told == {
        "size": ("BadRequestError", 400, "invalid_value", "size"),
        "model": ("NotFoundError", 404, "model_not_found", "model"),
        "key": ("AuthenticationError", 401, "invalid_api_key", None),
        "path": ("NotFoundError", 404, "not_found", None),
        "edit": ("BadRequestError", 400, "invalid_value", "model"),
        "variation": ("BadRequestError", 400, "invalid_value", "model"),
        "task": ("InternalServerError", 500, "task_failed", None),
        "overload": ("RateLimitError", 429, "overloaded", None),
        "gone": ("InternalServerError", 503, "gone", None),
        "late": ("InternalServerError", 504, "deadline_missed", None),
    }


async def test_litellm_draws_and_raises_its_own_errors(
    client_folder: Folder, url: str, engine: StandIn
) -> None:
    seen = await play(client_folder("litellm"), "litellm_scene.py", url)
    assert seen["files"] == [PNG, PNG]
    assert seen["url"].startswith(f"{url}/v1/results/")
    assert [request.seed for request in engine.submitted[:2]] == [5, 6]
    assert {name: error["class"] for name, error in seen["errors"].items()} == {
        "size": "BadRequestError",
        "model": "NotFoundError",
        "key": "AuthenticationError",
        "task": "InternalServerError",
        "overload": "RateLimitError",
    }
