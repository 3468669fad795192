"""How many GPUs this process may use, told without loading CUDA, and whether they are enough for a stage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epe.config.gpus import check_gpus
from epe.config.stage import Stage
from epe.errors import BadSetting
from epe.launch.environment import Placement, read_placement

_DRIVER = Path("/proc/driver/nvidia/gpus")
_ASK_TORCH = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
_ASK_WITHIN_S = 120.0


def count_gpus(env: Mapping[str, str], *, driver: Path = _DRIVER) -> int:
    """NVIDIA GPUs that the driver shows, narrowed by `CUDA_VISIBLE_DEVICES`."""
    there = len(list(driver.iterdir())) if driver.is_dir() else 0
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    named = [name for name in visible.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    return min(there, len(named))


def ask_torch(env: Mapping[str, str]) -> int | None:
    """GPUs that torch sees in this environment; None if it does not say. It takes seconds, in a process of its own."""
    command = (sys.executable, "-c", _ASK_TORCH)
    try:
        answer = subprocess.run(
            command, env=dict(env), capture_output=True, text=True, timeout=_ASK_WITHIN_S, check=True
        )
        return int(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def check_enough(
    stage: Stage,
    env: Mapping[str, str],
    *,
    driver: Path = _DRIVER,
    ask: Callable[[Mapping[str, str]], int | None] = ask_torch,
) -> None:
    """See that the GPUs that this process sees can do what a stage asks of them. Raises `BadSetting`."""
    num_ranks = _num_ranks(stage, env)
    try:
        check_gpus(stage, num_gpus=count_gpus(env, driver=driver), num_ranks=num_ranks)
    except BadSetting:
        # A driver may be hidden or of another maker. What torch says is what the ranks will see; if it says nothing,
        # they say more than this process could.
        if (num_gpus := ask(env)) is not None:
            check_gpus(stage, num_gpus=num_gpus, num_ranks=num_ranks)


def device_of(gpu: Sequence[int], placement: Placement, env: Mapping[str, str], *, rank: int) -> int:
    """The index of a rank's GPU among those that it sees: its entry of the stage's `gpu`, or the entry of its place on
    its host, where there are several, as each counts its own; 0 where the launcher has left it one."""
    if _is_narrowed(placement, env):
        return 0
    return gpu[rank if placement.launcher == "none" else placement.local_rank]


def _is_narrowed(placement: Placement, env: Mapping[str, str]) -> bool:
    """Whether a launcher has left this process one GPU, of its own, of those of its host."""
    visible = env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return (
        placement.launcher != "none" and placement.world_size > 1 and len(visible) == 1 and visible[0] != ""
    )


def _num_ranks(stage: Stage, env: Mapping[str, str]) -> int:
    """How many ranks the GPUs are for that this process sees, at least: what a launcher does not say, ranks find out
    when they meet."""
    placement = read_placement(env)
    if placement.launcher == "none":
        return stage.world_size
    return 1 if _is_narrowed(placement, env) else placement.local_world_size or 1
