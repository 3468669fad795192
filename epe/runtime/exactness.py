"""What a rank on a GPU does so that lanes of every width draw the picture of one rank, and what it tries beforehand."""

from __future__ import annotations

from epe.config.stage import Stage
from epe.models.contract import Adapter
from epe.parallel.products import unlike_widths
from epe.telemetry.log import get_logger

log = get_logger("runtime")


def widths_to_leave_out(adapter: Adapter, stage: Stage) -> tuple[int, ...]:
    """Those allowed widths, ascending, at which layers of the model give other bits here, with a warning for each.

    It tries the smallest size of the warm-up and the longest prompt: of few rows libraries make most exceptions.
    """
    family, scheduler = adapter.family, stage.parallelism.scheduler
    tokens = min(
        family.num_tokens(height=height, width=width, num_frames=num_frames)
        for height, width, num_frames in stage.warmup_shapes
    )
    found = unlike_widths(
        adapter.pipeline.transformer,
        row_counts=(tokens, family.max_text_tokens),
        widths=[width for width in scheduler.allowed_lane_widths if width > 1],
    )
    for width, layer in sorted(found.items()):
        log.warning("width.left_out", width=width, layer=layer, reason="it gives other bits on this device")
    return tuple(sorted(found))
