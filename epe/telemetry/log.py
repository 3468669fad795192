"""How the system speaks: one line an event, `noun.verb_past`, all values as fields, on the error stream.

Importing this module costs structlog; a command that only prints its help imports neither.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from epe.telemetry.scribe import Scribe

Level = Literal["debug", "info", "warning", "error"]

# As structlog's settings are, it is that of the process.
_scribe: Scribe | None = None


def configure(
    *,
    json: bool | None = None,
    level: Level = "info",
    node: str | None = None,
    stream: TextIO | Scribe | None = None,
) -> None:
    """Decide once per process how lines look: for people on a terminal, else one JSON object a line.

    `json` overrides that choice; `node` (`leader`, `r0`, ...) is added to every line; they go to `stream`, by default
    the error stream, which may keep its writer waiting.
    """
    global _scribe
    _scribe = stream if isinstance(stream, Scribe) else None
    as_json = not sys.stderr.isatty() if json is None else json
    structlog.configure(
        processors=[*_common(node), *(_json() if as_json else _console())],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        # One write a line: ranks share the parent's error stream, and halves of lines must not mix.
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, stream or sys.stderr)),
        cache_logger_on_first_use=False,
    )


def configure_unless_done(*, level: Level) -> None:
    """As `configure`, for a host that has no settings of its own: structlog's print every line to stdout."""
    if not structlog.is_configured():
        configure(level=level)


def make_scribe(node: str) -> Scribe:
    """One for the error stream; lines that are lost are told as lines are."""

    def tell_lost(num_lost: int) -> str:
        told = {"num_lost": num_lost, "node": node, "room": "telemetry"}
        event = {**told, "event": "log.lines_lost", "level": "warning"}
        return _to_json(_stamped(None, "warning", event))

    return Scribe(sys.stderr.fileno(), tell_lost=tell_lost)


def drain() -> None:
    """Have a scribe write what was said, but not for long: for a process that is about to end."""
    if _scribe is not None:
        _scribe.drain()


def get_logger(room: str) -> FilteringBoundLogger:
    """The logger of one room; it may be made at import time, before `configure`."""
    return cast(FilteringBoundLogger, structlog.get_logger(room=room))


_stamped = structlog.processors.TimeStamper(fmt="iso", utc=True)


def _common(node: str | None) -> list[Processor]:
    def name_node(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        if node is not None:
            event.setdefault("node", node)
        return event

    return [
        structlog.processors.add_log_level,
        _stamped,
        name_node,
    ]


def _json() -> list[Processor]:
    # Tracebacks as text: structlog's dictionaries of them carry local variables, and so prompts.
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]


def _console() -> list[Processor]:
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]


def _to_json(event: object, **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()
