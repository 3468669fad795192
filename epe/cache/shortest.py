"""The cheapest ways over places in a row, of every number of them, where each stretch costs by the one before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

# Of stretches (place before, from, to); for the first one the place before is where it begins.
Costs = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def shortest_ways(
    costs: Costs, places: np.ndarray, end: int, *, always: Collection[int], reach: int
) -> Iterator[tuple[float, np.ndarray]]:
    """What the cheapest way from the first of `places` (ascending) to `end` costs, and its places, for each number of
    these: of the ways that hold `always` and have no stretch over more than `reach` places."""
    stops = np.append(places, end)
    first, beyond = _within_reach(places, always, reach)
    # To each place by the last one before it (rows, from the first within reach) and how many are (columns).
    known = [np.full((max(place - first[place], 1), place + 1), np.inf) for place in range(len(stops))]
    known[0][0, 0] = 0.0
    # The place before that one; with many in `always` far fewer are within reach than it allows.
    depth = max(len(rows) for rows in known)
    came = np.zeros((len(stops), depth, len(stops)), np.int16)
    for place in range(len(places)):
        here, after = known[place], np.arange(place + 1, beyond[place])
        before = first[place] + np.arange(len(here))
        best, rows = _cheapest(here, costs(stops[before, None], stops[place], stops[after]))
        came[after, place - first[after], 1 : place + 2] = first[place] + rows
        for each, cost in zip(after, best, strict=True):
            known[each][place - first[each], 1 : place + 2] = cost
        known[place] = here[:0]
    return _whole_ways(known[-1], came, first, places)


def _within_reach(places: np.ndarray, always: Collection[int], reach: int) -> tuple[np.ndarray, np.ndarray]:
    """For each place, and the end, the first one from which a stretch may lead there; and the first one to which none
    may lead from it."""
    stops = np.arange(len(places) + 1)
    forced = np.flatnonzero(np.isin(places, list(always)))
    before = np.concatenate([[0], forced])[np.searchsorted(forced, stops)]
    after = np.append(forced, len(places))[np.searchsorted(forced, stops, side="right")]
    return np.maximum(stops - reach, before), np.minimum(stops + reach, after) + 1


def _cheapest(known: np.ndarray, stretches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least sum of a row of `known` and of `stretches` by the columns of the latter and the former, and its row:
    one row after the other, which is quicker than all at once."""
    best = known[0] + stretches[0][:, None]
    rows = np.zeros(best.shape, np.int16)
    for row in range(1, len(known)):
        found = known[row] + stretches[row][:, None]
        np.copyto(rows, row, where=found < best)
        np.minimum(best, found, out=best)
    return best, rows


def _whole_ways(
    known: np.ndarray, came: np.ndarray, first: np.ndarray, places: np.ndarray
) -> Iterator[tuple[float, np.ndarray]]:
    """All that come to the end, back from there at once: one that is at the first place stays there."""
    counts = np.flatnonzero(np.isfinite(known.min(axis=0)))
    row, before = np.array([_end_of(known[:, count], came[-1, :, count]) for count in counts]).T
    last, num_before, ways = first[-1] + row, counts, []
    while last.any():
        ways.append(last)
        num_before = np.maximum(num_before - 1, 0)
        last, before = before, came[last, before - first[last], num_before]
    whole = places[np.stack([*ways, last], axis=1)][:, ::-1]
    for count, way in zip(counts, whole, strict=True):
        yield float(known[:, count].min()), way[-count:].copy()


def _end_of(costs: np.ndarray, came: np.ndarray) -> tuple[int, int]:
    """The row of the cheapest last stretch, and the place before it; of equal ones the first."""
    equal = np.flatnonzero(costs == costs.min())
    row = min(equal, key=lambda each: (came[each], each))
    return int(row), int(came[row])
