"""Where a line of a run's log comes from: what is said of it in whatever process, sent to the driver that writes it."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from plumbline.operators.base.errors import ConfigError

LOGGER = "plumbline"
"""The logger that a run's log takes, with all below it."""
OFF = 100
"""A level above all others."""
MAX_WAIT = 1.0
"""Seconds that a worker keeps a line at most while it logs others."""
Line = Mapping[str, Any]
"""A line of a log as plain values."""
_ABOUT: ContextVar[Mapping[str, str]] = ContextVar("about", default={})  # noqa: B039  # is never changed, but replaced


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """What is written of a run while it goes on, line by line, by the driver for all of its processes."""

    format: Literal["text", "json"] | None = None
    """How a line is written; null writes none."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written."""
    file: str | None = None
    """The file of the driver's machine that lines are added to; null is stderr."""

    def __post_init__(self) -> None:
        if self.file is not None and "://" in self.file:
            raise ConfigError(f"log.file: expected a file of this machine, got {self.file!r}; copy it once it is whole")


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Has every line that is logged within the body say so, such as `node="answers:vqa"`."""
    token = _ABOUT.set({**_ABOUT.get(), **fields})
    try:
        yield
    finally:
        _ABOUT.reset(token)


def about_now(field: str) -> str:
    """What is said at present of a field by `about`; empty where nothing is."""
    return _ABOUT.get().get(field, "")


def line_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says, as plain values: its time, level and message, what it is about, the kind of its exception."""
    kind = {"exception": record.exc_info[0].__name__} if record.exc_info and record.exc_info[0] else {}
    said = {"time": record.created, "level": record.levelname.lower(), "message": record.getMessage()}
    return said | {**_ABOUT.get(), **getattr(record, "fields", {})} | kind


def wanted_level() -> int | None:
    """The level from which on lines are written in this process; None where there is no log."""
    level = logging.getLogger(LOGGER).level
    return level if 0 < level < OFF else None


def take_over(handler: logging.Handler, level: int) -> None:
    """Has all that our loggers say from a level on go to this handler, and nowhere else."""
    logger = logging.getLogger(LOGGER)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)


class Forwarder(logging.Handler):
    """Keeps a worker's lines for its next report; sends them itself with a warning, or if that one is long in coming.

    A line a call would cost more than all else that a worker reports.
    """

    def __init__(self, send: Callable[[Sequence[Line]], object]) -> None:
        super().__init__()
        self._send = send
        self._lines: list[Line] = []
        self._taken = time.monotonic()
        self._guard = threading.RLock()

    def emit(self, record: logging.LogRecord) -> None:
        with self._guard:
            self._lines.append(line_of(record))
            if record.levelno >= logging.WARNING or time.monotonic() - self._taken >= MAX_WAIT:
                self._send(self.take())

    def take(self) -> Sequence[Line]:
        """The lines that were not sent, for the caller to report."""
        with self._guard:
            lines, self._lines, self._taken = self._lines, [], time.monotonic()
            return lines


def relay(lines: Iterable[Mapping[str, Any]]) -> None:
    """Logs workers' lines in this process, with their own time, and with what is known here of the run."""
    logger = logging.getLogger(__name__)
    for line in lines:
        fields = dict(line)
        said = {"created": fields.pop("time"), "msg": fields.pop("message")}
        level = logging.getLevelNamesMapping()[fields.pop("level").upper()]
        named = {"name": __name__, "levelno": level, "levelname": logging.getLevelName(level), "fields": fields}
        logger.handle(logging.makeLogRecord(said | named))
