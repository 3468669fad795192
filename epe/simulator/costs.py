"""Reads cost sets from files, and refuses those that contradict themselves."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from epe.errors import BadSetting
from epe.families import family
from epe.planning.cost_set import CostSet, Size, TaskCost
from epe.planning.costs import CostKey

__all__ = ["CostSet", "Size", "TaskCost", "check_cost_set", "read_cost_set"]


def read_cost_set(path: str) -> CostSet:
    """A cost set from a JSON file; raises `BadSetting` naming file and field."""
    try:
        text = Path(path).read_bytes()
        found = msgspec.json.decode(text, type=CostSet)
    except OSError as error:
        raise BadSetting(f"cannot be read ({error.strerror})", path=path) from error
    except msgspec.ValidationError as error:
        raise BadSetting(f"is no cost set: {error}", path=path) from error
    except msgspec.DecodeError as error:
        raise BadSetting(f"is no cost set: {error}", path=f"{path}:{_line_of(error, text)}") from error
    check_cost_set(found, path=path)
    return found


def _line_of(error: msgspec.DecodeError, text: bytes) -> int:
    """Where text stops being JSON; the last line, if it ends too early."""
    at = re.search(r"\(byte (\d+)\)", str(error))
    return text.count(b"\n", 0, int(at[1]) if at else len(text.rstrip())) + 1


def check_cost_set(given: CostSet, *, path: str) -> None:
    """Raises `BadSetting` for rows that contradict each other and for sizes without costs."""
    seen: set[CostKey] = set()
    for index, task in enumerate(given.tasks):
        if task.key in seen:
            raise BadSetting("this task has two costs", path=f"{path}: tasks[{index}]")
        seen.add(task.key)
    for index, size in enumerate(given.sizes):
        family(size.family, path=f"{path}: sizes[{index}].family")
        if fault := given.fault(size.workload):
            raise BadSetting(fault, path=f"{path}: sizes[{index}]")
    if 1 not in given.widths(1):
        raise BadSetting("every size needs a denoise cost at width 1", path=f"{path}: tasks")
