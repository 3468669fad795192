"""How many GPUs this process may use, told without loading CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")


def count_gpus(env: Mapping[str, str], *, driver: Path = _DRIVER) -> int:
    """NVIDIA GPUs that the driver shows, narrowed by `CUDA_VISIBLE_DEVICES`."""
    there = len(list(driver.iterdir())) if driver.is_dir() else 0
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    named = [name for name in visible.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    return min(there, len(named))
