"""What a rank on a GPU does so that lanes of every width draw the picture of one rank, and what it tries beforehand."""

from __future__ import annotations

from torch.distributed import Store

from epe.config.stage import Stage
from epe.errors import StartFailed
from epe.models.contract import Adapter
from epe.parallel.kernels import heads_of
from epe.parallel.products import unlike_widths
from epe.parallel.rotating import kernel_works
from epe.telemetry.log import get_logger
from epe.transport.store import told_by_all

log = get_logger("runtime")

# Ranks tell it when they have loaded, which may take them minutes more or less.
_LOADED_WITHIN_S = 1800.0
_THERE, _LEFT_OUT = "there", "left out"


def widths_to_leave_out(adapter: Adapter, stage: Stage) -> tuple[int, ...]:
    """Those allowed widths, ascending, at which layers of the model give other bits here, with a warning for each.

    It tries the smallest size of the warm-up (or the default one, where there is none) and the longest prompt: of few
    rows libraries make most exceptions.
    """
    family, scheduler, args = adapter.family, stage.parallelism.scheduler, stage.factory_args
    usual = (args.default_height, args.default_width, args.num_frames)
    tokens = min(
        family.num_tokens(height=height, width=width, num_frames=num_frames)
        for height, width, num_frames in stage.warmup_sizes or (usual,)
    )
    found = unlike_widths(
        adapter.pipeline.transformer,
        row_counts=(tokens, family.max_text_tokens),
        widths=[width for width in scheduler.allowed_lane_widths if width > 1],
    )
    for width, layer in sorted(found.items()):
        log.warning("width.left_out", width=width, layer=layer, reason="it gives other bits on this device")
    return tuple(sorted(found))


def left_out_by_any(widths: tuple[int, ...], *, rank: int, world_size: int, store: Store) -> tuple[int, ...]:
    """The widths, ascending, that any rank of a world leaves out, where no planner knows it: a rank that left one out
    alone would be waited for. This waits until all have told theirs; raises `StartFailed` for those that do not."""
    mine = " ".join(map(str, widths))
    told = told_by_all(store, "widths", mine, rank=rank, world_size=world_size, timeout_s=_LOADED_WITHIN_S)
    return tuple(sorted({int(width) for each in told for width in each.split()}))


def check_kernels(adapter: Adapter, *, rank: int, world_size: int, store: Store) -> None:
    """See that all ranks of a world have the kernel of rotation, or none: it gives other last bits than what stands for
    it. This waits until all have told; raises `StartFailed` where they differ, on all of them."""
    _, depth = heads_of(adapter.pipeline.transformer.config)
    # What a rank lacks it lacks for all norms.
    mine = _THERE if kernel_works(depth, depth) else _LEFT_OUT
    told = told_by_all(store, "kernels", mine, rank=rank, world_size=world_size, timeout_s=_LOADED_WITHIN_S)
    told[rank] = mine  # In a later life it may be another one.
    if len(set(told)) > 1:
        without = ", ".join(str(other) for other, word in enumerate(told) if word == _LEFT_OUT)
        raise StartFailed(
            f"ranks {without} have not the kernel of rotation that others have, so rows would have other last bits; "
            "their log says why (kernel.left_out): mend it, or use numerics: exact"
        )
