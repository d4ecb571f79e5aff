"""Commands are refused in one line that contains the remedy, before anything is written."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.bench_of import list_captioned_images, write_rows
from tests.commands import refusal
from tests.files import write_files
from tests.operators.report.made import make_run

Refusals = Mapping[str, Sequence[tuple[str, str]]]
"""Refused commands by the start of the command: the rest of it, and a fragment of the error message."""


def list_refusals(refusals: Refusals) -> list[tuple[str, str]]:
    """Return each command with a fragment of its error message."""
    return [(f"{start} {rest}", said) for start, each in refusals.items() for rest, said in each]


@pytest.fixture(scope="session")
def refusal_places(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Make a store with a run, a folder with a table of images, and a prompt file without skills."""
    folder = tmp_path_factory.mktemp("refusals")
    write_rows(folder / "mine/mine.parquet", list_captioned_images("atlas", 1))
    write_files(folder, {"p.csv": "prompt_id,text\na,two cats\n"})
    store = make_run(folder).store.place.url
    return {"store": store, "mine": f"{folder}/mine", "prompts": f"{folder}/p.csv"}


@pytest.fixture
def check_refusal(
    refusal_places: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], None]:
    """Return a function that checks that a command is refused in one line with this text, and writes nothing.

    The command may use {store}, {mine} and {prompts} for the paths above, and {out} for an empty folder.
    """
    monkeypatch.setenv("REFERENCE_DATA", "")

    def check(command: str, said: str) -> None:
        output = tmp_path / "out"
        line = refusal(*command.format(**refusal_places, out=output).split())
        assert line.startswith("error: ") and said in line
        assert not [path for path in output.rglob("*") if path.is_file() and ".build" not in path.parts]

    return check
