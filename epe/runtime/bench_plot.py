"""What `epe bench` has measured, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from epe.runtime.bench import Row

# Of the room that a size has, the rest is between it and the next.
_FILLED = 0.8


def draw(rows: Sequence[Row], path: str, *, title: str) -> None:
    """A bar for each size and entrant: milliseconds of a step, the median with the least and the most."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    entrants = {"epe": [row.step_s for row in rows]}
    for name in rows[0].others_step_s:
        entrants[name] = [row.others_step_s[name] for row in rows]
    figure, panel = pyplot.subplots(figsize=(2 + 1.5 * len(rows), 4), layout="constrained")
    width = _FILLED / len(entrants)
    for place, (name, seconds) in enumerate(entrants.items()):
        heights = [1e3 * median(each) for each in seconds]
        below = [height - 1e3 * min(each) for height, each in zip(heights, seconds, strict=True)]
        above = [1e3 * max(each) - height for height, each in zip(heights, seconds, strict=True)]
        left = [number + place * width for number in range(len(rows))]
        panel.bar(left, heights, width, yerr=[below, above], capsize=3, label=name)
    middle = [number + (_FILLED - width) / 2 for number in range(len(rows))]
    panel.set_xticks(middle, [_name(row) for row in rows])
    panel.set(ylabel="ms a step", title=title)
    panel.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _name(row: Row) -> str:
    return row.size if row.num_ranks == 1 else f"{row.size}\n{row.num_ranks} ranks"
