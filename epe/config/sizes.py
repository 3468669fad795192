"""Sizes in the stage file: 512, "768x1344" (height x width) or [768, 1344], with frames "480x832x17" or
[480, 832, 17]."""

from __future__ import annotations

import re

from epe.config.keys import Tree, section
from epe.errors import BadSetting

PATH = "parallelism.scheduler.warmup_resolutions"
_NAMED = re.compile(r"\d{1,9}(\s*[xX]\s*\d{1,9}){1,2}")


def resolve_sizes(tree: Tree) -> None:
    """Bring each warm-up resolution to [height, width] or [height, width, frames], in place."""
    scheduler = section(tree, "parallelism.scheduler")
    given = scheduler.get("warmup_resolutions")
    if isinstance(given, list):
        scheduler["warmup_resolutions"] = [
            parse_shape(value, path=f"{PATH}[{index}]") for index, value in enumerate(given)
        ]


def named(height: int, width: int, num_frames: int) -> str:
    """As users write it: "768x1344", of a video "480x832x17"."""
    return f"{height}x{width}" + f"x{num_frames}" * (num_frames > 1)


def parse_flag(text: str, *, path: str) -> list[list[int]]:
    """[height, width] or [height, width, frames] of each size in a flag, such as `512,480x832x17`; raises `BadSetting`
    at `path`."""
    return [
        parse_shape(int(each) if re.fullmatch(r"\d{1,9}", each) else each, path=path)
        for each in map(str.strip, text.split(","))
    ]


def parse_shape(value: object, *, path: str) -> list[int]:
    """[height, width] of one size, with its frames behind if it has them; raises `BadSetting` at `path`."""
    match value:
        case bool():
            pass
        case int():
            return [value, value]
        case str() if _NAMED.fullmatch(value.strip()):
            return [int(each) for each in re.split("[xX]", value)]
        case [int(), int()] | [int(), int(), int()]:
            return list(value)
    raise BadSetting(
        f'expected a size such as 512, "768x1344", "480x832x17" or [768, 1344], got {value!r}', path=path
    )
