"""The part of FlexCache's page that `benchmarks.flexcache_speed` has measured: models of the published sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.flexcache_settings import ORDER

Line = dict[str, Any]
_UNFITTED = " `teacache` has a polynomial that nobody has fitted, so that how much it computes says nothing."


def real_sizes(lines: Sequence[Line]) -> Iterator[str]:
    """Nothing where nothing was measured."""
    machine = next((line for line in lines if line["case"] == "machine"), None)
    if machine is None:
        return
    yield "## Real sizes"
    yield ""
    yield (
        f"{machine['gpu'] or 'CPU'}, torch {machine['torch']}; random weights at the published sizes in bfloat16, one "
        "request of 50 steps alone, at 1024 x 1024 or 480 x 832 x 17. What such a model draws means nothing, so that "
        "nothing is said of its likeness. Plans that would follow from a fitted profile are evenly spaced here. "
        "`computed step` is the median time of one with FlexCache by that of one without, measured just before and "
        "after; `kept` is the most that was kept. Forward passes are captured and replayed where it says so, with "
        f"FlexCache and without.{_UNFITTED if any(line.get('strategy') == 'teacache' for line in lines) else ''}"
    )
    yield from _bits(lines)
    yield from _plain_steps(lines)
    yield ""
    yield "| family | passes | strategy | value | computed | speed-up | computed step | reused step ms | kept MiB |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|"
    for line in _in_order([line for line in lines if line["case"] in ("plain", "setting")]):
        named = f"| {line['family']} | {'captured' if line['captured'] else ''} "
        if line["case"] == "plain":
            yield f"{named}| none | | 50 | 1 | {1000 * line['step_s']:.1f} ms | | |"
        else:
            yield (
                f"{named}| {line['strategy']} | {line['value']:g} | {line['computed']} "
                f"| {line['speed_up']:.2f} | {line['computed_step']:.3f} "
                f"| {1000 * line['reused_step_s']:.2f} | {line['kept_bytes'] / 2**20:.2f} |"
            )


def _bits(lines: Sequence[Line]) -> Iterator[str]:
    """Whether PAB's passes were captured with equal bits, where that was looked at."""
    for is_equal, said in ((True, "the bits"), (False, "other bits than those")):
        families = [line["family"] for line in lines if line["case"] == "bits" and line["equal"] is is_equal]
        if families:
            yield ""
            yield f"Captured, steps of `pab` gave {said} of uncaptured ones: {', '.join(families)}."


def _plain_steps(lines: Sequence[Line]) -> Iterator[str]:
    """How far a step without FlexCache strayed: a setting is drawn once, and its speed-up is to the one beside it."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if line["case"] == "setting" and line["captured"]:
            found.setdefault(line["family"], []).append(1000 * line["plain_s"])
    spread = "; ".join(f"{family} {min(ms):.1f} to {max(ms):.1f} ({len(ms)})" for family, ms in found.items())
    if spread:
        yield ""
        yield (
            "Each setting was drawn once, and its speed-up is to a step without FlexCache that was measured just "
            f"before and after it. That step, captured, in ms, from the least to the most (settings): {spread}."
        )


def _in_order(lines: Sequence[Line]) -> list[Line]:
    """Of several runs: the last line of each setting, in the order of families, strategies and what is computed."""
    families = list(dict.fromkeys(line["family"] for line in lines))

    def place(line: Line) -> tuple[int, bool, int, int, float]:
        strategy = line.get("strategy", "none")
        captured, computed = line["captured"], line.get("computed", 50)
        return (
            families.index(line["family"]),
            captured,
            ORDER.index(strategy),
            -computed,
            line.get("value", 0),
        )

    return [last for _, last in sorted({place(line): line for line in lines}.items())]
