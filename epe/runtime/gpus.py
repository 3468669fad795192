"""The device of a rank, and whether every rank of its world has a GPU to itself."""

from __future__ import annotations

import torch
from torch.distributed import Store

from epe.config.gpus import check_device
from epe.errors import StartFailed
from epe.telemetry.log import get_logger
from epe.transport.store import MEET_WITHIN_S, told_by_all

log = get_logger("runtime")

CPU, SLICE = "the CPU", "a slice of a GPU"


def num_gpus() -> int:
    """Those that this process can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def pick_device(wanted: str, *, index: int) -> torch.device:
    """`cuda` or `cpu` as the stage file wants it; `auto` takes a GPU where there is one. Ranks beyond the
    number of GPUs share them. Raises `BadSetting` for `cuda` where there is none."""
    there = num_gpus()
    check_device(wanted, num_gpus=there)
    if wanted == "cpu" or there == 0:
        return torch.device("cpu")
    return torch.device("cuda", index % there)


def device_name(target: torch.device) -> str:
    """For people: `cpu`, or the name of the GPU."""
    return torch.cuda.get_device_name(target) if target.type == "cuda" else "cpu"


def place_of(target: torch.device) -> str:
    """What a rank has of the world's GPUs, by a name that is the same in every process on every host. Slices of a GPU
    (MIG) are all one place: NCCL takes them for the same GPU."""
    if target.type != "cuda":
        return CPU
    gpu = torch.cuda.get_device_properties(target)
    return SLICE if " MIG " in gpu.name else f"GPU {gpu.uuid}"


def warn_of_sharing(target: torch.device) -> None:
    """Of a rank among several, not each of which has a GPU to itself."""
    if target.type == "cuda":
        log.warning(
            "gpu.shared",
            gpu=target.index,
            num_gpus=num_gpus(),
            reason="not each rank has a GPU to itself: lanes exchange over gloo, and no pass is captured",
        )


def each_has_its_gpu(
    place: str, *, rank: int, world_size: int, store: Store, timeout_s: float = MEET_WITHIN_S
) -> bool:
    """Whether each rank of a world has a GPU to itself, as NCCL needs it; the answer is the same on all of them.

    No count of GPUs or of ranks a host could tell it: a process sees those of its own host, or only one. So the ranks
    tell each other their places through the `store` of their world, and this waits until all have. A later life of
    a rank hears what its first life heard. Raises `StartFailed` for ranks that say nothing in time, and for a later
    life in another place, which another rank may have."""
    told = told_by_all(store, "place", place, rank=rank, world_size=world_size, timeout_s=timeout_s)
    if told[rank] != place:
        raise StartFailed(f"rank {rank} was on {told[rank]} when its world began, and now finds {place}")
    return not {CPU, SLICE} & set(told) and len(set(told)) == world_size
