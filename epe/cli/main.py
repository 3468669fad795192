"""`epe COMMAND ...`: finds the command and turns errors into a sentence and an exit code.

Only argparse is imported before a command is known, so `epe --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from epe import __version__
from epe.cli.parser import Parser
from epe.errors import BadInput, EpeError

COMMANDS = {
    "generate": "draw one picture and end",
    "serve": "serve pictures over HTTP",
    "ranks": "take ranks of a running service out and back, or restart them",
    "bench": "time a model on this machine",
    "simulate": "try policies, loads and numbers of ranks on a virtual clock",
    "models": "list the model families; write a tiny model to try",
    "config": "show what a stage file means",
    "cache": "which cache strategies a model can have; fit its profile",
}


def main(argv: Sequence[str] | None = None) -> None:
    """The `epe` command; ends the process with its exit code."""
    raise SystemExit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run one command: 0 is success, 2 bad input, 1 any other failure that has a name, 130 Ctrl-C."""
    try:
        return _dispatch(argv)
    except BadInput as error:
        return _said(error, exit_code=2)
    except EpeError as error:
        return _said(error, exit_code=1)
    except KeyboardInterrupt:
        return 130


def _dispatch(argv: Sequence[str]) -> int:
    if argv and argv[0] in COMMANDS:
        command = import_module(f"epe.cli.{argv[0]}")
        exit_code: int = command.run(argv[1:])
        return exit_code
    parser = _parser()
    parser.parse_args(argv)
    parser.print_help()
    return 0


def _parser() -> Parser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name.ljust(width)}  {what}" for name, what in COMMANDS.items())
    parser = Parser(
        "epe",
        description="EPE, the Elastic Parallel Engine: pictures from Diffusion Transformers on many GPUs.",
        epilog=f"commands:\n{listing}\n\n`epe COMMAND --help` says more.",
    )
    parser.add_argument("--version", action="version", version=f"epe {__version__}")
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS), metavar="COMMAND", help="see below")
    return parser


def _said(error: EpeError, *, exit_code: int) -> int:
    print(f"epe: {error}", file=sys.stderr)
    return exit_code
