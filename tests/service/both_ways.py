"""What torchrun starts in `test_generate`: commands of `epe`, then the embedded example, in the same processes.

To import torch and diffusers takes longer than all of them.
"""

from __future__ import annotations

import json
import runpy
import sys

from epe.cli import main


def run(*commands: list[str]) -> None:
    """All but the last are arguments of `epe`; that is the script with its arguments."""
    *ours, example = commands
    for arguments in ours:
        if code := main.run(arguments):
            raise SystemExit(code)
    sys.argv = example
    runpy.run_path(example[0], run_name="__main__")


if __name__ == "__main__":
    run(*map(json.loads, sys.argv[1:]))
