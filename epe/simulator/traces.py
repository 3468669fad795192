"""Traces: one JSON object a line, one line a request, in order of arrival (docs/trace-format.md).

The lines are those of `epe.planning.trace_line`, which the service writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from epe.errors import BadSetting
from epe.families import family
from epe.geometry import nearest_multiples
from epe.planning.costs import CostTable, Workload
from epe.planning.trace_line import TraceLine
from epe.simulator.arrivals import Arrival, best_s, hashed_id, request_of, single_s
from epe.simulator.costs import CostSet, Size


def read_trace(path: str) -> tuple[TraceLine, ...]:
    """All lines of a file; raises `BadSetting` naming line and field."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"cannot be read ({error})", path=path) from error
    lines = tuple(_lines(text, path))
    if not lines:
        raise BadSetting("holds no request", path=path)
    return lines


def trace_arrivals(
    lines: Sequence[TraceLine], cost_set: CostSet, *, path: str, world_size: int, seed: int = 0
) -> tuple[Arrival, ...]:
    """The requests of a trace on the machine of a cost set; raises `BadSetting` for one that it does not cover."""
    sizes = [_size(line, cost_set, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    costs = cost_set.table({size.workload for size in sizes}, world_size=world_size)
    arrivals: list[Arrival] = []
    for line, size in zip(lines, sizes, strict=True):
        for _ in range(line.batch):
            arrivals.append(_arrival(line, size, costs, hashed_id(seed, len(arrivals))))
    return tuple(arrivals)


def _lines(text: str, path: str) -> Iterator[TraceLine]:
    decoder = msgspec.json.Decoder(TraceLine)
    last_s = 0.0
    for number, raw in enumerate(text.splitlines(), start=1):
        try:
            line = decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise BadSetting(_in_words(error), path=f"{path}:{number}") from error
        if line.arrival_s < last_s:
            raise BadSetting(
                f"arrival_s: {line.arrival_s:g} is before the {last_s:g} of an earlier line; sort the lines by it",
                path=f"{path}:{number}",
            )
        last_s = line.arrival_s
        yield line


def _in_words(error: msgspec.DecodeError) -> str:
    """The field first: `arrival_s: expected float >= 0.0`."""
    what, _, where = str(error).partition(" - at ")
    field = re.sub(r"[`$.]", "", where)
    return f"{field}: {what[0].lower()}{what[1:]}" if field else what


def _size(line: TraceLine, cost_set: CostSet, path: str) -> Size:
    like = _like(line, cost_set, path)
    kind = family(like.family)
    for field, pixels in (("height", line.height), ("width", line.width)):
        if pixels % kind.side_multiple:
            below, above = nearest_multiples(pixels, kind.side_multiple)
            raise BadSetting(
                f"{field}: {pixels} is not a multiple of {kind.side_multiple}; nearest are {below} and {above}",
                path=path,
            )
    if not kind.frames.allows(line.frames):
        below, above = kind.frames.nearest(line.frames)
        raise BadSetting(
            f"frames: {kind.title} has no {line.frames} frames; nearest are {below} and {above}", path=path
        )
    size = _named(line, like, cost_set)
    if fault := cost_set.fault(size.workload):
        raise BadSetting(f"height, width, frames: {fault}", path=path)
    return size


def _like(line: TraceLine, cost_set: CostSet, path: str) -> Size:
    """A size of the same model, for its family and guidance."""
    models = {size.model: size for size in cost_set.sizes}
    if line.model in models:
        return models[line.model]
    if not line.model and len(models) == 1:
        return next(iter(models.values()))
    given = f"{line.model!r} is not" if line.model else "must be given:"
    raise BadSetting(f"model: {given} one of {', '.join(sorted(models))}", path=path)


def _named(line: TraceLine, like: Size, cost_set: CostSet) -> Size:
    """A request is of the cost set's class of the same shape, or of a class of its own."""
    conditions = line.conditions or like.conditions
    shape = (like.model, line.height, line.width, line.frames)
    for size in cost_set.sizes:
        if (size.model, size.height, size.width, size.num_frames) == shape:
            return msgspec.structs.replace(size, conditions=conditions, num_steps=line.steps)
    name = Size.named(height=line.height, width=line.width, num_frames=line.frames)
    return Size(
        name=f"{like.model} {name}".strip(),
        family=like.family,
        model=like.model,
        height=line.height,
        width=line.width,
        num_frames=line.frames,
        num_steps=line.steps,
        conditions=conditions,
    )


def _arrival(line: TraceLine, size: Size, costs: CostTable, name: str) -> Arrival:
    workload: Workload = size.workload
    return Arrival(
        arrival_s=line.arrival_s,
        request=request_of(
            name,
            height=line.height,
            width=line.width,
            num_frames=line.frames,
            num_steps=line.steps,
            conditions=size.conditions,
            deadline_s=line.deadline_s,
            priority=line.priority,
            client_id=line.client_id,
            expire=line.on_deadline == "expire",
        ),
        workload=workload,
        size=size.name,
        single_s=single_s(costs, workload, num_steps=line.steps),
        best_s=best_s(costs, workload, num_steps=line.steps),
    )
