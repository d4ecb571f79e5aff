"""Where a line of a run's log comes from: what is said of it in whatever process, sent to the driver that writes it."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from plumbline.operators.errors import ConfigError

LOGGER = "plumbline"
"""The logger that a run's log takes, with all below it."""
OFF = 100
"""A level above all others."""
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
    """Sends a worker's lines to the ProgressLog, where the driver takes them."""

    def __init__(self, progress: Any) -> None:
        super().__init__()
        self.progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self.progress.log.remote(line_of(record))


def relay(lines: Iterable[Mapping[str, Any]]) -> None:
    """Logs workers' lines in this process, with their own time, and with what is known here of the run."""
    logger = logging.getLogger(__name__)
    for line in lines:
        fields = dict(line)
        said = {"created": fields.pop("time"), "msg": fields.pop("message")}
        level = logging.getLevelNamesMapping()[fields.pop("level").upper()]
        named = {"name": __name__, "levelno": level, "levelname": logging.getLevelName(level), "fields": fields}
        logger.handle(logging.makeLogRecord(said | named))
