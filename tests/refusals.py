"""Helpers for testing that invalid commands are refused with a one-line message that says how to fix them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.bench_of import list_captioned_images, write_rows
from tests.commands import run_refused
from tests.files import write_files
from tests.operators.report.made import make_run

Refusals = Mapping[str, Sequence[tuple[str, str]]]
"""Ends of invalid commands, each with a fragment of the expected error message, keyed by the start of the command."""


def list_refusals(refusals: Refusals) -> list[tuple[str, str]]:
    """Return each complete command with a fragment of its expected error message."""
    return [(f"{start} {rest}", said) for start, each in refusals.items() for rest, said in each]


@pytest.fixture(scope="session")
def refusal_places(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return the paths of a store with a run, a folder with a table of images, and a prompt file without skills."""
    folder = tmp_path_factory.mktemp("refusals")
    write_rows(folder / "mine/mine.parquet", list_captioned_images("atlas", 1))
    write_files(folder, {"p.csv": "prompt_id,text\na,two cats\n"})
    store = make_run(folder).store.place.url
    return {"store": store, "mine": f"{folder}/mine", "prompts": f"{folder}/p.csv"}


@pytest.fixture
def check_refusal(
    refusal_places: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], None]:
    """Return a function that checks that a command fails with a one-line message, and writes nothing.

    Its arguments are the command and a fragment of the message. The command may contain {store}, {mine} and {prompts},
    which stand for the paths in `refusal_places`, and {out}, which stands for an empty folder.
    """
    monkeypatch.setenv("REFERENCE_DATA", "")

    def check(command: str, said: str) -> None:
        output = tmp_path / "out"
        line = run_refused(*command.format(**refusal_places, out=output).split())
        assert line.startswith("error: ") and said in line
        assert not [path for path in output.rglob("*") if path.is_file() and ".build" not in path.parts]

    return check
