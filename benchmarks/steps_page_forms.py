"""Of `docs/results/h200.md`: forms of Z-Image's compiled blocks that were tried beside those that are kept."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.steps_page_cells import BEST, Line, middle_of, name_of, ratio

# The blocks as they are, and others that were tried beside them.
FORMS = {
    "ours_before": "modulations in each block, kernels picked by timing: as it was",
    BEST: "modulations beforehand, no kernel picked by timing: as it is",
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
JOINED = "ours_joined"
JOINED_TEXT = (
    "Later runs, in turn, of the blocks as they are and with one product. Those at 256x256 and 512x512 drew while "
    "other processes compiled on the same GPU; at 1024x1024 nobody did, and cache-dit drew too in the second run. The "
    "largest difference from diffusers' latents had the same six digits with both. Since one product takes more time "
    "at 512x512, and was not timed with the rows that a rank of a lane has, which are as few, the three were kept. Why "
    "it takes more there and less elsewhere is not known."
)
JOINED_TITLES = (
    "family, size, text rows",
    "three products, ms a step",
    "one",
    "rounds in which one took less",
    "one's bits on 2 and 4 threads",
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


def joined(runs: list[Line], rows: list[Line]) -> Iterator[str]:
    """Of one product in place of three: what steps took, and whether lanes of threads have the bits of one rank."""
    found = [run for run in runs if JOINED in run["step_ms"]]
    if not found:
        return
    yield from ("", "## One product for queries, keys and values", "", JOINED_TEXT, "")
    yield f"| {' | '.join(JOINED_TITLES)} |"
    yield "|---|--:|--:|--:|---|"
    for run in found:
        three_ms, one_ms = run["step_ms"][BEST], run["step_ms"][JOINED]
        less = sum(one < three for one, three in zip(one_ms, three_ms, strict=True))
        cells = [f"{middle_of(three_ms):.1f}", f"{middle_of(one_ms):.1f}", f"{less} of {len(one_ms)}"]
        yield f"| {name_of(run)} | {' | '.join(cells)} | {_bits(run, rows)} |"


def _bits(run: Line, rows: list[Line]) -> str:
    """The largest difference of a lane's latents to those of one rank."""
    own = [line for line in rows if line.get("form") == JOINED and line["size"] == run["size"]]
    largest = [line[width] for line in own for width in ("width_2", "width_4") if width in line]
    return ("=" if not max(largest) else f"{max(largest):.3g}") if largest else ""
