"""The pages about models only list models that a test loads, and list every family and configured checkpoint."""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from plumbline.operators.models.families import FAMILIES

ROOT = Path(__file__).parent.parent


class TableRow(NamedTuple):
    """A row of a table on the pages about models."""

    family: str
    serves: str
    checkpoints: str
    engine: str
    memory: str
    template: str
    licence: str
    test: str


def read_table_rows() -> list[TableRow]:
    """Return the rows of docs/models.md and of the model tables on the plugins' pages."""
    pages = [ROOT / "docs/models.md", *sorted((ROOT / "plugins").glob("*/README.md"))]
    parts = [part for page in pages for part in page.read_text().split("\n\n")]
    tables = [part for part in parts if part.startswith("| family | serves |")]
    rows = [line for table in tables for line in table.splitlines() if line.startswith("| `")]
    return [TableRow(*(cell.strip() for cell in row.strip("|").split(" | "))) for row in rows]


TABLE_ROWS = read_table_rows()


def list_quoted_names(cell: str) -> list[str]:
    """Return the strings between backquotes."""
    return cell.split("`")[1::2]


@pytest.mark.parametrize("line", TABLE_ROWS, ids=lambda line: f"{line.family} {line.checkpoints}"[:60])
def test_a_row_has_a_family_that_serves_it_and_tests_that_exist(line: TableRow) -> None:
    (family,) = list_quoted_names(line.family)
    assert set(list_quoted_names(line.serves)) <= FAMILIES[family].calls
    on = {"transformers": FAMILIES[family].loads, "vLLM": FAMILIES[family].vllm}
    assert all(on[engine] for engine in on if engine in line.engine)
    assert all(line), "no column is empty"
    for test in list_quoted_names(line.test):
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


def test_every_family_and_every_configured_checkpoint_is_on_a_page() -> None:
    assert {name for line in TABLE_ROWS for name in list_quoted_names(line.family)} == set(FAMILIES)
    listed = {name for line in TABLE_ROWS for name in list_quoted_names(line.checkpoints)}
    files = [*(ROOT / "conf/model").glob("*.yaml"), *(ROOT / "plugins").glob("*/conf/model/*.yaml")]
    configured = [yaml.safe_load(file.read_text()) for file in files]
    hub_ids = {model["checkpoint"] for model in configured if model["checkpoint"].count("/") == 1}
    assert hub_ids - listed == set()
