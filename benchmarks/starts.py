"""How long a service takes until it can draw, when it starts for the first time and when it starts again.

    python -m benchmarks.random_checkpoint zimage FOLDER
    python -m benchmarks.starts FOLDER --family zimage --numerics fast > RUN.jsonl

Each start is a process of its own on the first GPU. All have one folder, empty at first, for what they keep: measured
costs and compiled code. One JSON object each; its seconds are those since the process was asked for, imports and the
loading of the model among them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from epe.runtime.embedded import EmbeddedDiffusionRuntime

Line = dict[str, Any]


async def started(stage: dict[str, Any], begin_s: float) -> Line:
    """A start in this process; `begin_s` in Unix time."""
    async with EmbeddedDiffusionRuntime.from_stage(stage, warm_up=True) as runtime:
        costs = (await runtime.status()).costs
        return {
            "start_s": round(time.time() - begin_s, 2),
            "costs": costs.origin,
            "num_tasks": costs.num_tasks,
        }


def begun(stage: dict[str, Any], kept: Path, *, limit_s: float) -> Line:
    """A start in a process of its own, which keeps what it keeps in `kept`. Raises `subprocess.SubprocessError`."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(kept)}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    command = [
        sys.executable,
        "-m",
        "benchmarks.starts",
        "--stage",
        json.dumps(stage),
        "--begin-s",
        str(time.time()),
    ]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=limit_s
    )
    line: Line = json.loads(done.stdout.splitlines()[-1])
    return line


def stage_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "name": "starts",
        "factory": arguments.family,
        "gpu": [0],
        "device": arguments.device,
        "numerics": arguments.numerics,
        "parallelism": {"scheduler": {"warmup_resolutions": arguments.sides}},
        "factory_args": {"model_path": str(arguments.checkpoint)},
    }


def perform(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as kept:
        for number in range(1, arguments.starts + 1):
            line = {
                "case": "start",
                "family": arguments.family,
                "numerics": arguments.numerics,
                "number": number,
            }
            try:
                line |= begun(stage_of(arguments), Path(kept), limit_s=arguments.limit_s)
            except subprocess.SubprocessError as error:
                line["error"] = f"{type(error).__name__}: {error}"[-600:]
            print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--family", default="zimage")
    parser.add_argument("--numerics", choices=("exact", "fast"), default="exact")
    parser.add_argument("--sides", nargs="+", type=int, default=[256, 512, 1024])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=200.0, help="of one start")
    parser.add_argument("--stage", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--begin-s", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage is not None:
        print(json.dumps(asyncio.run(started(arguments.stage, arguments.begin_s))))
    elif arguments.checkpoint is None:
        parser.error("name the folder of a checkpoint")
    else:
        perform(arguments)


if __name__ == "__main__":
    main()
