"""Whether a process finds on disk what another one has compiled, with a tiny model of a family on a CPU.

    python -m benchmarks.compiled_again --families zimage wan > RUN.jsonl       # half a minute to a minute each

Two processes, one after the other, share a folder for compiled code that is empty at first. Each compiles the blocks of
the transformer and the decoder, and draws a picture with them: how many graphs torch compiled or found, and the seconds
after the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

from epe.families import FAMILIES
from epe.messages import Request, Split
from epe.models.catalog import load_adapter, make_tiny
from epe.models.loading import Loading
from epe.runtime.rank import COMPILED_CODE
from epe.transport.exchange import SoloExchange

Line = dict[str, Any]
NUM_STEPS = 2


def drawn(checkpoint: Path) -> Line:
    """A picture by compiled code; the folder's name is that of the family."""
    begin_s = time.monotonic()
    adapter = load_adapter(
        checkpoint.name, checkpoint, Loading(device=torch.device("cpu"), cfg_parallel_degree=1)
    )
    adapter.compile_blocks()
    adapter.compile_decoder()
    state = adapter.encode(
        Request(
            id="r",
            prompt="a red cube",
            height=64,
            width=96,
            num_steps=NUM_STEPS,
            guidance_scale=FAMILIES[checkpoint.name].defaults.guidance_scale,
            seed=1,
        )
    )
    for _ in range(NUM_STEPS):
        state = adapter.step(state, SoloExchange(), Split())
    adapter.decode(state)
    found = counters["inductor"]
    return {
        "compiled": found["fxgraph_cache_miss"],
        "found": found["fxgraph_cache_hit"],
        "not_kept": found["fxgraph_cache_bypass"],
        "seconds": round(time.monotonic() - begin_s, 1),
    }


def perform(families: list[str]) -> None:
    for family in families:
        with tempfile.TemporaryDirectory() as name:
            make_tiny(family, checkpoint := Path(name) / family)
            environment = {**os.environ, COMPILED_CODE: str(Path(name) / "compiled")}
            command = [sys.executable, "-m", "benchmarks.compiled_again", "--draw", str(checkpoint)]
            for number in (1, 2):
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                line = {"case": "compiled again", "family": family, "number": number}
                print(json.dumps(line | json.loads(done.stdout.splitlines()[-1])), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    families = [name for name, family in FAMILIES.items() if family.available]
    parser.add_argument("--families", nargs="+", choices=families, default=families)
    parser.add_argument("--draw", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.draw is not None:
        print(json.dumps(drawn(arguments.draw)))
    else:
        perform(arguments.families)


if __name__ == "__main__":
    main()
