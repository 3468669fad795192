from __future__ import annotations

import asyncio
from base64 import b64decode
from io import BytesIO
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession
from PIL import Image

from epe.config.load import build_stage
from epe.families import family
from epe.server.image_body import ImageBody
from epe.server.settings import http_settings
from tests.server.stand_in import until

PATH = "/v1/images/generations"


async def post(client: ClientSession, **body: Any) -> tuple[int, dict[str, Any]]:
    async with client.post(PATH, json=body) as response:
        return response.status, await response.json()


def picture_of(item: dict[str, Any]) -> Image.Image:
    return Image.open(BytesIO(b64decode(item["b64_json"], validate=True)))


async def test_a_prompt_alone_gives_one_png_of_the_default_size(client, engine):
    status, reply = await post(client, prompt="a red cube")
    assert status == 200
    (item,) = reply["data"]
    picture = picture_of(item)
    assert (picture.format, picture.size) == ("PNG", (1024, 1024))
    assert (reply["size"], reply["output_format"], reply["warnings"]) == ("1024x1024", "png", [])
    assert item["seed"] == engine.submitted[0].seed


async def test_all_fields_reach_the_engine(client, engine):
    status, _ = await post(
        client,
        prompt="",
        negative_prompt="blurred",
        size="320x256",
        seed=11,
        num_inference_steps=9,
        guidance_scale=2.5,
        deadline_ms=1500,
        on_deadline="expire",
        priority=-3,
        output_format="jpeg",
        output_compression=40,
        max_sequence_length=128,
    )
    assert status == 200
    (request,) = engine.submitted
    assert (request.prompt, request.negative_prompt) == ("", "blurred")
    assert (request.width, request.height, request.num_steps) == (320, 256, 9)
    assert (request.seed, request.guidance_scale, request.deadline_s) == (11, 2.5, 1.5)
    assert (request.on_deadline, request.priority, request.max_sequence_length) == ("expire", -3, 128)
    assert (request.output_format, request.output_compression) == ("jpeg", 40)


@pytest.mark.parametrize("output_format", ["png", "jpeg", "webp"])
async def test_the_file_has_the_format_and_the_size_that_were_asked_for(client, output_format):
    _, reply = await post(client, prompt="x", size="128x192", output_format=output_format)
    picture = picture_of(reply["data"][0])
    assert (picture.format.lower(), picture.size) == (output_format, (128, 192))


@pytest.mark.parametrize(
    "body", [{"size": "auto"}, {"size": None}, {"size": "auto", "height": 1024}, {"width": 1024}]
)
async def test_size_auto_is_the_default_size(client, body):
    _, reply = await post(client, prompt="x", **body)
    assert reply["size"] == "1024x1024"


async def test_height_and_width_may_be_given_instead_of_size(client):
    _, reply = await post(client, prompt="x", height=128, width=256)
    assert reply["size"] == "256x128"


async def test_n_pictures_have_consecutive_seeds_and_their_own_ids(client, engine):
    status, reply = await post(client, prompt="x", size="64x64", n=3, seed=40)
    assert status == 200
    assert [item["seed"] for item in reply["data"]] == [40, 41, 42]
    assert [picture_of(item).getpixel((0, 0))[0] for item in reply["data"]] == [40, 41, 42]
    assert len({request.id for request in engine.submitted}) == 3
    assert [item["epe"]["request_id"] for item in reply["data"]] == [each.id for each in engine.submitted]


async def test_n_pictures_are_drawn_side_by_side(client, engine):
    engine.gate.clear()
    reply = asyncio.ensure_future(post(client, prompt="x", size="64x64", n=4))
    await until(lambda: engine.most_running == 4)
    engine.gate.set()
    assert (await reply)[0] == 200


async def test_the_reply_says_what_happened_to_the_request(client):
    _, reply = await post(client, prompt="x", size="64x64", n=2, num_inference_steps=4, guidance_scale=3)
    told = reply["epe"]
    assert (told["queue_s"], told["denoise_s"], told["predicted_s"]) == (0.25, 1.0, 2.5)
    assert told["predicted_from"] == "guessed"
    assert (told["num_migrations"], told["late"]) == (1, False)
    assert (told["guidance_scale"], told["num_inference_steps"]) == (3.0, 4)
    (lane,) = told["lanes"]
    assert (lane["stage"], lane["ranks"], lane["num_steps"]) == ("denoise", [0, 1], 4)
    assert told["total_s"] == max(item["epe"]["total_s"] for item in reply["data"]) == 4.0


