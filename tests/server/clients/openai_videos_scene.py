"""What OpenAI's own client, from its second major on, makes of `/v1/videos`: prints it as one line of JSON."""

import json
import sys
import warnings
from typing import Any

import openai
from openai import OpenAI

warnings.simplefilter("ignore")  # It calls its own videos deprecated.
CLIENT = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="any", max_retries=2)
# The seed for which the engine of the test fails.
FAILS = 1001


def create_and_poll(seed: int = 5) -> Any:
    extra = {"seed": seed, "num_inference_steps": 4, "extra_args": json.dumps({"deadline_ms": 60_000})}
    return CLIENT.videos.create_and_poll(
        prompt="a cat", model="video", seconds="4", size="832x480", extra_body=extra
    )


def main() -> None:
    video = create_and_poll()
    content = CLIENT.videos.download_content(video.id)
    again = CLIENT.videos.download_content(video.id, variant="video")
    failed = create_and_poll(FAILS)
    deleted = CLIENT.videos.delete(failed.id)
    try:
        CLIENT.videos.retrieve(failed.id)
        gone = "is still there"
    except openai.NotFoundError as error:
        gone = f"{type(error).__name__} {error.code}"
    seen = {
        "version": openai.__version__,
        "video": [video.object, video.status, video.progress, video.seconds, video.size, video.model],
        "files": [content.read().hex()[:8], again.read().hex()[:8]],
        "failed": [failed.status, failed.error.code, failed.error.message],
        "deleted": [deleted.id == failed.id, deleted.deleted, deleted.object],
        "gone": gone,
        "listed": [each.id == video.id for each in CLIENT.videos.list(limit=10)],
    }
    print(json.dumps(seen))


main()
