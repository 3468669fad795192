"""Arrival times of a real trace: Alibaba's GenTD26 (alibaba/clusterdata, cluster-trace-v2026-GenAI), by path.

It has no sizes and its file is not shipped; without it, `epe.simulator.processes.evening` has its statistics.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from epe.errors import BadSetting

COLUMN = "gmt_create"


def read_times(path: str) -> list[float]:
    """Arrival times in seconds, ascending, from a CSV file (or its gzip) with a column `gmt_create`."""
    try:
        raw = Path(path).read_bytes()
        text = (gzip.decompress(raw) if path.endswith(".gz") else raw).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadSetting(f"cannot be read ({error})", path=path) from error
    rows = csv.DictReader(text.splitlines())
    if COLUMN not in (rows.fieldnames or ()):
        raise BadSetting(f"has no column {COLUMN!r}", path=path)
    return sorted(_times(rows, path))


def busy_window(times_s: list[float], *, num: int, index: int, path: str) -> list[float]:
    """Gaps of `num` arrivals in a row: of the windows that stand side by side, the densest for index 0, and so on
    through the denser half, where no night is inside."""
    starts = range(0, len(times_s) - num, num)
    if not starts:
        raise BadSetting(f"has {len(times_s)} requests; more than {num} are needed", path=path)
    dense = sorted(starts, key=lambda start: times_s[start + num] - times_s[start])
    kept = dense[: max(1, len(dense) // 2)]
    start = kept[index % len(kept)]
    return [later - earlier for earlier, later in pairwise(times_s[start : start + num + 1])]


def _times(rows: Iterable[dict[str, str]], path: str) -> Iterable[float]:
    for number, row in enumerate(rows, start=2):
        try:
            yield datetime.fromisoformat(row[COLUMN]).timestamp()
        except (TypeError, ValueError) as error:  # a short row has no such field
            raise BadSetting(f"{COLUMN}: {error}", path=f"{path}:{number}") from error
