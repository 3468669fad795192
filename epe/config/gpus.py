"""What a stage asks of GPUs, held against those that a process sees."""

from __future__ import annotations

from epe.config.stage import Stage
from epe.config.transport import methods_of
from epe.errors import BadSetting


def check_gpus(stage: Stage, *, num_gpus: int, num_ranks: int) -> None:
    """Raises `BadSetting` for the first setting of a stage that `num_gpus` GPUs cannot do for the `num_ranks` of its
    ranks which they are for."""
    check_device(stage.device, num_gpus=num_gpus)
    num_gpus = 0 if stage.device == "cpu" else num_gpus
    if stage.numerics == "fast" and not num_gpus:
        message = "fast numerics compile blocks for a GPU, and ranks here run on the CPU; use exact"
        raise BadSetting(message, path="numerics")
    if num_gpus < num_ranks:
        check_without_own_gpus(stage, because="ranks here " + ("share one" if num_gpus else "run on the CPU"))


def check_device(wanted: str, *, num_gpus: int) -> None:
    """Raises `BadSetting` for `cuda` where there is none."""
    if wanted == "cuda" and num_gpus == 0:
        raise BadSetting("cuda was asked for, but torch sees no GPU; use cpu or auto", path="device")


def check_without_own_gpus(stage: Stage, *, because: str) -> None:
    """Raises `BadSetting` for a transport that cannot be had. A rank alone exchanges nothing."""
    cp = stage.parallelism.cp
    backends = {"agkv": cp.agkv_transport, "ulysses": cp.ulysses_transport}
    for method in methods_of(cp.attention_mode) if stage.world_size > 1 else ():
        if backends[method] != "auto":
            raise BadSetting(
                f"{backends[method]} needs a GPU for each rank, but {because}; use auto",
                path=f"parallelism.cp.{method}_transport",
            )
