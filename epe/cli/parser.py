"""argparse whose errors are ours: one sentence, no usage text."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from difflib import get_close_matches
from typing import NoReturn

from epe.errors import BadInput


class Parser(argparse.ArgumentParser):
    """Flags are written out in full; what is wrong raises `BadInput`. `explain` says more of a flag that is not known,
    or None."""

    def __init__(
        self,
        prog: str,
        *,
        description: str,
        epilog: str | None = None,
        explain: Callable[[str], str | None] = lambda flag: None,
    ) -> None:
        super().__init__(
            prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._explain = explain

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
        flag = name.partition("=")[0]
        if (explained := self._explain(flag)) is not None:
            return f"{flag} is not known {explained}"
        near = get_close_matches(flag, self.flags(), n=1)
        near = near or [each for each in self.flags() if _shares_a_word(flag, each)]
        return f"{name} is not known" + (f"; did you mean {near[0]}?" if near else "")

    def flags(self) -> list[str]:
        """All flags that it knows."""
        return [flag for action in self._actions for flag in action.option_strings]


def _shares_a_word(flag: str, other: str) -> bool:
    """As `--num-inference-steps` and `--steps` do: the same thing under the name that another program gives it."""
    return not {*flag.split("-")}.isdisjoint({*other.split("-")} - {""})


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
