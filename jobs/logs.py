"""Log of a run, which the driver writes for all processes, as text or JSON and without secrets."""

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline.jobs.config_safety import list_secrets, remove_secrets
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.logs import (
    LOGGER_NAME,
    LOGGING_OFF_LEVEL,
    LogConfig,
    make_log_entry,
    route_lines_to_handler,
)
from plumbline.pipelines.running.errors import format_error

LOG = logging.getLogger(__name__)
CONTEXT_FIELDS = ("node", "generator", "benchmark", "shard", "metric", "cell")
"""Fields that a text line shows after its time and level."""


class JsonFormatter(logging.Formatter):
    """Formatter that writes a record as a JSON object on one line."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self.secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.collect_fields(record))

    def collect_fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return a record as plain values without secrets, with the time in UTC."""
        line = make_log_entry(record)
        time = datetime.fromtimestamp(line.pop("time"), UTC).isoformat(timespec="milliseconds")
        texts = {name: remove_secrets(self.secrets, " ".join(str(value).split())) for name, value in line.items()}
        return {"time": time, **texts}


class TextFormatter(JsonFormatter):
    """Formatter that writes a record as a readable line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.collect_fields(record)
        context = [fields[name] for name in CONTEXT_FIELDS if name in fields]
        line = " ".join([fields["time"], fields["level"], *context]) + f": {fields['message']}"
        return "".join(character if character.isprintable() else "?" for character in line)


FORMATTERS_BY_NAME = {"json": JsonFormatter, "text": TextFormatter}


class LenientHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that drops lines that cannot be written, because the log must not make a run fail."""

    def handleError(self, record: logging.LogRecord) -> None:  # the name is required by logging
        pass


@contextmanager
def log_to_file(log: LogConfig, secrets: Iterable[str | None]) -> Iterator[None]:
    """Write a run's log within the context, including any exception that ends the run.

    Nothing is written if no format is configured. The given secrets and those in the environment are masked. Raises
    ConfigError if the file cannot be opened.
    """
    logger = logging.getLogger(LOGGER_NAME)
    before = logger.handlers, logger.propagate, logger.level
    stream: Any = sys.stderr
    if log.format and log.file:
        try:
            stream = Path(log.file).open("a", encoding="utf-8")  # noqa: SIM115  # closed below
        except OSError as error:
            raise ConfigError(f"log.file {log.file}: {error.strerror}; name a file that can be written") from error
    try:
        if log.format is None:
            route_lines_to_handler(logging.NullHandler(), LOGGING_OFF_LEVEL)
        else:
            writer = LenientHandler(stream)
            writer.setFormatter(FORMATTERS_BY_NAME[log.format](list_secrets(secrets)))
            route_lines_to_handler(writer, logging.getLevelNamesMapping()[log.level.upper()])
        yield
    except BaseException as error:
        LOG.error("%s", format_error(error), exc_info=error)
        raise
    finally:
        logger.handlers, logger.propagate, level = before
        logger.setLevel(level)
        if stream is not sys.stderr:
            with suppress(OSError):
                stream.close()
