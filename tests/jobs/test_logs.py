"""A run's log has one line for each event, as text or JSON, and never contains a secret."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from plumbline.jobs.logs import log_to_file
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.logs import (
    LogConfig,
    LogForwarder,
    LogLine,
    add_log_fields,
    find_level,
    log_worker_lines,
    make_log_entry,
)
from tests.commands import run_refused

SECRET = "hush-hush-hush"
LOGGER = logging.getLogger("plumbline.pipelines.somewhere")
NO_SECRETS: tuple[str, ...] = ()


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_of_json_has_its_subject_and_the_raised_error(tmp_path: Path) -> None:
    with log_to_file(LogConfig(format="json", file=f"{tmp_path}/log"), NO_SECRETS), add_log_fields(run="r"):
        with add_log_fields(node="answers:vqa", cell="3f2a91bc"):
            LOGGER.warning("two\nlines of %d words", 4)
        try:
            raise OSError("the disk is full")
        except OSError as error:
            LOGGER.error("no luck", exc_info=error)
        LOGGER.debug("too small a thing")
    first, second = read_lines(tmp_path / "log")
    assert first.pop("time").endswith("+00:00")
    assert first == {"level": "warning", "message": "two lines of 4 words", "run": "r", "node": "answers:vqa",
                     "cell": "3f2a91bc"}  # fmt: skip
    assert (second["exception"], second["run"]) == ("OSError", "r") and "cell" not in second


def test_a_text_entry_is_one_line_without_terminal_control_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        log_to_file(LogConfig(format="text"), NO_SECRETS),
        add_log_fields(node="scores", generator="atlas", cell="3f2a91bc"),
    ):
        LOGGER.info("a prompt of\x1b[2Jtwo\nlines")
    assert capsys.readouterr().err.endswith(" info scores atlas 3f2a91bc: a prompt of?[2Jtwo lines\n")


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_line_contains_a_secret_of_the_environment_or_the_storage(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"{SECRET}-of-the-environment")
    config = LogConfig(format=form, file=f"{tmp_path}/log")  # type: ignore[arg-type]
    with pytest.raises(ValueError), log_to_file(config, ["an-access-key", SECRET, None]):
        LOGGER.info(
            "%s, %s, %s-of-the-environment", "an-access-key", SECRET, SECRET, extra={"fields": {"shard": SECRET}}
        )
        LOGGER.info("from https://user:pass-word@host/a.png?X-Amz-Signature=abcdef")
        raise ValueError(f"with {SECRET}")
    text = (tmp_path / "log").read_text()
    assert len(text.splitlines()) == 3 and "***@host/a.png?***" in text
    assert not [word for word in ("hush", "an-access-key", "pass-word", "abcdef", "of-the-env") if word in text]


def test_without_a_format_nothing_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger("plumbline").handlers
    with log_to_file(LogConfig(), NO_SECRETS):
        LOGGER.error("unheard")
        assert find_level() is None
    with log_to_file(LogConfig(format="json", level="warning"), NO_SECRETS):
        assert find_level() == logging.WARNING
    assert capfd.readouterr() == ("", "") and logging.getLogger("plumbline").handlers is before


def test_lines_of_workers_have_the_workers_time_and_the_drivers_run(tmp_path: Path) -> None:
    sent: list[Sequence[LogLine]] = []
    worker, forwarder = logging.Logger("worker"), LogForwarder(sent.append)
    worker.addHandler(forwarder)
    with add_log_fields(node="scores", cell="3f2a91bc"):
        worker.error("no luck", exc_info=ValueError("why"))
    worker.info("it goes on")
    (lines,) = sent
    assert [line["message"] for line in forwarder.take_unsent_lines()] == ["it goes on"], (
        "a line that is kept until the next report"
    )
    record = logging.makeLogRecord({"msg": "later"})
    assert lines[0]["time"] < make_log_entry(record)["time"]
    with log_to_file(LogConfig(format="json", file=f"{tmp_path}/log"), NO_SECRETS), add_log_fields(run="r"):
        log_worker_lines(lines)
    (line,) = read_lines(tmp_path / "log")
    del line["time"]
    assert line == {"level": "error", "message": "no luck", "run": "r", "node": "scores", "cell": "3f2a91bc",
                    "exception": "ValueError"}  # fmt: skip


def test_the_last_line_is_the_reason_why_the_job_ended(tmp_path: Path) -> None:
    log = ["log.format=json", f"log.file={tmp_path}/log"]
    line = run_refused("sweep", "sweep=shapes", f"store={tmp_path}/store", "benchmark.prompts=/nowhere", *log, code=1)
    last = read_lines(tmp_path / "log")[-1]
    assert last["exception"] == "ConfigError" and last["message"] in line


def test_a_log_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    nowhere = log_to_file(LogConfig(format="json", file=f"{tmp_path}/no/folder/log"), NO_SECRETS)
    with pytest.raises(ConfigError, match=r"log\.file .*name a file that can be written"), nowhere:
        raise AssertionError("it began")
    with pytest.raises(ConfigError, match=r"log\.file: expected a file on this machine, got 's3://bucket/log'"):
        LogConfig(file="s3://bucket/log")
