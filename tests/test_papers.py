"""docs/papers.md has every table and figure of the five papers, each with a command or a reason, and names real tests.

tests/test_commands.py checks that its commands are understood, tests/test_pages.py that its links lead somewhere.
"""

import re
from typing import NamedTuple

import pytest

from tests.test_commands import PAPERS, ROOT, TOLD

PRINTED = {
    "VQAScore and GenAI-Bench": (20, 4),
    "T2IScoreScore": (3, 13),
    "Gecko": (12, 15),
    "What makes a good metric?": (6, 5),
    "LLMScore": (4, 9),
}
"""Numbers of tables and figures, by paper."""
TEST = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")
STATUS = {
    "reproduced": re.compile(r"reproduced: ours .+ \(\[reproduction\.md\]\(reproduction\.md#\S+\)\)"),
    "works": re.compile(r"works: " + TEST.pattern),
    "ready, data not public": re.compile(r"ready, data not public: " + TEST.pattern),
    "missing": re.compile(r"missing( \(.+\))?"),
    "out": re.compile(r"out, because .+"),
}
"""Forms of a status, by its first words."""
NO_COMMAND = ("missing", "out")


class Row(NamedTuple):
    """A promise of a paper, with the command that keeps it."""

    item: str
    command: str
    status: str


def rows_by_paper() -> dict[str, list[Row]]:
    """Return the rows of each paper's table."""
    sections = re.split(r"^## (.+)$", PAPERS.read_text(), flags=re.MULTILINE)[1:]
    return {
        paper: [Row(*line.strip("| ").split(" | ")) for line in re.findall(r"^\| .*$", text, flags=re.MULTILINE)[1:]]
        for paper, text in zip(sections[::2], sections[1::2], strict=True)
    }


ROWS = [row for rows in rows_by_paper().values() for row in rows]


def test_every_table_and_figure_of_the_papers_has_a_row() -> None:
    found = {
        paper: {
            kind: {int(number) for row in rows for number in re.findall(rf"\b{kind} (\d+)", row.item)}
            for kind in ("Table", "Figure")
        }
        for paper, rows in rows_by_paper().items()
    }
    assert found == {
        paper: {"Table": {*range(1, tables + 1)}, "Figure": {*range(1, figures + 1)}}
        for paper, (tables, figures) in PRINTED.items()
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.item)
def test_a_row_has_a_command_or_a_reason_and_names_a_test_that_exists(row: Row) -> None:
    (kind,) = [name for name in STATUS if row.status.startswith(name)]
    assert STATUS[kind].fullmatch(row.status), row.status
    assert len(TOLD.findall(row.command)) == 1 or (kind in NO_COMMAND and row.command == "none"), row.command
    for file, name in TEST.findall(row.status):
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
