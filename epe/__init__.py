"""EPE, the Elastic Parallel Engine: a resident serving runtime for Diffusion Transformers.

Importing this package imports nothing heavy; the names below load their rooms when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epe.runtime.embedded import EmbeddedDiffusionRuntime as EmbeddedDiffusionRuntime

__version__ = "0.1.0"

__all__ = ["EmbeddedDiffusionRuntime", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "EmbeddedDiffusionRuntime":
        from epe.runtime.embedded import EmbeddedDiffusionRuntime

        return EmbeddedDiffusionRuntime
    raise AttributeError(f"module 'epe' has no attribute {name!r}")
