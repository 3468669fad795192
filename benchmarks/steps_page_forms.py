"""Of `docs/results/h200.md`: forms of Z-Image's compiled blocks that were tried beside each other."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.steps_page_cells import BEST, Line, middle_of, name_of, ratio

# The blocks as they were on that day, and others that were tried beside them.
FORMS = {
    "ours_before": "modulations in each block, kernels picked by timing: as it was before",
    BEST: "modulations beforehand, no kernel picked by timing: as it was then",
    "ours_added": "that, with a kernel that norms, gates and adds",
    "ours_added_timed": "that, the other kernels picked by timing",
    "ours_added_joined": "that, not picked by timing, with one product for queries, keys and values",
}
TEXT = (
    "In turn in one run of seven rounds. Kernels that nobody picks by timing add a row up in the same order on every "
    "rank. The kernel that norms, gates and adds took no less time in all than those of the compiler, and was not "
    "kept. With it a profile of four steps had 88.5 ms of kernels a step, 81.7 of them products and attention, and "
    "1.0 ms between them; timed steps, which follow others without a pause, took 95.5. One product for queries, keys "
    "and values took less in all seven rounds; alone, twenty in a graph, it took 531 µs where the three took 481."
)
# The form before the one that is kept, in the runs that drew both.
THREE = "ours_three"
JOINED_TEXT = (
    "Later runs, in turn, of the blocks as they are, with one product, and as they were before, with three: "
    "milliseconds of a step and ratios to diffusers, medians. Those at 256x256 and 512x512 drew while other processes "
    "compiled on the same GPU; at 1024x1024 nobody did, and cache-dit drew too in the second run. The largest "
    "difference from diffusers' latents had the same six digits with both, and lanes of threads had the bits of one "
    "rank with both. One is kept for 1024x1024, the size that Z-Image is drawn in. At 512x512 three were faster, in "
    "every round; nobody else was: in other runs diffusers' compiled blocks took more than 25 ms and cache-dit's more "
    "than 28. Not timed are the rows that a rank of a lane has, which at 1024x1024 are as few on four ranks. Why one "
    "takes more there and less elsewhere is not known."
)
JOINED_TITLES = (
    "family, size, text rows",
    "three products, as it was",
    "one, as it is",
    "rounds in which one took less",
)


def forms(runs: list[Line]) -> Iterator[str]:
    """A table of each run that had all of the forms."""
    for case in (run for run in runs if FORMS.keys() <= run["step_ms"].keys()):
        yield from ("", f"## Forms of {name_of(case)}", "", TEXT, "")
        yield "| blocks | against diffusers | ms a step |"
        yield "|---|--:|--:|"
        for name, title in FORMS.items():
            cells = ratio(case["against_diffusers"][name]), f"{middle_of(case['step_ms'][name]):.1f}"
            yield f"| {title} | {' | '.join(cells)} |"


def joined(runs: list[Line]) -> Iterator[str]:
    """What steps took with three products and with one, in the runs that drew both."""
    found = [run for run in runs if THREE in run["step_ms"]]
    if not found:
        return
    yield from ("", "## One product for queries, keys and values", "", JOINED_TEXT, "")
    yield f"| {' | '.join(JOINED_TITLES)} |"
    yield "|---|--:|--:|--:|"
    for run in found:
        three_ms, one_ms = run["step_ms"][THREE], run["step_ms"][BEST]
        less = sum(one < three for one, three in zip(one_ms, three_ms, strict=True))
        cells = [_cell(run, THREE), _cell(run, BEST), f"{less} of {len(one_ms)}"]
        yield f"| {name_of(run)} | {' | '.join(cells)} |"


def _cell(run: Line, name: str) -> str:
    return f"{middle_of(run['step_ms'][name]):.1f}, {run['against_diffusers'][name][0]:.2f}×"
