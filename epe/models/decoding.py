"""How the latents of a family become what its VAE gives: whole on one rank, or in bands over a lane."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch

from epe import vae as bands
from epe.graphs import Graphs
from epe.telemetry.log import get_logger
from epe.transport.exchange import Exchange

log = get_logger("models")


def decoded(
    vae: Any, latents: torch.Tensor, exchange: Exchange | None, *, graphs: Graphs | None = None
) -> torch.Tensor | None:
    """What `vae` makes of latents: as diffusers does it without an `exchange`, else in bands over its lane, and then on
    the first rank alone, None on the others; with `graphs`, captured.

    A rank that is alone and out of memory does it again with bands that rest in host memory: the same bits in less.
    """
    if exchange is None:
        try:
            return _whole(vae, latents)
        except torch.OutOfMemoryError as error:
            if bands.why_not(vae) is not None:
                raise
            hint = "a decode in bands needs less: set parallelism.vae.enabled: true in the stage file"
            raise torch.OutOfMemoryError(f"{error}; {hint}") from error
    if reason := bands.why_not(vae):
        _say(type(vae).__name__, reason)
        return _whole(vae, latents) if exchange.position == 0 else None
    try:
        if graphs is None:
            return bands.decode(vae, latents, exchange)
        return graphs.run(partial(_in_bands, vae), exchange, (latents,), {"of": "decode"})
    except torch.OutOfMemoryError:
        if exchange.width > 1:
            raise
    # Outside of the handler: what was on the way is free by now.
    torch.cuda.empty_cache()
    return bands.decode(vae, latents, exchange, home=torch.device("cpu"))


def compile_decoder(vae: Any, *, backend: str = "inductor") -> None:
    """Compile the decoder of a VAE of pictures, with its channels last in memory, where decodes are whole: bands have
    layers of their own. Changes the last bits."""
    vae.decoder.to(memory_format=torch.channels_last)
    vae.decoder.forward = torch.compile(vae.decoder.forward, dynamic=True, backend=backend)


def _in_bands(
    vae: Any, exchange: Exchange, given: tuple[torch.Tensor], _: dict[str, str]
) -> torch.Tensor | None:
    """As a pass that may be captured."""
    return bands.decode(vae, given[0], exchange)


def _whole(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = vae.decode(latents, return_dict=False)[0]
    return whole


@lru_cache
def _say(model: str, reason: str) -> None:
    """Once: every decode would have it in the log."""
    log.warning("decode.whole", model=model, reason=reason)
