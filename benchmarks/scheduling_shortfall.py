"""What is left of the gap to the bound, cell by cell, and how much of it the future would close."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from scheduling_markdown import percent, table
from scheduling_verdicts import SHARE_OF_SHORTFALL, SHORT_OF_BOUND, Compared


def shortfalls(compared: Sequence[Compared]) -> str:
    """The cells where the best baseline is well short of the bound, those with most left first."""
    short = sorted((each for each in compared if each.shortfall), key=_left, reverse=True)
    if not short:
        return ""
    rows = [_row(each) for each in short]
    known = [each for each in short if each.clairvoyant is not None]
    note = (
        f"The cells where the best baseline is more than {100 * SHORT_OF_BOUND:.0f} points short of the bound: points "
        "that it lacks, that `elastic` lacks, and that `elastic` lacks when it is shown every request that is still to "
        "come. The bound knows the future too, cuts steps and lets ranks change hands for nothing."
    )
    parts = ["## What is left to the bound", note, table(_HEAD, rows)]
    return "\n\n".join([*parts, _summary(known)] if known else parts)


_HEAD = ["cell", "best baseline lacks", "elastic lacks", "left", "with the future known", "left", "reading"]


def _left(each: Compared) -> float:
    assert each.bound is not None
    assert each.shortfall is not None
    return (each.bound - each.ours) / each.shortfall


def _left_if_known(each: Compared) -> float | None:
    """The same of the clairvoyant run; None if that was not made."""
    if each.clairvoyant is None or each.bound is None or each.shortfall is None:
        return None
    return (each.bound - each.clairvoyant) / each.shortfall


def _row(each: Compared) -> list[str]:
    assert each.bound is not None
    known = None if each.clairvoyant is None else each.bound - each.clairvoyant
    if_known = _left_if_known(each)
    return [
        each.cell,
        percent(each.shortfall),
        percent(each.bound - each.ours),
        f"{_left(each):.0%}",
        percent(known),
        "-" if if_known is None else f"{if_known:.0%}",
        _reading(each, if_known),
    ]


def _reading(each: Compared, if_known: float | None) -> str:
    if _left(each) <= SHARE_OF_SHORTFALL:
        return "reached"
    if if_known is None:
        return "-"
    if if_known <= SHARE_OF_SHORTFALL:
        return "it lacks the future"
    if _left(each) - if_known > 0.1:
        return "it lacks the future, and more"
    return "the future does not help it"


def _summary(known: Sequence[Compared]) -> str:
    lacks = fmean(each.shortfall or 0.0 for each in known)
    left = fmean((each.bound or 0.0) - (each.clairvoyant or 0.0) for each in known)
    helps = sum(each.ours < (each.clairvoyant or 0.0) for each in known)
    return (
        f"Over these {len(known)} cells the clairvoyant run is left with {left / lacks:.0%} of the best baseline's "
        f"shortfall in the mean, and is better than `elastic` in {helps} of them. Where it is not, the gap is between "
        "the bound and what plans of this kind can do at all, not between what is known and what is to come; how much "
        "of that belongs to the bound is not known."
    )
