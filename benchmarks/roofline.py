"""The least time that a step can take on an H200: its arithmetic at the rates that large kernels reach there, or its
weights through the memory."""

from __future__ import annotations

from collections.abc import Callable

from torch.utils.flop_counter import FlopCounterMode

# Operations a second of matrix products in bfloat16, as measured on the card of these runs, and of attention, which is
# an assumption above what was seen (546 to 582 TFLOP/s); bytes a second, measured.
PRODUCTS, ATTENTION, MEMORY = 790e12, 600e12, 4.3e12


def least_ms(step: Callable[[], object], *, read_bytes: int) -> float:
    """Of `step`, which is run once to count its operations; `read_bytes` are those of all weights that it reads."""
    with FlopCounterMode(display=False) as counter:
        step()
    counts = {str(name): number for name, number in counter.get_flop_counts()["Global"].items()}
    attention = sum(number for name, number in counts.items() if "attention" in name)
    products = sum(counts.values()) - attention
    return 1e3 * max(products / PRODUCTS + attention / ATTENTION, read_bytes / MEMORY)
