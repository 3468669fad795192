"""What a user wants, fully resolved: no default is filled in after this point."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from epe.messages.caching import Reuse


class OutputFormat(StrEnum):
    """How the finished picture or video is encoded; `RAW` leaves the array as it is."""

    PNG = "png"
    JPEG = "jpeg"
    WEBP = "webp"
    MP4 = "mp4"
    WEBM = "webm"
    RAW = "raw"

    @property
    def holds(self) -> Literal["picture", "video", "array"]:
        match self:
            case OutputFormat.RAW:
                return "array"
            case OutputFormat.MP4 | OutputFormat.WEBM:
                return "video"
            case _:
                return "picture"


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One picture or video to draw.

    Sizes are pixels, `fps` is the frames a second of a video's file, `deadline_s` is seconds after arrival,
    `guidance_scale` 0 means no guidance, `flow_shift` leans the steps to the noisy end (None: as the checkpoint has
    it), larger `priority` goes first, `client_id` says on whose account it runs, `reuse` which steps are computed
    (None: all).
    """

    id: str
    prompt: str
    negative_prompt: str = ""
    height: Annotated[int, Meta(ge=1)]
    width: Annotated[int, Meta(ge=1)]
    num_frames: Annotated[int, Meta(ge=1)] = 1
    fps: Annotated[int, Meta(ge=1)] = 16
    num_steps: Annotated[int, Meta(ge=1)]
    guidance_scale: Annotated[float, Meta(ge=0)]
    flow_shift: Annotated[float, Meta(gt=0)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    max_sequence_length: Annotated[int, Meta(ge=1)] = 512
    reuse: Reuse | None = None
    priority: int = 0
    client_id: str = ""
    deadline_s: Annotated[float, Meta(gt=0)] | None = None
    on_deadline: Literal["continue", "expire"] = "continue"
    output_format: OutputFormat = OutputFormat.PNG
    output_compression: Annotated[int, Meta(ge=0, le=100)] = 100

    def num_computed(self, first_step: int, end_step: int) -> int:
        """Of the steps from `first_step` to before `end_step` those that are computed (with TeaCache: at most)."""
        if self.reuse is None:
            return end_step - first_step
        return self.reuse.num_computed(first_step, end_step)
