"""What torchrun starts in `test_generate`: `epe generate`, then the embedded example, in the same processes.

To import torch and diffusers takes longer than both.
"""

from __future__ import annotations

import json
import runpy
import sys

from epe.cli import main


def run(generate: list[str], example: list[str]) -> None:
    """`generate` are the arguments of `epe`; `example` is the script with its arguments."""
    if code := main.run(generate):
        raise SystemExit(code)
    sys.argv = example
    runpy.run_path(example[0], run_name="__main__")


if __name__ == "__main__":
    run(*map(json.loads, sys.argv[1:]))
