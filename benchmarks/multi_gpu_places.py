"""What `benchmarks.multi_gpu_page` says of ranks that see the GPUs of a host differently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.multi_gpu_lanes import table

Line = dict[str, Any]

ABOUT = """\
## Ranks that see one GPU each

    RANK=0 WORLD_SIZE=2 CUDA_VISIBLE_DEVICES=0 python -m epe generate ...      # and RANK=1 with 1

As launchers start them: each rank sees its own GPU alone, or both see both, or both the same one, where lanes exchange
over gloo and the log warns. The demo model, {size}, {steps} steps, guidance on both ranks; other work ran on these
GPUs, so the seconds only say that none waited."""


def places(lines: list[Line]) -> Iterator[str]:
    found = [line for line in lines if line.get("case") == "places"]
    yield ABOUT.format(size=found[0]["size"], steps=found[0]["steps"])
    yield ""
    heads = ("GPUs that rank 0 sees", "rank 1", "exchanges over", "s", "same file")
    rows = (
        [*line["visible"], line["backend"], f"{line['seconds']:.2f}", _same(line, found[0])] for line in found
    )
    yield from table(heads, rows)


def _same(line: Line, other: Line) -> str:
    return "=" if line["sha256"] == other["sha256"] else "differ"
