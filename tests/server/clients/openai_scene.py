"""What OpenAI's own client, of any of its majors, makes of the service: prints it as one line of JSON.

It runs beside the tests, with nothing but the client on its path.
"""

import base64
import json
import sys
from collections.abc import Callable
from typing import Any

import openai
from openai import OpenAI

URL = sys.argv[1]
# Seeds for which the engine of the test fails; each as an error of another class.
FAILURES = {"task": 1001, "overload": 1002, "gone": 1003, "late": 1004}


def client(**more: Any) -> OpenAI:
    return OpenAI(**{"base_url": f"{URL}/v1", "api_key": "alice-has-this-key", "max_retries": 0, **more})


def error_of(call: Callable[[], Any]) -> dict[str, Any]:
    try:
        call()
    except openai.APIStatusError as error:
        return {
            "class": type(error).__name__,
            "status": error.status_code,
            "code": error.code,
            "param": error.param,
            "type": error.type,
        }
    return {"class": "none"}


def draw(given: OpenAI | None = None, *, seed: int = 5, size: str = "64x64", **more: Any) -> Any:
    extra = {"seed": seed, "num_inference_steps": 4, "deadline_ms": 60_000, "priority": 1}
    images = (given or client()).images
    return images.generate(prompt="a cube", **{"model": "image", "size": size, "extra_body": extra, **more})


def generate() -> dict[str, Any]:
    reply = draw(n=2, response_format="b64_json", user="u")
    urls = draw(response_format="url")
    plain = client().images.generate(prompt="a cube", size="64x64")
    return {
        "seeds": [item.seed for item in reply.data],
        "files": [base64.b64decode(item.b64_json)[:4].hex() for item in reply.data],
        "created": reply.created > 10**9,
        "size": reply.size,
        "lanes": reply.epe["lanes"][0]["ranks"],
        "url": urls.data[0].url,
        "plain": base64.b64decode(plain.data[0].b64_json)[:4].hex(),
    }


def stream() -> dict[str, Any]:
    events = list(draw(stream=True, partial_images=2, output_format="png"))
    return {
        "types": [event.type for event in events],
        "indices": [event.partial_image_index for event in events[:-1]],
        "last": base64.b64decode(events[-1].b64_json)[:4].hex(),
        "classes": sorted({type(event).__name__ for event in events}),
    }


def stream_that_fails() -> str:
    try:
        list(draw(stream=True, seed=FAILURES["task"]))
    except openai.APIError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def errors() -> dict[str, Any]:
    patient = client(max_retries=2)
    edit = {"image": ("../../../etc/passwd.png", b"\x89PNG"), "prompt": "x"}
    return {
        "size": error_of(lambda: draw(size="100x64")),
        "model": error_of(lambda: draw(model="other")),
        "key": error_of(lambda: draw(client(api_key="wrong"))),
        "path": error_of(lambda: client(base_url=f"{URL}/v2").models.list()),
        "edit": error_of(lambda: client().images.edit(**edit)),
        "variation": error_of(lambda: client().images.create_variation(image=b"\x89PNG")),
        **{name: error_of(lambda seed=seed: draw(patient, seed=seed)) for name, seed in FAILURES.items()},
    }


def main() -> None:
    models = client().models
    seen = {
        "version": openai.__version__,
        "generate": generate(),
        "stream": stream(),
        "stream_that_fails": stream_that_fails(),
        "errors": errors(),
        "models": [model.id for model in models.list()],
        "model": models.retrieve("gpt-image-1").object,
    }
    print(json.dumps(seen))


main()
