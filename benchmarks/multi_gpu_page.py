"""`docs/results/multi-gpu.md` from the lines of `benchmarks.multi_gpu`, `benchmarks.h200_families` and
`benchmarks.elastic_service`: later runs replace the same cases of earlier ones.

    python -m benchmarks.multi_gpu_page RUN.jsonl ... > docs/results/multi-gpu.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.multi_gpu_death import killed
from benchmarks.multi_gpu_lanes import parity, steps
from benchmarks.multi_gpu_places import places
from benchmarks.multi_gpu_service import service
from benchmarks.multi_gpu_simulated import simulated
from benchmarks.multi_gpu_traffic import decodes, groups, moves
from benchmarks.multi_gpu_widths import widths

Line = dict[str, Any]

COMMANDS = (
    "python -m benchmarks.h200_families --cases lane moves > PARITY.jsonl",
    "python -m benchmarks.multi_gpu > LANES.jsonl",
    "python -m benchmarks.elastic_service --family wan --logs COSTS > SERVICE.jsonl",
    'python -m benchmarks.elastic_service --policies "static SP2" --loads --kill >> SERVICE.jsonl',
    "EPE_AGKV_TRANSPORT=fast python -m benchmarks.elastic_service ...      # the same over `fast`",
    "python -m benchmarks.elastic_foretold COSTS > FORETOLD.jsonl",
    "python -m benchmarks.elastic_scatter COSTS SERVICE.jsonl >> FORETOLD.jsonl",
    "python -m benchmarks.elastic_as_if COSTS > AS_IF.jsonl",
    "python -m benchmarks.multi_gpu_page PARITY.jsonl LANES.jsonl SERVICE.jsonl FORETOLD.jsonl AS_IF.jsonl",
)

NOT_RUN = """## Not run

Four and eight GPUs were not to be had: bits at widths of 3, 4 and 8 over NCCL (over gloo, as processes that share
one GPU, those of 4 are on the page of [every family](h200-families.md)), steps and decodes at these widths, static
SP4 and DP4, and lanes that work beside each other. The programs take more ranks (`--world 3`, 4, 8; that of the
families has a lane for each width that there are ranks for), and have run with small models on three, four and eight
CPU ranks, with equal bits at every width. A static policy had no time left for the cell of 101 requests. Graphs with
NCCL's calls in them do not exist here: captured steps are cut where a lane exchanges."""


def read(paths: Iterable[Path]) -> list[Line]:
    """All lines in order, each with the setting of its run under `setting`."""
    lines, setting = [], {}
    for path in paths:
        for text in path.read_text().splitlines():
            if text.startswith("{"):
                line = json.loads(text)
                if line.get("case") == "setting":
                    setting = line
                else:
                    lines.append({**line, "setting": setting})
    return lines


def page(lines: list[Line]) -> str:
    """The whole page."""
    setting = lines[0]["setting"]
    parts = [
        "# Lanes over several GPUs",
        "",
        *(f"    {command}" for command in COMMANDS),
        "",
        f"{setting['num_gpus']} {setting['gpu']} of one host, a rank each, NCCL without NVLink multicast; Python "
        f"{setting['python']}, torch {setting['torch']}, diffusers {setting['diffusers']}. Models of real size with "
        "random weights in bfloat16. Of all ranks of a lane the slowest counts.",
    ]
    for section in (parity, places, steps, widths, groups, moves, decodes, service, simulated, killed):
        parts += ["", *section(lines)]
    return "\n".join([*parts, "", NOT_RUN, ""])


def main() -> None:
    sys.stdout.write(page(read(map(Path, sys.argv[1:]))))


if __name__ == "__main__":
    main()
