"""What `benchmarks.multi_gpu_page` says of a rank that dies while its lane exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Line = dict[str, Any]


def killed(lines: list[Line]) -> Iterator[str]:
    yield "## A rank killed while its lane exchanges"
    for line in lines:
        if line.get("section") == "death" and "closing_s" in line:
            yield ""
            yield from _death(line)
        if line.get("case") == "killed":
            yield ""
            yield from _killed(line)
        if line.get("case") == "returned":
            yield (
                f"The rank was back after {line['returned_s']:.1f} s, and the next picture was drawn on the lanes "
                f"{line['lanes_after']}."
            )
    yield ""
    yield "Other work ran on both GPUs beside the first of these services, and began its pictures beside the second."


def _death(line: Line) -> Iterator[str]:
    alone = f"stayed in its exchange for the {line.get('left_alone_s', 6.0):g} s that it was left there"
    if line["by_itself_s"] is not None:
        alone = f"came back by itself after {line['by_itself_s']:.2f} s"
    yield (
        f"Of two ranks that gather 16 MiB again and again one ends by SIGKILL. The other {alone}; closing its lane "
        f"took {1e3 * line['closing_s']:.0f} ms, after which its thread {'was' if line['freed'] else 'was not'} free "
        f"and its device {'works' if line.get('device_works') else 'does not work'}. It said: {line['said']!r}."
    )


def _killed(line: Line) -> Iterator[str]:
    again_s = _again_s(line)
    went_on = "nowhere" if again_s is None else f"after {again_s:.2f} s on the rank that was left"
    yield (
        f"In the service of {line['policy']} over {_transport(line)}, one picture of 40 steps on both ranks "
        f"({line['undisturbed_s']:.1f} s when nothing happens), rank 1 killed {line['died_s']:.1f} s after it was "
        f"asked for: the leader knew after {line['seen_s']} s, the request went on {went_on}, and its answer (status "
        f"{line['status']}) came {line['took_s']:.1f} s after it was asked for, with {line['num_repeated_steps']} "
        f"steps drawn twice; the same picture: {line['same_picture']}. Other ranks lost: "
        f"{line['others_lost'] or 'none'}."
    )


def _transport(line: Line) -> str:
    """Ranks with a GPU each exchange over NCCL if nothing else is asked for."""
    return f"`{line['transport']}`" if line.get("transport", "auto") != "auto" else "NCCL"


def _again_s(line: Line) -> float | None:
    """From the death until steps were drawn on another lane than at first."""
    steps = [each for each in line["visits"] if each["stage"] == "denoise"]
    later = (each["start_s"] for each in steps if each["ranks"] != steps[0]["ranks"])
    return next((start_s - line["died_s"] for start_s in later), None)