async def test_a_request_that_will_be_late_is_told_so(client):
    _, reply = await post(client, prompt="x", size="64x64", deadline_ms=1)
    assert reply["epe"]["late"] is True


async def test_fields_of_openai_without_effect_are_accepted_and_named(client):
    status, reply = await post(
        client, prompt="x", size="64x64", quality="high", style="vivid", background=None
    )
    assert status == 200
    assert [each.split()[0] for each in reply["warnings"]] == ["quality", "style"]


async def test_a_stage_with_fast_numerics_says_so_in_every_answer(serving):
    stage = build_stage(
        {
            "name": "x",
            "factory": "zimage",
            "gpu": [0],
            "numerics": "fast",
            "factory_args": {"model_path": "demo"},
        }
    )
    async with serving(settings=http_settings(stage, port=18200)) as client:
        status, reply = await post(client, prompt="x", size="64x64", style="vivid")
    assert status == 200
    assert [each.split()[0] for each in reply["warnings"]] == ["style", "numerics"]


@pytest.mark.parametrize(
    ("body", "client_id"),
    [({"user": "u"}, "u"), ({"client_id": "c"}, "c"), ({"user": "u", "client_id": "c"}, "c")],
)
async def test_the_user_says_on_whose_account_a_request_runs(client, engine, body, client_id):
    _, reply = await post(client, prompt="x", size="64x64", **body)
    assert engine.submitted[0].client_id == client_id
    assert len(reply["warnings"]) == len(body) - 1


async def test_best_effort_is_a_request_without_the_deadline_of_the_stage(serving, engine):
    defaults = msgspec.structs.replace(family("zimage").defaults, deadline_s=30.0)
    async with serving(defaults=defaults) as client:
        for body in ({}, {"best_effort": True}, {"best_effort": False}):
            await post(client, prompt="x", size="64x64", **body)
        status, reply = await post(client, prompt="x", best_effort=True, deadline_ms=5)
    assert [each.deadline_s for each in engine.submitted] == [30.0, None, 30.0]
    assert (status, reply["error"]["param"]) == (400, "best_effort")


@pytest.mark.parametrize("model", ["image", "zimage", "gpt-image-1", None])
async def test_the_model_may_be_called_by_each_of_its_names(client, model):
    status, _ = await post(client, prompt="x", size="64x64", model=model)
    assert status == 200


async def test_another_model_is_not_found(client, engine):
    status, reply = await post(client, prompt="x", model="dall-e-9")
    assert status == 404
    assert (reply["error"]["code"], reply["error"]["param"]) == ("model_not_found", "model")
    assert "image" in reply["error"]["message"]
    assert not engine.submitted


BAD = {
    "prompt": [None, 3, ["a"], {}],
    "model": [3, []],
    "n": [0, -1, 11, 10**30, 1.5, "2", True],
    "size": ["", "1024", "1000x1024", "1024x1000", "0x0", "-64x64", "64X64", "64x64x64", "9999999x64", 64],
    "response_format": ["b64", 1],
    "output_format": ["gif", "raw", "PNG", 1],
    "output_compression": [-1, 101, 5.5, "9"],
    "stream": ["yes", 1],
    "partial_images": [1, 4, -1, "0"],
    "seed": [-1, 2**63, 10**400, 1.5, "7", False, [1]],
    "num_inference_steps": [0, -1, 10**9, 2.5, "4"],
    "guidance_scale": [-0.5, 1e9, "5", [5]],
    "negative_prompt": [3, ["x"]],
    "height": [0, -64, 1000, 10**9, 64.5, "64"],
    "width": [0, -64, 1001, 10**9, 64.5, "64"],
    "max_sequence_length": [0, 10**9, "8"],
    "deadline_ms": [0, -1, "100", True],
    "on_deadline": ["drop", 1],
    "priority": [10**40, 2**63, -(2**63), 0.5, "high"],
    "quality": [1],
    "style": [1],
    "background": [{}],
    "moderation": [1],
    "user": [1],
    "best_effort": [1, "true"],
    "client_id": [1, "x" * 65],
    "cache": ["magcache", {}, {"strategy": "lru"}, {"strategy": "taylorseer", "max_order": 5}, [1]],
    "safety_identifier": [1],
}


