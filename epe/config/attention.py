"""What the attention of a model gives for each row, by the settings of its checkpoint alone."""

from __future__ import annotations

import json
from math import prod

from epe.cache import RowBytes
from epe.config.demo import model_folder
from epe.families import Family


def attention_rows(model_path: str, family: Family, *, value_bytes: int) -> tuple[RowBytes, ...]:
    """By kind of attention, with values of so many bytes; empty where the settings do not say it."""
    config = model_folder(model_path) / "transformer" / "config.json"
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
        row_bytes = value_bytes * prod(int(settings[key]) for key in family.width_keys)
        counts = [
            (each, sum(int(settings[key]) for key in each.count_keys)) for each in family.attention_modules
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return tuple(
        RowBytes(kind=each.kind, picture=count * row_bytes, text=count * row_bytes * each.gives_text)
        for each, count in counts
    )
