"""Commands that are refused: in one line with the remedy, before anything is written."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench_of import captioned, write_rows
from tests.commands import refusal
from tests.files import put
from tests.operators.report.made import make_run

Refusals = Mapping[str, Sequence[tuple[str, str]]]
"""By the beginning of a command: the rest of the command, and a part of the line that refuses it."""


def make_places(folder: Path) -> dict[str, str]:
    """Return a store with a run, a folder with a table of images, and a file of prompts without skills."""
    write_rows(folder / "mine/mine.parquet", captioned("atlas", 1))
    put(folder, {"p.csv": "prompt_id,text\na,two cats\n"})
    store = make_run(folder).store.place.url
    return {"store": store, "mine": f"{folder}/mine", "prompts": f"{folder}/p.csv"}


def list_refusals(refusals: Refusals) -> list[tuple[str, str]]:
    """Return each command and a part of the line that refuses it."""
    return [(f"{start} {rest}", said) for start, each in refusals.items() for rest, said in each]


def check_refusal(command: str, said: str, output: Path) -> None:
    """Assert that the command is refused in one line that contains `said`, and that it writes nothing to `output`."""
    line = refusal(*command.split())
    assert line.startswith("error: ") and said in line
    assert not [path for path in output.rglob("*") if path.is_file() and ".build" not in path.parts]
