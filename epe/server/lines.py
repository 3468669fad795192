"""What aiohttp says by itself, in lines of ours: bytes that are no HTTP are worth one line, a defect its traceback."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

from epe.telemetry.log import get_logger

_log = get_logger("server")


def aiohttp_logger() -> logging.Logger:
    """The logger to give to aiohttp; it hands on warnings and errors."""
    logger = logging.Logger("epe.server.aiohttp", level=logging.WARNING)
    logger.addHandler(_Lines())
    return logger


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | RequestPayloadError):
            _log.info("http.was_malformed", reason=" ".join(str(error).split())[:200])
        else:
            _log.error("http.crashed", message=record.getMessage(), exc_info=record.exc_info)
