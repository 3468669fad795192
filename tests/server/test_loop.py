from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64decode

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epe.media import encode_image
from epe.messages import OutputFormat
from epe.server.reply import num_bytes_of, pieces_of


async def test_the_loop_turns_while_a_large_picture_is_encoded():
    pixels = np.random.default_rng(1).integers(0, 256, (2048, 2048, 3), dtype=np.uint8)
    entered = threading.Event()

    def encode() -> bytes:
        entered.set()
        return encode_image(pixels, format=OutputFormat.PNG)

    encoding = asyncio.ensure_future(asyncio.to_thread(encode))
    turns = 0
    while not encoding.done():
        turns += entered.is_set()
        await asyncio.sleep(0.001)
    # An encoder that kept the interpreter lock would let the loop turn once or twice.
    assert turns > 10


@given(
    st.lists(
        st.integers(0, 9) | st.integers(3 * 2**16 - 2, 3 * 2**16 + 2) | st.just(10**6), min_size=1, max_size=3
    )
)
def test_a_reply_goes_out_in_small_pieces_that_make_one_whole(sizes: list[int]):
    files = [np.random.default_rng(size).bytes(size) for size in sizes]
    frame = [b"[{", *[b"}, {"] * (len(files) - 1), b"}]"]
    pieces = list(pieces_of(frame, files))
    body = b"".join(pieces)
    assert max(map(len, pieces)) <= 2**18
    assert num_bytes_of(frame, files) == len(body)
    assert [b64decode(each["b64_json"]) for each in json.loads(body)] == files
