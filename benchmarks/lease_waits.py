"""How often the host waits for the device inside the leases of a service, beside the one time at the end of each.

    python -m benchmarks.random_checkpoint zimage FOLDER
    python -m benchmarks.lease_waits FOLDER --family zimage > RUN.jsonl

Torch warns of its synchronising calls; those are counted which the thread of the device makes in a lease. Of the end of
a lease, `torch.cuda.synchronize`, it does not warn. One JSON object for each numerics, and one for leases that ask for
a value, which must be seen. Without CUDA there is nothing to wait for, and all counts are 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from epe.execution import device as device_thread
from epe.execution.run import Work, run_lease
from epe.messages import Lease
from epe.runtime.embedded import EmbeddedDiffusionRuntime

Line = dict[str, Any]
NUM_STEPS = 8
# Of as many words, so that all have the shapes of the first one.
PROMPTS = ("a red cube", "a blue table", "a white cube")
GUIDANCE = {"flux1": 3.5, "zimage": 0.0}
SYNCHRONISING = "called a synchronizing CUDA operation"


class Waits:
    """What the leases of a service waited for, by stage and place in the code; with `asks` each waits once more."""

    def __init__(self, *, asks: bool = False) -> None:
        self.num_leases: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self._asks = asks
        self._stage = ""

    def run_lease(self, batch: Sequence[Lease], **others: Any) -> list[Work]:
        """In place of `epe.execution.run.run_lease`."""
        self._stage = batch[0].stage.value
        self.num_leases[self._stage] += 1
        with _warning():
            if self._asks and torch.cuda.is_available():
                torch.ones(1, device="cuda").item()
            return run_lease(batch, **others)

    def note(self, message: Warning | str, _: Any, file: str, line: int, *others: Any) -> None:
        """In place of `warnings.showwarning`: of other threads nothing counts."""
        if SYNCHRONISING in str(message) and threading.current_thread().name.startswith("device-"):
            self.places[f"{self._stage}: {Path(file).name}:{line}"] += 1


@contextmanager
def _warning() -> Iterator[None]:
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def _counted(waits: Waits) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with (
            patch.object(warnings, "showwarning", waits.note),
            patch.object(device_thread, "run_lease", waits.run_lease),
        ):
            yield


async def counted(
    arguments: argparse.Namespace, *, numerics: str, captured: bool, asks: bool = False
) -> Line:
    """Three pictures of each side; the waits of the third, whose passes are captured and whose prompt is new."""
    stage = {
        "name": "waits",
        "factory": arguments.family,
        "gpu": [0],
        "device": arguments.device,
        "numerics": numerics,
        "capture": {"enabled": captured},
        "parallelism": {"scheduler": {"cost_file": "none"}},
        "factory_args": {"model_path": str(arguments.checkpoint)},
    }
    waits, replayed = Waits(asks=asks), 0
    async with EmbeddedDiffusionRuntime.from_stage(stage) as runtime:
        for side in arguments.sides:
            for prompt in PROMPTS[:-1]:
                await _draw(runtime, arguments, side, prompt)
            with _counted(waits):
                await _draw(runtime, arguments, side, PROMPTS[-1])
        status = await runtime.status()
        graphs = status.ranks[0].use.graphs if status.ranks[0].use else None
        replayed = 0 if graphs is None else graphs.num_replayed
    return {
        "case": "asking" if asks else "waits",
        "family": arguments.family,
        "sides": arguments.sides,
        "numerics": numerics,
        "captured": captured,
        "replayed": replayed,
        "num_leases": dict(waits.num_leases),
        "num_waits": waits.places.total(),
        "places": dict(waits.places),
    }


async def _draw(
    runtime: EmbeddedDiffusionRuntime, arguments: argparse.Namespace, side: int, prompt: str
) -> None:
    await runtime.generate(
        prompt,
        height=side,
        width=side,
        num_steps=NUM_STEPS,
        guidance_scale=GUIDANCE[arguments.family],
        seed=1,
    )


async def perform(arguments: argparse.Namespace) -> None:
    exact = {"numerics": "exact", "captured": True}
    settings = [{**exact, "asks": True}, {**exact, "captured": False}, exact]
    if arguments.device != "cpu":
        settings.append({"numerics": "fast", "captured": True})
    for setting in settings:
        try:
            line = await counted(arguments, **setting)
        except Exception as error:
            line = {"case": "failed", **setting, "error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--family", choices=tuple(GUIDANCE), default="zimage")
    parser.add_argument("--sides", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asyncio.run(perform(parser.parse_args()))


if __name__ == "__main__":
    main()
