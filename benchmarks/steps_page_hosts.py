"""Of `docs/results/h200.md`: small pictures in all runs, whose hosts were not equally fast; where exact is behind."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.steps_page_cells import Line, middle_of, name_of

# Sides up to which diffusers waits for its host.
SMALL = 512
COLUMNS = {
    "diffusers": "diffusers",
    "diffusers_compiled": "diffusers, compiled",
    "ours_captured": "captured",
    "ours_compiled": "compiled and captured",
}
TEXT = (
    "With small pictures diffusers waits for its host and captured steps hardly do: a ratio is one of the host too, "
    "and hosts differ from run to run. All runs that drew all of these, the oldest of a case first, most of them of "
    "earlier code: so are all of Z-Image, with three products for queries, keys and values; of the others the last is "
    "that of the table above. Milliseconds of a step and ratios to diffusers, medians."
)


def hosts(cases: list[Line]) -> Iterator[str]:
    """A table of the small cases that were drawn more than once; `cases` are of all runs, in order of time."""
    small = [case for case in cases if _is_small(case) and case["step_ms"].keys() >= COLUMNS.keys()]
    names = [name_of(case) for case in small]
    repeated = [case for case in small if names.count(name_of(case)) > 1]
    if not repeated:
        return
    yield from ("", "## Small pictures and their hosts", "", TEXT, "")
    yield f"| family, size, text rows | {' | '.join(COLUMNS.values())} |"
    yield "|---|" + "--:|" * len(COLUMNS)
    for case in sorted(repeated, key=lambda case: names.index(name_of(case))):
        yield f"| {name_of(case)} | {' | '.join(_cell(case, name) for name in COLUMNS)} |"


def exact_behind(cases: list[Line]) -> Iterator[str]:
    """Where captured steps alone, all that `exact` has, took longer than diffusers' compiled blocks in some run."""
    ratios = ((name_of(case), case["against_diffusers"]) for case in cases)
    pairs = [
        (name, each["diffusers_compiled"][0], each["ours_captured"][0])
        for name, each in ratios
        if _both(each)
    ]
    behind = dict.fromkeys(name for name, theirs, ours in pairs if theirs > ours)
    if behind:
        yield ""
        yield (
            "Captured steps alone, which are what `exact` has, were slower than diffusers' compiled blocks in a run of "
            f"{'; '.join(behind)}. Compiled blocks change last bits, diffusers' too."
        )


def _both(ratios: dict[str, list[float]]) -> bool:
    return ratios.keys() >= {"diffusers_compiled", "ours_captured"}


def _is_small(case: Line) -> bool:
    return all(int(side) <= SMALL for side in case["size"].split("x"))


def _cell(case: Line, name: str) -> str:
    ratio = "" if name == "diffusers" else f", {case['against_diffusers'][name][0]:.2f}×"
    return f"{middle_of(case['step_ms'][name]):.1f}{ratio}"
