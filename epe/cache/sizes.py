"""What a strategy keeps of a request in bytes, known before it is drawn."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from epe.cache.schedule import reused_kinds
from epe.cache.weights import num_records
from epe.families import AttentionKind, Defaults, Family
from epe.messages.caching import Pab, Reuse
from epe.messages.requests import Request


class RowBytes(Struct, frozen=True, kw_only=True):
    """What all attention modules of a kind give for a row of the picture and for one of the text, in bytes."""

    kind: AttentionKind
    picture: int
    text: int = 0


class Sizes(Struct, frozen=True, kw_only=True):
    """Of one request: the bytes of a velocity, the rows of the picture and the most of the text, and how often a step
    has them: once for each branch of guidance."""

    record_bytes: int = 0
    picture_rows: int = 0
    text_rows: int = 0
    branches: int = 1


def sizes_of(family: Family, asked: Request | Defaults) -> Sizes:
    size = {"height": asked.height, "width": asked.width, "num_frames": asked.num_frames}
    return Sizes(
        record_bytes=family.latent_bytes(**size),
        picture_rows=family.num_tokens(**size),
        text_rows=asked.max_sequence_length,
        branches=family.num_conditions(asked.guidance_scale),
    )


def record_bytes(reuse: Reuse, sizes: Sizes, *, num_steps: int) -> int:
    """The most that velocities take at once, whole on every rank."""
    return num_records(reuse, num_steps) * sizes.record_bytes


def attention_bytes(reuse: Reuse, rows: Iterable[RowBytes], sizes: Sizes, *, num_steps: int) -> int:
    """The most that PAB keeps within a lease, at most that many bytes on all ranks of a lane together; 0 for others."""
    if not isinstance(reuse.strategy, Pab):
        return 0
    kinds = {
        kind
        for step in range(num_steps)
        for kind in reused_kinds(reuse.strategy, step, num_steps, kinds=reuse.kinds)
    }
    kept = [each for each in rows if each.kind in kinds]
    return sizes.branches * sum(
        each.picture * sizes.picture_rows + each.text * sizes.text_rows for each in kept
    )
