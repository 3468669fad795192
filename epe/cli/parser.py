"""argparse whose errors are ours: one sentence, no usage text."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from typing import NoReturn

from epe.errors import BadInput


class Parser(argparse.ArgumentParser):
    """Flags are written out in full; what is wrong raises `BadInput`."""

    def __init__(self, prog: str, *, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{self._plain(message)} (see {self.prog} --help)")

    def _plain(self, message: str) -> str:
        unknown, _, names = message.partition("unrecognized arguments: ")
        if not unknown and names:
            return self._unknown(names.split()[0])
        missing, _, names = message.partition("the following arguments are required: ")
        if not missing and names:
            return f"{names.replace(', ', ' and ')} must be given"
        return message.removeprefix("argument ")

    def _unknown(self, name: str) -> str:
        flags = [flag for action in self._actions for flag in action.option_strings]
        near = get_close_matches(name.partition("=")[0], flags, n=1)
        return f"{name} is not known" + (f"; did you mean {near[0]}?" if near else "")


def whole_number(text: str) -> int:
    """For `type=`: an int, or a sentence."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """For `type=`: a float, or a sentence."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
