"""How the log of a run is written: by the driver, as text or JSON, for all of its processes, and without a secret."""

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline.jobs.secrets import known_secrets, without
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.logs import LOGGER, OFF, LogConfig, line_of, take_over
from plumbline.pipelines.running.errors import one_line

LOG = logging.getLogger(__name__)
PLACES = ("node", "generator", "benchmark", "shard", "metric", "cell")
"""What a line of text says beside its time and level, of what it is about."""


class JsonFormatter(logging.Formatter):
    """A record as one JSON object in one line."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self.secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.fields(record))

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """What the record says, with the time in UTC, and with no secret."""
        line = line_of(record)
        time = datetime.fromtimestamp(line.pop("time"), UTC).isoformat(timespec="milliseconds")
        said = {name: without(self.secrets, " ".join(str(value).split())) for name, value in line.items()}
        return {"time": time, **said}


class TextFormatter(JsonFormatter):
    """A record as a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        said = self.fields(record)
        places = [said[name] for name in PLACES if name in said]
        line = " ".join([said["time"], said["level"], *places]) + f": {said['message']}"
        return "".join(character if character.isprintable() else "?" for character in line)


FORMATTERS = {"json": JsonFormatter, "text": TextFormatter}


class Writer(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes lines; one that cannot be written is dropped, for no run is to end of its log."""

    def handleError(self, record: logging.LogRecord) -> None:  # the name is logging's
        pass


@contextmanager
def logged(log: LogConfig, secrets: Iterable[str | None]) -> Iterator[None]:
    """Writes what the body's run says, and what ends it, but for these secrets and the environment's; nothing where no
    log is asked for.

    Raises ConfigError where the file cannot be written.
    """
    logger = logging.getLogger(LOGGER)
    before = logger.handlers, logger.propagate, logger.level
    stream = _open(log.file) if log.format and log.file else sys.stderr
    try:
        if log.format is None:
            take_over(logging.NullHandler(), OFF)
        else:
            writer = Writer(stream)
            writer.setFormatter(FORMATTERS[log.format](known_secrets(secrets)))
            take_over(writer, logging.getLevelNamesMapping()[log.level.upper()])
        yield
    except BaseException as error:
        LOG.error("%s", one_line(error), exc_info=error)
        raise
    finally:
        logger.handlers, logger.propagate, level = before
        logger.setLevel(level)
        if stream is not sys.stderr:
            with suppress(OSError):
                stream.close()


def _open(file: str) -> Any:
    try:
        return Path(file).open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"log.file {file}: {error.strerror}; name a file that can be written") from error
