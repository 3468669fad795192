"""The page of what `benchmarks.flexcache` and `benchmarks.flexcache_speed` have written.

python -m benchmarks.flexcache_page OUT/*.jsonl --pictures OUT/pictures-*.npz --real SPEED.jsonl --output docs/results
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.flexcache_real_page import real_sizes
from benchmarks.flexcache_settings import ORDER, SHOWN

Line = dict[str, Any]
# Steps, strategy, value.
Key = tuple[int, str, float]
COLOURS = {
    "freecache": "tab:blue",
    "meancache": "tab:orange",
    "magcache": "tab:green",
    "taylorseer": "tab:red",
    "teacache": "tab:purple",
    "pab": "tab:brown",
    "even": "tab:gray",
    "bfloat16": "black",
}
# Compared with FreeCache at equal computed steps.
RIVALS = ("even", "magcache", "meancache")
_LABEL_PX = 18


class Run:
    """Runs of the demo model taken as one: its settings' lines, what was timed in all rounds, and pictures. Later lines
    of the same setting stand for earlier ones."""

    def __init__(self, lines: Sequence[Line], pictures: Mapping[str, np.ndarray] | None = None) -> None:
        self.about = next(line for line in lines if line["case"] == "setting")
        self.quality = {_key(line): line for line in lines if line["case"] == "quality"}
        self.speed, self.captured = (
            {
                _key(line): line
                for line in lines
                if line["case"] == case and line["rounds"] == self.about["rounds"]
            }
            for case in ("speed", "captured speed")
        )
        self.pictures = dict(pictures or {})

    def of(self, num_steps: int) -> list[Line]:
        """In the order of the strategies, each by what it computes."""
        found = [line for line in self.quality.values() if line["steps"] == num_steps]
        return sorted(
            found, key=lambda line: (ORDER.index(line["strategy"]), -line.get("computed", num_steps))
        )

    def timed(self, num_steps: int) -> bool:
        """Whether anything was timed in all rounds."""
        return any(steps == num_steps and strategy != "none" for steps, strategy, _ in self.speed)

    def is_captured(self, num_steps: int) -> bool:
        """Whether all of that was timed with captured passes too."""
        return all(key in self.captured for key in self.speed if key[0] == num_steps)

    @property
    def step_counts(self) -> list[int]:
        return sorted({num_steps for num_steps, _, _ in self.quality}, reverse=True)


def page(run: Run, real: Sequence[Line], *, commands: str, note: str = "", drawn_on: str = "") -> str:
    about = run.about
    parts = [
        "# FlexCache: what it costs and gives",
        "",
        commands,
        "",
        f"{about['gpu'] or about['device']}, Python {about['python']}, torch {about['torch']}. The shipped demo model, "
        f"which is trained, at {about['side']} x {about['side']}; held-out prompts: {about['num_prompts']}, seeds of "
        f"each: {about['num_seeds']}. PSNR and SSIM are to the same pictures with every step computed, the means over "
        "all of them; colour, place and kind are the shares of things in the pictures that are as the prompt says. "
        "These are drawn in 32 bits: `bfloat16` is every step computed in 16 bits, which strays by itself. "
        f"{_about_times(run)} What a run that was cut short has not measured, or not in all rounds, is left empty.",
        "",
        "`even` is no strategy: the last velocity held between evenly spaced steps. MagCache has the threshold at "
        "which it computes as many steps as the others.",
        *(["", note] if note else []),
    ]
    for num_steps in run.step_counts:
        parts += ["", f"## {num_steps} steps", "", *_table(run, num_steps)]
        parts += (
            ["", f"![Speed and likeness at {num_steps} steps](flexcache-{num_steps}.png)"]
            if run.timed(num_steps)
            else []
        )
        parts += ["", *_verdicts(run, num_steps), *_waits(run, num_steps)]
        if shown_rows(run, num_steps):
            parts += [
                "",
                f"![The same prompts with each setting, {num_steps} steps](flexcache-sheet-{num_steps}.png)",
            ]
            parts += ["", f"These were drawn on {drawn_on}, with the same plans."] if drawn_on else []
    return "\n".join([*parts, "", *real_sizes(real), ""])


def _about_times(run: Run) -> str:
    if not run.speed:
        return "Times were not measured in this run."
    return (
        f"The speed-up is that of the steps of one request alone, the median of {run.about['rounds']} rounds in which "
        "all settings took turns, with the least and the most; `picture` is that from prompt to pixels. `captured` is "
        "that of the steps where forward passes are captured and replayed, which makes the computed ones shorter."
    )


def _table(run: Run, num_steps: int) -> Iterator[str]:
    yield (
        "| strategy | value | computed | speed-up | picture | captured | PSNR dB | SSIM | colour | place | kind "
        "| kept KiB |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for line in run.of(num_steps):
        right = " | ".join(
            f"{line[name]:.3f}" if name in line else "" for name in ("colour", "place", "kind")
        )
        if line["strategy"] == "none":
            yield f"| none | | {num_steps} | 1 | 1 | 1 | | | {right} | |"
            continue
        yield (
            f"| {line['strategy']} | {line['value']:g} | {line['computed']:g} | {_times(run, _key(line))} "
            f"| {line['psnr_db']:.2f} | {line['ssim']:.4f} | {right} | {_kept(run, _key(line))} |"
        )


def _times(run: Run, key: Key) -> str:
    """Three cells, empty where nothing was measured."""
    timed, captured = run.speed.get(key), run.captured.get(key)
    whole = f"{timed['whole_speed_up']:.2f}" if timed else ""
    return f"{_spread(timed)} | {whole} | {_spread(captured)}"


def _spread(timed: Line | None) -> str:
    return f"{timed['speed_up']:.2f} ({timed['least']:.2f} to {timed['most']:.2f})" if timed else ""


def _kept(run: Run, key: Key) -> str:
    return f"{run.speed[key]['kept_bytes'] / 1024:g}" if key in run.speed else ""


def _verdicts(run: Run, num_steps: int) -> Iterator[str]:
    """FreeCache against the others at equal computed steps."""
    by_count: dict[float, dict[str, float]] = {}
    for line in run.of(num_steps):
        if line["strategy"] in ("freecache", *RIVALS):
            by_count.setdefault(line["value"], {})[line["strategy"]] = line["psnr_db"]
    for count, found in sorted(by_count.items(), reverse=True):
        others = {name: found[name] for name in RIVALS if name in found}
        if "freecache" in found and others:
            gains = ", ".join(
                f"{found['freecache'] - other:+.2f} dB to {name}" for name, other in others.items()
            )
            yield f"- FreeCache with {count:g} of {num_steps} computed: {gains}."


def _waits(run: Run, num_steps: int) -> Iterator[str]:
    """What a captured step of TeaCache takes beside what the model does."""
    plain = run.captured.get((num_steps, "none", num_steps))
    lines = [
        line
        for (steps, strategy, _), line in run.captured.items()
        if (steps, strategy) == (num_steps, "teacache")
    ]
    if plain is None or not lines:
        return
    step_ms = 1000 * plain["steps_s"] / num_steps
    waits = ", ".join(
        f"{step_ms / line['speed_up'] - step_ms * line['computed'] / num_steps:.2f} ms ({line['computed']} computed)"
        for line in sorted(lines, key=lambda line: -line["computed"])
    )
    yield (
        f"- TeaCache, captured: beside the {step_ms:.2f} ms of each computed step, each of the {num_steps} steps "
        f"takes {waits}: the host reads by how much the latents have changed, and begins the next step only then."
    )


def plot(run: Run, num_steps: int, path: Path) -> None:
    """By the speed-up of captured steps, as a service on a GPU has them, where all of them were measured so."""
    timed, kind = (run.captured, "captured steps") if run.is_captured(num_steps) else (run.speed, "steps")
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name, colour in COLOURS.items():
        points = sorted(
            (timed[_key(line)]["speed_up"], line["psnr_db"])
            for line in run.of(num_steps)
            if line["strategy"] == name and _key(line) in timed
        )
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=colour, label=name, markersize=4, linewidth=1)
    axes.set_xlabel(f"speed-up of {kind}")
    axes.set_ylabel("PSNR to every step computed, dB")
    axes.set_title(f"Demo model, {num_steps} steps")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def shown_rows(run: Run, num_steps: int) -> list[str]:
    """The settings of which there are pictures and likenesses."""
    found = {f"{line['strategy']}/{line['value']:g}" for line in run.of(num_steps)}
    return [key for key in SHOWN.get(num_steps, ()) if key in found and f"{num_steps}/{key}" in run.pictures]


def sheet(run: Run, num_steps: int, path: Path) -> None:
    """A row for each setting, a column for each prompt."""
    if not (rows := shown_rows(run, num_steps)):
        return
    pictures = [run.pictures[f"{num_steps}/{key}"] for key in rows]
    count, side = pictures[0].shape[0], pictures[0].shape[1] // 2
    canvas = Image.new("RGB", (count * side, len(rows) * (side + _LABEL_PX)), "white")
    pen = ImageDraw.Draw(canvas)
    for row, (key, drawn) in enumerate(zip(rows, pictures, strict=True)):
        top = row * (side + _LABEL_PX)
        pen.text((4, top + 3), _titled(run, num_steps, key), fill="black")
        for column, pixels in enumerate(drawn):
            small = Image.fromarray(pixels).resize((side, side), Image.Resampling.LANCZOS)
            canvas.paste(small, (column * side, top + _LABEL_PX))
    canvas.save(path)


def _titled(run: Run, num_steps: int, key: str) -> str:
    strategy, _, value = key.partition("/")
    if strategy == "none":
        return "every step computed"
    line = next(
        each for each in run.of(num_steps) if each["strategy"] == strategy and f"{each['value']:g}" == value
    )
    return f"{strategy} {value}: {line['computed']:g} of {num_steps} steps computed, {line['psnr_db']:.1f} dB"


def _key(line: Line) -> Key:
    return line["steps"], line["strategy"], line.get("value", line["steps"])


def _read(paths: Sequence[Path]) -> list[Line]:
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", type=Path, nargs="+", help="what benchmarks.flexcache has told")
    parser.add_argument(
        "--pictures", type=Path, nargs="*", default=[], help="that it has left, for the sheets"
    )
    parser.add_argument(
        "--real", type=Path, nargs="*", default=[], help="lines of benchmarks.flexcache_speed"
    )
    parser.add_argument(
        "--drawn-on", default="", help="where the pictures were drawn, if not where the lines are from"
    )
    parser.add_argument("--note", default="", help="on how the lines were measured")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    drawn = {name: found for path in args.pictures for name, found in np.load(path).items()}
    run = Run(_read(args.lines), drawn)
    commands = _commands(run, real=bool(args.real))
    text = page(run, _read(args.real), commands=commands, note=args.note, drawn_on=args.drawn_on)
    (args.output / "flexcache.md").write_text(text, encoding="utf-8")
    for num_steps in run.step_counts:
        if run.timed(num_steps):
            plot(run, num_steps, args.output / f"flexcache-{num_steps}.png")
        sheet(run, num_steps, args.output / f"flexcache-sheet-{num_steps}.png")


def _commands(run: Run, *, real: bool) -> str:
    size = "" if run.about["size"] == "full" else f" --size {run.about['size']}"
    more = ", `python -m benchmarks.flexcache_speed --captured --output SPEED.jsonl`" if real else ""
    last = "python -m benchmarks.flexcache_page OUT/*.jsonl --output docs/results"
    return f"`python -m benchmarks.flexcache{size} --output OUT`{more}, `{last}{' --real SPEED.jsonl' if real else ''}`"


if __name__ == "__main__":
    main()
