"""``--log-format`` and ``--log-level``: log records on standard error, as text or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
from typing import Final

from sej.cli.shared.units import iso_time

_NS: Final = 10**9


class _Text(logging.Formatter):
    """Time, level, logger and message; the lines of an exception after them."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 the name in logging
        return f"{_time(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}"


class _Json(logging.Formatter):
    """One JSON object: ``time, level, logger, message``, and ``error`` with the lines of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        row = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            row["error"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False)


def configure(form: str, level: str) -> None:
    """Write the log records of this process to standard error, instead of any earlier handlers of the root logger.

    Args:
        form: ``"text"`` or ``"json"``.
        level: ``"debug"``, ``"info"``, ``"warning"`` or ``"error"``; records below it are dropped.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter({"text": _Text, "json": _Json}[form]())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def _time(record: logging.LogRecord) -> str | None:
    return iso_time(int(record.created * _NS) // 1000 * 1000)
