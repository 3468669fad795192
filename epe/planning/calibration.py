"""The warm-up program: which lanes draw which sizes, so that every cost is measured before the first request.

All lanes of a width draw at once, so that what they cost each other is in the figures.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from epe.families import Family
from epe.geometry import max_width
from epe.messages import OutputFormat, Request
from epe.planning.view import MAX_LEASES, Assignment, View


class Round(Struct, frozen=True, kw_only=True):
    """Requests that run at the same time, each pinned to its lane."""

    requests: tuple[Request, ...]
    lanes: dict[str, tuple[int, ...]]


def program(
    family: Family,
    *,
    sizes: tuple[tuple[int, int], ...],
    widths: tuple[int, ...],
    world: int,
    num_steps: int,
    num_frames: int = 1,
    guidance_scale: float | None = None,
) -> Iterator[Round]:
    """A round for each size (height, width in pixels) and each lane width that it may have, small pictures first.

    Videos are measured with `num_frames` frames. `guidance_scale` is that of requests which name none (None: the
    family's), so that what is usual is measured: a step with guidance is another task than one without.
    """
    scale = family.defaults.guidance_scale if guidance_scale is None else guidance_scale
    for height, width in sorted(sizes):
        widest = max_width(family.num_tokens(height=height, width=width, num_frames=num_frames))
        for lane_width in [each for each in widths if each <= widest] or [1]:
            lanes = {
                f"warmup-{height}x{width}-w{lane_width}-{first}": tuple(range(first, first + lane_width))
                for first in range(0, world - lane_width + 1, lane_width)
            }
            yield Round(
                requests=tuple(
                    _request(name, (height, width, num_frames), num_steps=num_steps, guidance_scale=scale)
                    for name in lanes
                ),
                lanes=lanes,
            )


def _request(name: str, size: tuple[int, int, int], *, num_steps: int, guidance_scale: float) -> Request:
    height, width, num_frames = size
    return Request(
        id=name,
        prompt="a red cube on a white table",
        height=height,
        width=width,
        num_frames=num_frames,
        num_steps=num_steps,
        guidance_scale=guidance_scale,
        seed=0,
        output_format=OutputFormat.RAW,
    )


class Pinned:
    """The policy of a round: every request on its own lane, one step a lease, so that each is a sample."""

    def __init__(self, lanes: dict[str, tuple[int, ...]]) -> None:
        self.lanes = lanes

    def plan(self, view: View) -> tuple[Assignment, ...]:
        plan = []
        for trajectory in view.trajectories:
            lane = self.lanes[trajectory.request_id]
            ranks = lane if trajectory.stage == "denoise" else lane[:1]
            if trajectory.num_leases < MAX_LEASES and view.open_ranks.issuperset(ranks):
                steps = 1 if trajectory.stage == "denoise" else 0
                plan.append(Assignment(request_id=trajectory.request_id, ranks=ranks, num_steps=steps))
        return tuple(plan)
