"""The body of a request for a video: OpenAI's fields, and what EPE adds to them as optional ones."""

from __future__ import annotations

import math
from typing import Literal

from epe.config.request import resolve_request
from epe.errors import BadRequest
from epe.families import Family
from epe.messages import OutputFormat, Request
from epe.server.image_body import WorkBody, work_of
from epe.server.service import Service


class VideoBody(WorkBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request for a video. Its length is `seconds`, which OpenAI's clients send as a text, or
    `num_frames`."""

    seconds: float | str | None = None
    num_frames: int | None = None
    fps: int | None = None
    flow_shift: float | None = None
    output_format: Literal["mp4", "webm"] | None = None


def to_request(body: VideoBody, service: Service, *, request_id: str, key_name: str = "") -> Request:
    """Raises `BadRequest`."""
    family = service.family
    if family.makes != "video":
        raise BadRequest(f"model {service.name} draws pictures; this route draws videos", param="model")
    return resolve_request(
        family,
        id=request_id,
        num_frames=_frames(body, family),
        fps=body.fps,
        flow_shift=body.flow_shift,
        output_format=None if body.output_format is None else OutputFormat(body.output_format),
        **work_of(body, service, key_name=key_name),
    )


def _frames(body: VideoBody, family: Family) -> int | None:
    """Of `seconds` as many frames as last nearest to so long, of those that the model can draw."""
    if body.seconds is None:
        return body.num_frames
    if body.num_frames is not None:
        raise BadRequest("seconds is given beside num_frames; give one of them", param="seconds")
    fps, seconds = body.fps or family.defaults.fps, _seconds(body.seconds)
    wanted = seconds * fps
    if wanted > family.max_frames + family.frames.step:
        longest = f"{family.max_frames / fps:.2f}, which this model can draw at most"
        raise BadRequest(
            f"seconds {seconds:g} at {fps} frames a second is more than {longest}", param="seconds"
        )
    around = family.frames.nearest(int(wanted))
    above = family.frames.nearest(int(wanted) + 1)
    candidates = [count for count in {*around, *above} if count <= family.max_frames]
    return min(candidates, key=lambda count: (abs(count - wanted), count))


def _seconds(given: float | str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadRequest(f"seconds {str(given)[:16]!r} is not allowed: a number above 0 is", param="seconds")
    return seconds
