"""What a stage asks of GPUs, held against those that a process sees."""

from __future__ import annotations

from epe.config.stage import Stage
from epe.config.transport import methods_of
from epe.errors import BadSetting


def check_gpus(stage: Stage, *, num_gpus: int) -> None:
    """Raises `BadSetting` for the first setting of a stage that `num_gpus` GPUs cannot do."""
    check_device(stage.device, num_gpus=num_gpus)
    num_gpus = 0 if stage.device == "cpu" else num_gpus
    if stage.numerics == "fast" and not num_gpus:
        message = "fast numerics compile blocks for a GPU, and ranks here run on the CPU; use exact"
        raise BadSetting(message, path="numerics")
    if stage.world_size > max(1, num_gpus):
        _check_without_own_gpus(stage, here="share one" if num_gpus else "run on the CPU")


def check_device(wanted: str, *, num_gpus: int) -> None:
    """Raises `BadSetting` for `cuda` where there is none."""
    if wanted == "cuda" and num_gpus == 0:
        raise BadSetting("cuda was asked for, but torch sees no GPU; use cpu or auto", path="device")


def _check_without_own_gpus(stage: Stage, *, here: str) -> None:
    cp = stage.parallelism.cp
    backends = {"agkv": cp.agkv_transport, "ulysses": cp.ulysses_transport}
    for method in methods_of(cp.attention_mode):
        if backends[method] != "auto":
            raise BadSetting(
                f"{backends[method]} needs a GPU for each rank, but ranks here {here}; use auto",
                path=f"parallelism.cp.{method}_transport",
            )
