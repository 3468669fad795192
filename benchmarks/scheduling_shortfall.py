"""What is left of the gap to the bound, cell by cell, what of it the future would close, and how loose the bound is."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from scheduling_markdown import percent, table
from scheduling_offline import SEARCH_S, Offline
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


def looseness(lines: Sequence[Offline]) -> str:
    """How much of the gap to the bound somebody closes who knows everything, in short runs."""
    short = [each for each in lines if each.bound - each.baseline > SHORT_OF_BOUND]
    if not short:
        return ""
    short.sort(key=lambda each: (each.bound - each.best) / (each.bound - each.baseline), reverse=True)
    rows = [
        [
            each.cell,
            *map(percent, (each.baseline, each.elastic, each.clairvoyant, each.found, each.bound)),
            f"{(each.bound - each.best) / (each.bound - each.baseline):.0%}",
        ]
        for each in short
    ]
    lacks = fmean(each.bound - each.baseline for each in short)
    left = fmean(each.bound - each.best for each in short)
    ours = fmean(each.bound - each.elastic for each in short)
    note = (
        f"One run of {short[0].num_requests} requests in each of {len(lines)} cells, on a seed of its own, and a "
        f"search that knows all of it and has {SEARCH_S:g} s of processor time (`benchmarks/scheduling_offline.py`): "
        "it gives each request two lanes of any widths, for half of the steps each, at any moment, so whatever it "
        "finds can be done. The best that is possible lies between the best found and the bound. The cells in which "
        f"the best of three baselines is more than {100 * SHORT_OF_BOUND:.0f} points short of the bound; in "
        f"{sum(each.proven for each in short)} of {len(short)} the bound is the optimum of its programme."
    )
    told = (
        f"Of the baselines' shortfall in the mean ({100 * lacks:.1f} points) `elastic` is left with "
        f"{ours / lacks:.0%}, and the best of all that was found, with the future known, with {left / lacks:.0%}."
    )
    head = [
        "cell",
        "best baseline",
        "elastic",
        "clairvoyant elastic",
        "search",
        "bound",
        "left to the best found",
    ]
    return "\n\n".join(["## How loose the bound is", note, table(head, rows), told])


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
        "the bound and what plans of this kind can do at all, not between what is known and what is to come. The "
        "clairvoyant run is told by what it gains on those seeds on which it was made."
    )
