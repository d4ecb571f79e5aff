"""docs/rewards.md has a row for every format, with the source of the format's layout and an existing test."""

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest

from plumbline.operators.rewards.formats import FORMATS
from plumbline.operators.rewards.selection import SelectionConfig
from plumbline.pipelines.rewards.rewards_config import RewardsConfig

ROOT = Path(__file__).parent.parent
PAGE_TEXT = (ROOT / "docs/rewards.md").read_text()


class TableRow(NamedTuple):
    """A row of the page's table."""

    format: str
    example: str
    layout: str
    consumer: str
    source: str
    test: str


TABLE_ROWS = [
    TableRow(*(cell.strip() for cell in row.strip("|").split(" | ")))
    for row in PAGE_TEXT.splitlines()
    if row.startswith("| `") and "::" in row
]


def test_every_format_has_a_row() -> None:
    assert [line.format.strip("` ") for line in TABLE_ROWS] == list(FORMATS)


@pytest.mark.parametrize("line", TABLE_ROWS, ids=lambda line: line.format.strip("` "))
def test_a_row_cites_its_source_and_names_an_existing_test(line: TableRow) -> None:
    assert all(line)
    assert line.source == "ours" or re.search(r"[\w-]+/[\w-]+ `[\w./-]+\.py` [0-9a-f]{7}", line.source)
    file, _, function = line.test.strip("` ").partition("::")
    tree = ast.parse((ROOT / file).read_text())
    (test,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    assert f"'{line.format.strip('` ')}'" in ast.unparse(test), "it exports that format"
    container = FORMATS[line.format.strip("` ")].container
    assert {"parquet": "Parquet", "tar": "tars", "json": "one JSON list", "jsonl": "JSON Lines"}[
        container
    ] in line.layout


def test_the_page_has_the_options_of_the_command() -> None:
    names = [field.name for schema in (RewardsConfig, SelectionConfig) for field in fields(schema)]
    assert [name for name in names if name not in PAGE_TEXT and name != "storage"] == []
