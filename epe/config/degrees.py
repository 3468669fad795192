"""How wide a lane may be, and how many planes of tensor parallelism share a model."""

from __future__ import annotations

from epe.errors import BadSetting
from epe.families import MAX_PLANES, MAX_WIDTH


def check_degree(num_planes: int, world_size: int, *, path: str) -> None:
    """Raises `BadSetting` at `path` where planes of tensor parallelism would be too many, or not equally wide."""
    if num_planes > MAX_PLANES:
        reason = f"are more than {MAX_PLANES}, the most whose pictures are proven"
    elif world_size % num_planes:
        reason = f"do not divide a world of {world_size} ranks"
    else:
        return
    possible = ", ".join(str(each) for each in range(1, MAX_PLANES + 1) if world_size % each == 0)
    raise BadSetting(f"{num_planes} planes {reason}; possible are {possible}", path=path)


def check_width(width: int, *, path: str) -> None:
    """Raises `BadSetting` at `path` where a lane would be too wide."""
    if width > MAX_WIDTH:
        raise BadSetting(
            f"a lane of {width} ranks (in each plane) is wider than {MAX_WIDTH}, the widest whose pictures are proven",
            path=path,
        )
