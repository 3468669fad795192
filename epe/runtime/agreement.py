"""Whether the ranks of a world were started with the same settings, where the ranks of a lane need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from torch.distributed import Store

from epe.config.stage import Stage
from epe.errors import BadSetting
from epe.transport.store import MEET_WITHIN_S, told_by_all

# They say which tensors a rank of a lane holds, and what it exchanges. Paths and devices may differ by host.
SHARED = (
    "factory",
    "dtype",
    "numerics",
    "parallelism.cp",
    "parallelism.vae",
    "parallelism.model",
    "parallelism.scheduler.allowed_lane_widths",
)


def check_same_settings(
    stage: Stage, *, rank: int, world_size: int, store: Store, timeout_s: float = MEET_WITHIN_S
) -> None:
    """Raises `BadSetting` for the first setting that ranks of one world have different values of, the same on all of
    them: in a lane they would wait for each other for ever, or take each other's bytes for something else.

    Each process has read a stage file or flags of its own, so they tell each other through the `store` of their world,
    and this waits until all have. Raises `StartFailed` for ranks that say nothing in time."""
    mine = msgspec.json.encode(dict(_settings(stage))).decode()
    told = told_by_all(store, "settings", mine, rank=rank, world_size=world_size, timeout_s=timeout_s)
    told[rank] = mine  # In a later life, it is held against what the others are at work with.
    settings = [msgspec.json.decode(said) for said in told]
    for path in settings[0]:
        values = {other: _written(each.get(path)) for other, each in enumerate(settings)}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{value} on rank {other}" for other, value in values.items())
            raise BadSetting(f"ranks of one world need the same, and it is {listed}", path=path)


def _settings(stage: Stage) -> Iterator[tuple[str, Any]]:
    for root in SHARED:
        value: Any = stage
        for name in root.split("."):
            value = getattr(value, name)
        if isinstance(value, msgspec.Struct):
            yield from ((f"{root}.{name}", each) for name, each in msgspec.structs.asdict(value).items())
        else:
            yield root, value


def _written(value: Any) -> str:
    """As a stage file has it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
