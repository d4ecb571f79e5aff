"""python -m jobs.view: what is wrong is said in one line before anything listens."""

from pathlib import Path

import pytest

from plumbline.jobs.command import run_job
from plumbline.jobs.view import COMMAND, main
from tests.operators.report.made import make_run


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["store={}/nothing"], 1, "there is no store here"),
        (["store=http://example.org"], 1, "expected a local path or an s3:// URL"),
        (["store={}/store", "host=0.0.0.0", "token_variable=NO_SUCH_TOKEN"], 1, "NO_SUCH_TOKEN"),
        (["store={}/store", "port=70000"], 64, "expected 0 to 65535"),
        (["store={}/store", "hosts=[http://gpu-7]"], 64, "expected names without scheme and port"),
        (["store={}/store", "memory=10"], 64, "expected at least 100 megabytes"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path)
    assert run_job(COMMAND, main, [word.format(tmp_path) for word in words]) == code
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
