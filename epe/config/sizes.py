"""Sizes in the stage file: 512, "768x1344" (height x width) or [768, 1344], with frames "480x832x17" or
[480, 832, 17]."""

from __future__ import annotations

import re

from epe.config.keys import Tree, section
from epe.errors import BadSetting

PATH = "parallelism.scheduler.warmup_resolutions"


def resolve_sizes(tree: Tree) -> None:
    """Bring each warm-up resolution to [height, width] or [height, width, frames], in place."""
    scheduler = section(tree, "parallelism.scheduler")
    given = scheduler.get("warmup_resolutions")
    if isinstance(given, list):
        scheduler["warmup_resolutions"] = [
            parse_shape(value, path=f"{PATH}[{index}]") for index, value in enumerate(given)
        ]


def parse_flag(text: str, *, path: str) -> list[list[int]]:
    """[height, width] of each size in a flag, such as `512,768x1344`; raises `BadSetting` at `path`."""
    return [
        parse_size(int(each) if re.fullmatch(r"\d{1,9}", each) else each, path=path)
        for each in map(str.strip, text.split(","))
    ]


def parse_shape(value: object, *, path: str) -> list[int]:
    """[height, width, frames], or a size; raises `BadSetting` at `path`."""
    match value:
        case str() if found := re.fullmatch(r"(\d{1,9})[xX](\d{1,9})[xX](\d{1,9})", value.replace(" ", "")):
            return [int(each) for each in found.groups()]
        case [int() as height, int() as width, int() as num_frames]:
            return [height, width, num_frames]
    return parse_size(value, path=path)


def parse_size(value: object, *, path: str) -> list[int]:
    """[height, width] of one size; raises `BadSetting` at `path`."""
    match value:
        case bool():
            pass
        case int():
            return [value, value]
        case str() if found := re.fullmatch(r"(\d{1,9})\s*[xX]\s*(\d{1,9})", value.strip()):
            return [int(found[1]), int(found[2])]
        case [int() as height, int() as width]:
            return [height, width]
    raise BadSetting(f'expected a size such as 512, "768x1344" or [768, 1344], got {value!r}', path=path)
