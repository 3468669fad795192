"""What torchrun starts in `test_generate`: commands of `epe`, then the embedded example, in the same processes.

To import torch and diffusers takes longer than all of them.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

from epe.cli import main


def run(*commands: list[str]) -> None:
    """All but the last are arguments of `epe`; that is the script with its arguments."""
    *ours, example = commands
    for number, arguments in enumerate(ours):
        # To each it is another try of the launcher, so that it finds nothing of what the others told each other.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
        if code := main.run(arguments):
            raise SystemExit(code)
    sys.argv = example
    runpy.run_path(example[0], run_name="__main__")


if __name__ == "__main__":
    run(*map(json.loads, sys.argv[1:]))
