"""What a bench has measured, as the costs that a service loads and the simulator reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from epe.config.stage import Stage as StageFile
from epe.planning.cost_set import CostSet, Size, TaskCost
from epe.planning.costs import CostKey
from epe.runtime.bench import Row
from epe.runtime.fingerprint import fingerprint
from epe.runtime.gpus import device_name, pick_device


def costs_of(stage: StageFile, rows: Iterable[Row], *, world_size: int = 1) -> CostSet:
    """What was measured, in the form of the file that a service of as many ranks loads and the simulator reads."""
    measured, target = tuple(rows), device_name(pick_device(stage.device, index=stage.gpu[0]))
    ranks = "one rank" if world_size == 1 else f"{world_size} ranks"
    return CostSet(
        name=stage.family.name,
        hardware=target,
        sources=(f"measured by epe bench on {ranks}",),
        fingerprint=f"{world_size} ranks + {fingerprint(stage, device=target, world_size=world_size)}",
        interpolation="tokens",
        sizes=tuple(dict.fromkeys(_size_of(stage, row) for row in measured)),
        tasks=_first_of_each(task for row in measured for task in _tasks_of(row)),
    )


def _size_of(stage: StageFile, row: Row) -> Size:
    return Size(
        name=Size.named(height=row.height, width=row.width, num_frames=row.num_frames),
        family=stage.family.name,
        height=row.height,
        width=row.width,
        num_frames=row.num_frames,
        num_steps=stage.factory_args.num_steps,
        conditions=row.conditions,
    )


def _first_of_each(tasks: Iterable[TaskCost]) -> tuple[TaskCost, ...]:
    """Lanes of several widths encode alike, and may decode on as many ranks: the narrowest one counts."""
    found: dict[CostKey, TaskCost] = {}
    for task in tasks:
        found.setdefault(task.key, task)
    return tuple(found.values())


def _tasks_of(row: Row) -> Iterator[TaskCost]:
    yield TaskCost(stage="encode", tokens=row.tokens, conditions=row.conditions, seconds=row.encode_s)
    yield TaskCost(
        stage="denoise",
        tokens=row.tokens,
        width=row.num_ranks,
        conditions=row.conditions,
        seconds=median(row.step_s),
        p90_s=max(row.step_s),
        peak_bytes=row.peak_bytes or None,
    )
    yield TaskCost(stage="decode", tokens=row.tokens, width=row.num_decoding, seconds=row.decode_s)
