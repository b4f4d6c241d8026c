"""Writes log records to stderr, one line each: as text for people or as JSON objects for programs.

Used by the store and the command line if ``log.format`` is set; otherwise logging is left to the program. A record's
text is escaped, so that none of it can start another line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tierstore.sections import LogConfig

__all__ = ["EVERY_LOGGER", "JsonLines", "TextLines", "write_log"]

EVERY_LOGGER = ""
"""Those of other libraries too; for a process that is all ours."""

_LOGGER = "tierstore"
_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One object: ``time`` (UTC), ``level``, ``logger``, ``thread``, ``message``, extras, and an exception's trace."""

    def format(self, record: logging.LogRecord) -> str:
        """One object."""
        fields: dict[str, object] = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info is not None and record.exc_info[1] is not None:
            fields["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
            fields["trace"] = self.formatException(record.exc_info)
        extras = {name: value for name, value in vars(record).items() if name not in _OWN_ATTRIBUTES}
        return json.dumps({**extras, **fields}, default=str)


class TextLines(logging.Formatter):
    """The same for a person: time, level, logger, message; a trace follows indented."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the lines of a trace."""
        message = record.getMessage().replace("\n", "\\n").replace("\r", "\\r")
        line = f"{_utc(record)} {record.levelname.lower():7} {record.name}: {message}"
        if record.exc_info is None or record.exc_info[1] is None:
            return line
        return "\n    ".join([line, *self.formatException(record.exc_info).splitlines()])


class _LogLines(logging.StreamHandler[TextIO]):
    """The handler that `write_log` installs, as a class of its own so that it finds it again."""


def write_log(settings: LogConfig, name: str = _LOGGER) -> None:
    """Write the records of a logger and its children to stderr, instead of passing them to the program's handlers.

    A second call, for another store of the process, replaces the format and writes no line twice. Does nothing if
    ``log.format`` is not set.
    """
    if settings.format is None:
        return
    logger = logging.getLogger(name)
    for handler in [handler for handler in logger.handlers if isinstance(handler, _LogLines)]:
        logger.removeHandler(handler)
    lines = _LogLines(sys.stderr)
    lines.setFormatter(JsonLines() if settings.format == "json" else TextLines())
    logger.addHandler(lines)
    logger.setLevel(settings.level.upper())
    logger.propagate = False


def _utc(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
