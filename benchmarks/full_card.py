"""A service whose card is full whenever it would capture a pass: what it draws then, and what it says.

    python -m benchmarks.random_checkpoint zimage FOLDER
    python -m benchmarks.full_card FOLDER --family zimage > RUN.jsonl          # on CUDA

Pictures are drawn as they are, then by a service that captures, whose card is filled before each capture, then by the
same service with room for captures. `--how fill` takes all memory of the card but a little, which others on it would
notice; `limit` lets torch give this process no more than a little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from structlog.testing import capture_logs

from epe.graphs import Graphs
from epe.runtime.embedded import EmbeddedDiffusionRuntime

Line = dict[str, Any]
NUM_STEPS = 4
PICTURES = 3
GUIDANCE = {"flux1": 3.5, "zimage": 0.0}
LEFT_BYTES = 64 * 2**20


@contextmanager
def _filled() -> Iterator[None]:
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info()
    filler = torch.empty(max(0, free_bytes - LEFT_BYTES), dtype=torch.uint8, device="cuda")
    try:
        yield
    finally:
        del filler
        torch.cuda.empty_cache()


@contextmanager
def _limited() -> Iterator[None]:
    torch.cuda.empty_cache()
    _, all_bytes = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + LEFT_BYTES) / all_bytes)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


HOW: dict[str, Callable[[], Any]] = {"fill": _filled, "limit": _limited}


@contextmanager
def _full_at_captures(how: str) -> Iterator[None]:
    """Every capture of this process finds a full card."""
    capture_seen = Graphs.capture_seen

    def without_room(graphs: Graphs, *, goes_on: bool) -> None:
        with HOW[how]():
            capture_seen(graphs, goes_on=goes_on)

    with patch.object(Graphs, "capture_seen", without_room):
        yield


async def perform(arguments: argparse.Namespace) -> None:
    async with _service(arguments, captured=False) as runtime:
        plain = {side: await _pictures(runtime, arguments, side) for side in arguments.sides}
    torch.cuda.empty_cache()
    async with _service(arguments, captured=True) as runtime:
        first, second = arguments.sides
        with _full_at_captures(arguments.how):
            await _compare(runtime, arguments, first, plain[first], is_full=True)
        await _compare(runtime, arguments, second, plain[second], is_full=False)


async def _compare(
    runtime: EmbeddedDiffusionRuntime,
    arguments: argparse.Namespace,
    side: int,
    plain: list[np.ndarray],
    *,
    is_full: bool,
) -> None:
    with capture_logs() as said:
        drawn = await _pictures(runtime, arguments, side)
    use = (await runtime.status()).ranks[0].use
    counts = None if use is None else use.graphs
    line = {
        "case": "full" if is_full else "room",
        "family": arguments.family,
        "how": arguments.how,
        "side": side,
        "num_pictures": len(drawn),
        "equal_bits": all(np.array_equal(ours, theirs) for ours, theirs in zip(drawn, plain, strict=True)),
        "refused": 0 if counts is None else counts.num_refused,
        "captured": 0 if counts is None else counts.num_captured,
        "replayed": 0 if counts is None else counts.num_replayed,
        "said": [_plain(each) for each in said if str(each["event"]).startswith("graph.")],
    }
    print(json.dumps(line), flush=True)


def _plain(said: Any) -> Line:
    return {name: str(value)[:200] for name, value in said.items()}


def _service(arguments: argparse.Namespace, *, captured: bool) -> EmbeddedDiffusionRuntime:
    return EmbeddedDiffusionRuntime.from_stage(
        {
            "name": "full",
            "factory": arguments.family,
            "gpu": [0],
            "device": arguments.device,
            "capture": {"enabled": captured},
            "parallelism": {"scheduler": {"cost_file": "none"}},
            "factory_args": {"model_path": str(arguments.checkpoint)},
        }
    )


async def _pictures(
    runtime: EmbeddedDiffusionRuntime, arguments: argparse.Namespace, side: int
) -> list[np.ndarray]:
    results = [
        await runtime.generate(
            "a red cube on a white table",
            height=side,
            width=side,
            num_steps=NUM_STEPS,
            guidance_scale=GUIDANCE[arguments.family],
            seed=seed,
        )
        for seed in range(PICTURES)
    ]
    return [np.asarray(result.pixels) for result in results]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--family", choices=tuple(GUIDANCE), default="zimage")
    parser.add_argument("--sides", nargs=2, type=int, default=[1024, 512], help="without room, and with room")
    parser.add_argument("--how", choices=tuple(HOW), default="limit")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asyncio.run(perform(parser.parse_args()))


if __name__ == "__main__":
    main()
