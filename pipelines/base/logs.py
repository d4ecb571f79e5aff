"""Log lines of a run: every process collects its lines with their context, and the driver writes them."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from plumbline.operators.base.errors import ConfigError

LOGGER_NAME = "plumbline"
"""Name of the root logger of a run's log."""
LOGGING_OFF_LEVEL = 100
"""A log level above all other levels, which disables a logger."""
MAX_WAIT_SECONDS = 1.0
"""Seconds since a worker's last report after which a new line is sent at once, together with all earlier lines."""
LogLine = Mapping[str, Any]
"""A log line as plain values."""
_LOG_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("about", default={})  # noqa: B039  # replaced, never modified


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """Settings for the log of a run, which the driver writes line by line for all processes."""

    format: Literal["text", "json"] | None = None
    """Format of a line; null writes no log."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""
    file: str | None = None
    """File on the driver's machine; lines are appended to it. null uses stderr."""

    def __post_init__(self) -> None:
        if self.file is not None and "://" in self.file:
            raise ConfigError(
                f"log.file: expected a file on this machine, got {self.file!r}; copy it when the run has ended"
            )


@contextmanager
def add_log_fields(**fields: str) -> Iterator[None]:
    """Add fields such as `node="answers:vqa"` to every line that is logged within the context."""
    token = _LOG_FIELDS.set({**_LOG_FIELDS.get(), **fields})
    try:
        yield
    finally:
        _LOG_FIELDS.reset(token)


def get_field(field: str) -> str:
    """Return the value of a field that was set with `add_log_fields`; empty if it is not set."""
    return _LOG_FIELDS.get().get(field, "")


def make_log_entry(record: logging.LogRecord) -> dict[str, Any]:
    """Return a log record as plain values: time, level, message, exception type, and the fields of `add_log_fields`."""
    exception = {"exception": record.exc_info[0].__name__} if record.exc_info and record.exc_info[0] else {}
    line = {"time": record.created, "level": record.levelname.lower(), "message": record.getMessage()}
    return line | {**_LOG_FIELDS.get(), **getattr(record, "fields", {})} | exception


def find_level() -> int | None:
    """Return the lowest level that this process logs; None if it writes no log."""
    level = logging.getLogger(LOGGER_NAME).level
    return level if 0 < level < LOGGING_OFF_LEVEL else None


def route_lines_to_handler(handler: logging.Handler, level: int) -> None:
    """Send all lines of our loggers at or above a level to this handler, and to no other."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)


class LogForwarder(logging.Handler):
    """Handler that collects a worker's lines for its next report to the driver.

    The handler sends the lines immediately after a warning, or if the last report was more than MAX_WAIT_SECONDS ago.
    One remote call per line would cost more than all other reports of a worker together.
    """

    def __init__(self, send: Callable[[Sequence[LogLine]], object]) -> None:
        super().__init__()
        self._send = send
        self._lines: list[LogLine] = []
        self._taken = time.monotonic()
        self._guard = threading.RLock()

    def emit(self, record: logging.LogRecord) -> None:
        with self._guard:
            self._lines.append(make_log_entry(record))
            if record.levelno >= logging.WARNING or time.monotonic() - self._taken >= MAX_WAIT_SECONDS:
                self._send(self.take_unsent_lines())

    def take_unsent_lines(self) -> Sequence[LogLine]:
        """Return the lines that have not been sent; the caller must send these lines."""
        with self._guard:
            lines, self._lines, self._taken = self._lines, [], time.monotonic()
            return lines


def log_worker_lines(lines: Iterable[Mapping[str, Any]]) -> None:
    """Log the workers' lines in this process with their original times, adding the log fields of this process."""
    logger = logging.getLogger(__name__)
    for line in lines:
        fields = dict(line)
        own = {"created": fields.pop("time"), "msg": fields.pop("message")}
        level = logging.getLevelNamesMapping()[fields.pop("level").upper()]
        place = {"name": __name__, "levelno": level, "levelname": logging.getLevelName(level), "fields": fields}
        logger.handle(logging.makeLogRecord(own | place))
