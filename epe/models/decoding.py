"""How the latents of a family become what its VAE gives: whole on one rank, or in bands over a lane."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch

from epe import vae as bands
from epe.graphs import Graphs
from epe.telemetry.log import get_logger
from epe.transport.exchange import Exchange, SoloExchange
from epe.vae import Writers

log = get_logger("models")


def decoded(
    vae: Any,
    latents: torch.Tensor,
    exchange: Exchange | None,
    *,
    graphs: Graphs | None = None,
    writers: Writers | None = None,
) -> torch.Tensor | None:
    """What `vae` makes of latents: as diffusers does it without an `exchange`, else in bands over its lane, and then on
    the first rank alone, None on the others; with `graphs`, captured. With compiled `writers` what is decoded without
    an `exchange` is one band.

    A rank that is alone and out of memory does it again with bands that rest in host memory: the same bits in less,
    but for those of one band.
    """
    reason = bands.why_not(vae)
    if exchange is None and (writers is None or reason):
        return _as_diffusers(vae, latents, fits_bands=reason is None)
    if exchange is not None and reason:
        _say(type(vae).__name__, reason)
        return _whole(vae, latents) if exchange.position == 0 else None
    lane = exchange or SoloExchange()
    work = partial(_in_bands, vae, writers=writers, is_one=exchange is None)
    try:
        if graphs is None:
            return work(lane, (latents,), {})
        return graphs.run(work, lane, (latents,), {"of": "decode"})
    except torch.OutOfMemoryError:
        if lane.width > 1:
            raise
    # Outside of the handler: what was on the way is free by now.
    torch.cuda.empty_cache()
    return bands.decode(vae, latents, lane, home=torch.device("cpu"), writers=writers)


def _in_bands(
    vae: Any,
    exchange: Exchange,
    given: tuple[torch.Tensor],
    _: dict[str, str],
    *,
    writers: Writers | None,
    is_one: bool,
) -> torch.Tensor | None:
    """As a pass that may be captured."""
    rows = given[0].shape[-2]
    cut = bands.bands_of(rows, min_rows=rows) if is_one else None
    return bands.decode(vae, given[0], exchange, bands=cut, writers=writers)


def _as_diffusers(vae: Any, latents: torch.Tensor, *, fits_bands: bool) -> torch.Tensor:
    try:
        return _whole(vae, latents)
    except torch.OutOfMemoryError as error:
        if not fits_bands:
            raise
        hint = "a decode in bands needs less: set parallelism.vae.enabled: true in the stage file"
        raise torch.OutOfMemoryError(f"{error}; {hint}") from error


def _whole(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = vae.decode(latents, return_dict=False)[0]
    return whole


@lru_cache
def _say(model: str, reason: str) -> None:
    """Once: every decode would have it in the log."""
    log.warning("decode.whole", model=model, reason=reason)
