"""Exact decoding over the rows of a lane: each rank computes bands of the picture, and takes from its neighbours the
rows that convolutions reach beyond them. No tiles, no seams.

A picture's bands follow from its shape alone, so every lane, whatever its width, computes the same and gives the same
bits. `decode` does it, `why_not` says of a model whether it can.
"""

from __future__ import annotations

from epe.vae.bands import Bands, bands_of
from epe.vae.decoders import decode, why_not
from epe.vae.writers import Writers, compiled_writers

__all__ = ["Bands", "Writers", "bands_of", "compiled_writers", "decode", "why_not"]
