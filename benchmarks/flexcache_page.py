"""The page of what `benchmarks.flexcache` and `benchmarks.flexcache_speed` have written.

python -m benchmarks.flexcache_page OUT SPEED.jsonl --output docs/results
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw

matplotlib.use("Agg")
from matplotlib import pyplot

Line = dict[str, Any]
COLOURS = {
    "freecache": "tab:blue",
    "meancache": "tab:orange",
    "magcache": "tab:green",
    "taylorseer": "tab:red",
    "teacache": "tab:purple",
    "pab": "tab:brown",
    "even": "tab:gray",
}
# What stands in the contact sheet, by number of steps.
SHOWN = {
    8: ("none/8", "freecache/4", "meancache/4", "magcache/4", "even/4"),
    50: (
        "none/50",
        "freecache/25",
        "freecache/10",
        "meancache/10",
        "magcache/10",
        "even/10",
        "taylorseer/4",
        "teacache/0.4",
    ),
    20: (
        "none/20",
        "freecache/10",
        "freecache/5",
        "meancache/5",
        "magcache/5",
        "even/5",
        "taylorseer/4",
        "teacache/0.4",
    ),
}
_LABEL_PX = 18


class Run:
    """One run of the demo model: its settings' lines, what was judged and what was timed."""

    def __init__(self, folder: Path) -> None:
        lines = _read(folder / "flexcache.jsonl")
        self.about = next(line for line in lines if line["case"] == "setting")
        self.fit = next((line for line in lines if line["case"] == "fit"), None)
        # Each is told when it is drawn, and again when it is judged; of a run that was cut short some are not judged.
        self.quality = list({_key(line): line for line in lines if line["case"] == "quality"}.values())
        self.speed, self.captured = (
            {_key(line): line for line in lines if line["case"] == case}
            for case in ("speed", "captured speed")
        )
        pictures = folder / "pictures.npz"
        self.pictures = dict(np.load(pictures)) if pictures.exists() else {}

    def of(self, num_steps: int) -> list[Line]:
        return [line for line in self.quality if line["steps"] == num_steps]

    @property
    def step_counts(self) -> list[int]:
        return list(self.about["step_counts"])


def page(run: Run, speed: Sequence[Line], *, commands: str) -> str:
    about = run.about
    parts = [
        "# FlexCache: what it costs and gives",
        "",
        commands,
        "",
        f"{about['gpu'] or about['device']}, Python {about['python']}, torch {about['torch']}. The shipped demo model, "
        f"which is trained, at {about['side']} x {about['side']}: {about['num_prompts']} held-out prompts, each with "
        f"{about['num_seeds']} seeds. PSNR and SSIM are to the same pictures with every step computed, the means over "
        "all of them; colour, place and kind are the shares of things in the pictures that are as the prompt says. The "
        "speed-up is that of the steps of one request alone, the median of "
        f"{about['rounds']} rounds in which all settings took turns; `captured` is the same where forward passes are "
        "captured and replayed, which makes the steps that are computed shorter.",
        "",
        "`even` is no strategy: the last velocity held between evenly spaced steps. MagCache has the threshold at "
        "which it computes as many steps as the others.",
    ]
    for num_steps in run.step_counts:
        parts += ["", f"## {num_steps} steps", "", *_table(run, num_steps)]
        parts += ["", f"![Speed and likeness at {num_steps} steps](flexcache-{num_steps}.png)"]
        parts += ["", *_verdicts(run, num_steps)]
        if shown_rows(run, num_steps):
            parts += [
                "",
                f"![The same prompts with each setting, {num_steps} steps](flexcache-sheet-{num_steps}.png)",
            ]
    return "\n".join([*parts, "", *_speeds(speed), ""])


def _table(run: Run, num_steps: int) -> Iterator[str]:
    yield "| strategy | value | computed | speed-up | captured | PSNR dB | SSIM | colour | place | kind | kept KiB |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for line in run.of(num_steps):
        right = " | ".join(
            f"{line[name]:.3f}" if name in line else "" for name in ("colour", "place", "kind")
        )
        if line["strategy"] == "none":
            yield f"| none | | {num_steps} | 1 | 1 | | | {right} | |"
            continue
        timed, captured = run.speed.get(_key(line), {}), run.captured.get(_key(line))
        replayed = f"{captured['speed_up']:.2f}" if captured else ""
        spread = f"{timed['speed_up']:.2f} ({timed['least']:.2f} to {timed['most']:.2f})" if timed else ""
        kept = f"{timed['kept_bytes'] / 1024:g}" if timed else ""
        yield (
            f"| {line['strategy']} | {line['value']:g} | {line['computed']:g} | {spread} | {replayed} "
            f"| {line['psnr_db']:.2f} | {line['ssim']:.4f} | {right} | {kept} |"
        )


