"""docs/papers.md lists every table, figure and equation of the five papers, with a command or a reason for its absence.

All tests that it names exist.
tests/test_commands.py checks that the commands are valid, and tests/test_pages.py that the links work.
"""

import re
from typing import NamedTuple

import pytest

from tests.test_commands import COMMAND_PATTERN, PAPERS_FILE, ROOT

PRINTED_COUNTS = {
    "VQAScore and GenAI-Bench": {"table": 20, "figure": 4, "equation": 3},
    "T2IScoreScore": {"table": 3, "figure": 13, "equation": 6},
    "Gecko": {"table": 12, "figure": 15, "equation": 2},
    "What makes a good metric?": {"table": 6, "figure": 5, "equation": 0},
    "LLMScore": {"table": 4, "figure": 9, "equation": 0},
}
"""Number of numbered tables, figures and equations in each paper, keyed by the paper's name."""
TEST_PATTERN = re.compile(r"`((?:tests|plugins)/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")
STATUS_PATTERNS = {
    "reproduced": re.compile(r"reproduced: ours .+ \(\[reproduction\.md\]\(reproduction\.md#\S+\)\)"),
    "works": re.compile(r"works: " + TEST_PATTERN.pattern),
    "ready, data not public": re.compile(r"ready, data not public: " + TEST_PATTERN.pattern),
    "missing": re.compile(r"missing( \(.+\))?"),
    "out": re.compile(r"out, because .+"),
}
"""Patterns that the status of a row must match, keyed by the first words of the status."""
STATUSES_WITHOUT_COMMAND = ("missing", "out")


class PaperRow(NamedTuple):
    """A table, figure or equation of a paper, with the command that reproduces it and its status."""

    item: str
    command: str
    status: str


def read_rows_by_paper() -> dict[str, list[PaperRow]]:
    """Return the rows of docs/papers.md about each paper, keyed by the paper's heading."""
    sections = re.split(r"^## (.+)$", PAPERS_FILE.read_text(), flags=re.MULTILINE)[1:]
    return {
        paper: [
            PaperRow(*line.strip("| ").split(" | ")) for line in re.findall(r"^\| .*$", text, flags=re.MULTILINE)[1:]
        ]
        for paper, text in zip(sections[::2], sections[1::2], strict=True)
    }


PAPER_ROWS = [row for rows in read_rows_by_paper().values() for row in rows]


def test_every_table_figure_and_equation_of_the_papers_has_a_row() -> None:
    found = {
        paper: {
            kind: {int(number) for row in rows for number in re.findall(rf"\b{kind} (\d+)", row.item.lower())}
            for kind in ("table", "figure", "equation")
        }
        for paper, rows in read_rows_by_paper().items()
    }
    assert found == {
        paper: {kind: {*range(1, count + 1)} for kind, count in counts.items()}
        for paper, counts in PRINTED_COUNTS.items()
    }


@pytest.mark.parametrize("row", PAPER_ROWS, ids=lambda row: row.item)
def test_a_row_has_a_command_or_a_reason_and_names_a_test_that_exists(row: PaperRow) -> None:
    (kind,) = [name for name in STATUS_PATTERNS if row.status.startswith(name)]
    assert STATUS_PATTERNS[kind].fullmatch(row.status), row.status
    assert len(COMMAND_PATTERN.findall(row.command)) == 1 or (
        kind in STATUSES_WITHOUT_COMMAND and row.command == "none"
    ), row.command
    for file, name in TEST_PATTERN.findall(row.status):
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
