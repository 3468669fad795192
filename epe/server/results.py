"""Finished files that clients fetch by URL: in memory, bounded, and gone after a while or with the service."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from epe.errors import TaskFailed
from epe.messages import Stage

MAX_AGE_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Kept:
    file: bytes
    media_type: str
    put_s: float


class Results:
    """At most `limit_bytes`, the oldest go first. A name cannot be guessed: whoever has it may have the file."""

    def __init__(self, *, limit_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def put(self, file: bytes, *, media_type: str) -> str:
        """Keep a file; returns its name. Raises `TaskFailed` for one that would not fit alone."""
        if len(file) > self.limit_bytes:
            message = (
                f"the file has {len(file)} bytes, and service.results_mb allows {self.limit_bytes} in all"
            )
            raise TaskFailed(message, stage=Stage.FINISH)
        name = f"{secrets.token_urlsafe(24)}.{media_type.rpartition('/')[2]}"
        self._kept[name] = _Kept(file, media_type, self._clock())
        self.num_bytes += len(file)
        self._forget()
        return name

    def get(self, name: str) -> tuple[bytes, str] | None:
        """A file and its type, as long as it is kept."""
        self._forget()
        kept = self._kept.get(name)
        return None if kept is None else (kept.file, kept.media_type)

    def _forget(self) -> None:
        oldest_s = self._clock() - MAX_AGE_S
        while self._kept:
            name, first = next(iter(self._kept.items()))
            if self.num_bytes <= self.limit_bytes and first.put_s >= oldest_s:
                return
            del self._kept[name]
            self.num_bytes -= len(first.file)