def test_every_field_of_the_body_is_tried_with_bad_values():
    assert set(BAD) == set(ImageBody.__struct_fields__)


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in BAD for value in BAD[field]])
async def test_a_bad_value_is_refused_with_the_name_of_its_field(client, engine, field, value):
    status, reply = await post(client, **{"prompt": "x", field: value})
    assert status == 400
    error = reply["error"]
    assert (error["param"], error["type"], error["code"]) == (
        field,
        "invalid_request_error",
        "invalid_value",
    )
    assert error["message"].startswith(field)
    assert not engine.submitted


async def test_a_missing_prompt_is_refused(client):
    status, reply = await post(client, size="64x64")
    assert (status, reply["error"]["param"]) == (400, "prompt")


async def test_a_size_that_does_not_fit_names_the_nearest_ones(client):
    _, reply = await post(client, prompt="x", size="1000x1024")
    assert "992 and 1008" in reply["error"]["message"]


async def test_size_beside_height_is_refused(client):
    status, reply = await post(client, prompt="x", size="64x64", height=64)
    assert (status, reply["error"]["param"]) == (400, "size")


async def test_the_seed_of_the_last_picture_must_exist_too(client, engine):
    status, reply = await post(client, prompt="x", n=2, seed=2**63 - 1)
    assert (status, reply["error"]["param"]) == (400, "seed")
    assert not engine.submitted


async def test_an_unknown_field_is_refused_with_the_nearest_known_one(client):
    status, reply = await post(client, prompt="x", sede=3)
    assert (status, reply["error"]["param"]) == (400, "sede")
    assert "did you mean seed?" in reply["error"]["message"]


RAW = {
    "nothing": b"",
    "no JSON": b"prompt=x",
    "a list": b'["x"]',
    "null": b"null",
    "cut off": b'{"prompt": "x"',
    "more after it": b'{"prompt": "x"} {}',
    "NaN": b'{"prompt": "x", "guidance_scale": NaN}',
    "a number out of range": b'{"prompt": "x", "guidance_scale": 1e999}',
    "half a surrogate pair": rb'{"prompt": "\ud800 x"}',
    "no UTF-8": b'{"prompt": "\xff"}',
    "deep nesting": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a number of 5000 digits": b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
    "a field given twice": b'{"prompt": "x", "seed": 1, "seed": 2}',
    "a field given twice, once empty": b'{"prompt": "x", "prompt": null}',
}


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW.keys())
async def test_a_broken_body_is_refused_in_the_shape_of_an_error(client, engine, raw):
    async with client.post(PATH, data=raw, headers={"Content-Type": "application/json"}) as response:
        reply = await response.json()
    assert response.status == 400
    assert set(reply["error"]) == {"message", "type", "param", "code"}
    assert not engine.submitted


async def test_a_field_that_is_given_twice_is_named(client):
    headers = {"Content-Type": "application/json"}
    async with client.post(PATH, data=RAW["a field given twice"], headers=headers) as response:
        reply = await response.json()
    assert reply["error"]["param"] == "seed"


async def test_a_body_that_is_too_large_is_refused_in_the_shape_of_an_error(client, engine):
    status, reply = await post(client, prompt="x" * 2**20)
    assert (status, reply["error"]["type"]) == (413, "invalid_request_error")
    assert not engine.submitted


async def test_eight_clients_at_once_get_their_own_pictures(client, engine):
    bodies = [{"size": f"{64 * (i + 1)}x64", "seed": i, "num_inference_steps": i + 1} for i in range(8)]
    replies = await asyncio.gather(*(post(client, prompt="x", **body) for body in bodies))
    assert [status for status, _ in replies] == [200] * 8
    assert [reply["size"] for _, reply in replies] == [body["size"] for body in bodies]
    assert [reply["data"][0]["seed"] for _, reply in replies] == list(range(8))
    assert len(engine.submitted) == 8


async def test_a_file_of_several_pieces_arrives_whole(client, engine):
    engine.noisy = True
    _, reply = await post(client, prompt="x", size="640x640", seed=3)
    expected = engine.paint(engine.submitted[0])
    assert len(reply["data"][0]["b64_json"]) > 3 * 2**18
    assert picture_of(reply["data"][0]).tobytes() == expected.tobytes()


async def test_a_model_of_videos_says_that_this_route_draws_pictures(serving, engine):
    async with serving(family=family("wan"), name="film") as client:
        status, reply = await post(client, prompt="a cube")
    assert status == 400
    assert reply["error"]["message"] == "model film draws videos; this route draws pictures"
    assert engine.submitted == []
