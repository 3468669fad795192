"""What LiteLLM makes of the service: prints it as one line of JSON. It runs with nothing but LiteLLM on its path."""

import base64
import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a list of prices from the network

import litellm

URL = sys.argv[1]


def draw(**more: Any) -> Any:
    given = {
        "model": "openai/image",
        "prompt": "a cube",
        "api_base": f"{URL}/v1",
        "api_key": "alice-has-this-key",
        "size": "64x64",
        "max_retries": 0,
        **more,
    }
    return litellm.image_generation(**given)


def error_of(**more: Any) -> dict[str, Any]:
    try:
        draw(**more)
    except Exception as error:
        return {"class": type(error).__name__, "status": getattr(error, "status_code", None)}
    return {"class": "none"}


def main() -> None:
    reply = draw(n=2, extra_body={"seed": 5, "num_inference_steps": 4})
    seen = {
        "files": [base64.b64decode(item["b64_json"])[:4].hex() for item in reply["data"]],
        "url": draw(extra_body={"response_format": "url"})["data"][0]["url"],
        "errors": {
            "size": error_of(size="100x64"),
            "model": error_of(model="openai/other"),
            "key": error_of(api_key="wrong"),
            "task": error_of(extra_body={"seed": 1001}),
            "overload": error_of(extra_body={"seed": 1002}),
        },
    }
    print(json.dumps(seen))


main()