def _verdicts(run: Run, num_steps: int) -> Iterator[str]:
    """FreeCache against the others at equal computed steps."""
    by_count: dict[float, dict[str, float]] = {}
    for line in run.of(num_steps):
        if line["strategy"] in ("freecache", "even", "magcache", "meancache"):
            by_count.setdefault(line["value"], {})[line["strategy"]] = line["psnr_db"]
    for count, found in sorted(by_count.items(), reverse=True):
        others = ", ".join(
            f"{found['freecache'] - found[name]:+.2f} dB to {name}"
            for name in ("even", "magcache", "meancache")
            if name in found
        )
        yield f"- FreeCache with {count:g} of {num_steps} computed: {others}."


def _speeds(lines: Sequence[Line]) -> Iterator[str]:
    """Real sizes; nothing where nothing was measured."""
    machine = next((line for line in lines if line["case"] == "machine"), None)
    if machine is None:
        return
    captured = ", forward passes captured and replayed" if machine["captured"] else ""
    yield "## Real sizes"
    yield ""
    yield (
        f"{machine['gpu'] or 'CPU'}, torch {machine['torch']}{captured}; "
        "random weights at the published sizes in bfloat16, one "
        "request of 50 steps alone. What such a model draws means nothing, so that nothing is said of its likeness. "
        "Plans that would follow from a fitted profile are evenly spaced here. `computed step` is the time of one with "
        "FlexCache by that of one without, measured just before and after; `kept` is the most that was kept."
    )
    yield ""
    yield "| family | strategy | value | computed of 50 | speed-up | computed step | reused step ms | kept MiB |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    plain = {line["family"]: line["step_s"] for line in lines if line["case"] == "plain"}
    for family, step_s in plain.items():
        yield f"| {family} | none | | 50 | 1 | {1000 * step_s:.1f} ms | | |"
        for line in lines:
            if line["case"] == "setting" and line["family"] == family:
                kept_mib = line["kept_bytes"] / 2**20
                yield (
                    f"| {family} | {line['strategy']} | {line['value']:g} | {line['computed']} "
                    f"| {line['speed_up']:.2f} | {line['computed_step']:.3f} "
                    f"| {1000 * line['reused_step_s']:.2f} | {kept_mib:.2f} |"
                )


def plot(run: Run, num_steps: int, path: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name, colour in COLOURS.items():
        points = sorted(
            (run.speed[_key(line)]["speed_up"], line["psnr_db"])
            for line in run.of(num_steps)
            if line["strategy"] == name and _key(line) in run.speed
        )
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=colour, label=name, markersize=4, linewidth=1)
    axes.set_xlabel("speed-up of the steps")
    axes.set_ylabel("PSNR to every step computed, dB")
    axes.set_title(f"Demo model, {num_steps} steps")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def shown_rows(run: Run, num_steps: int) -> list[str]:
    """The settings of which there are pictures."""
    return [key for key in SHOWN.get(num_steps, ()) if f"{num_steps}/{key}" in run.pictures]


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


def _key(line: Line) -> tuple[int, str, float]:
    return line["steps"], line["strategy"], line.get("value", line["steps"])


def _read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the output of benchmarks.flexcache")
    parser.add_argument("speed", type=Path, nargs="?", help="the lines of benchmarks.flexcache_speed")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    run = Run(args.folder)
    size = "" if run.about["size"] == "full" else f" --size {run.about['size']}"
    commands = f"`python -m benchmarks.flexcache{size} --output OUT`"
    if args.speed:
        commands += ", `python -m benchmarks.flexcache_speed > SPEED.jsonl`"
    commands += ", `python -m benchmarks.flexcache_page OUT [SPEED.jsonl] --output docs/results`"
    text = page(run, _read(args.speed) if args.speed else [], commands=commands)
    (args.output / "flexcache.md").write_text(text, encoding="utf-8")
    for num_steps in run.step_counts:
        plot(run, num_steps, args.output / f"flexcache-{num_steps}.png")
        sheet(run, num_steps, args.output / f"flexcache-sheet-{num_steps}.png")


if __name__ == "__main__":
    main()
