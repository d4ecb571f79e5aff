"""The notebook docs/first_steps.ipynb runs, and its cells print what the file shows."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.environment import ROOT

NOTEBOOK_FILE = ROOT / "docs/first_steps.ipynb"


def read_texts(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the text that each code cell prints or returns; warnings and the sizes of images are left out."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return ["".join(_read_text(output) for output in cell.outputs) for cell in cells]


def _read_text(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return output.text if output.name == "stdout" else ""
    return output.data["text/plain"] if output.output_type == "execute_result" else ""


def test_the_notebook_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shown = nbformat.read(NOTEBOOK_FILE, as_version=4)
    ran = nbformat.read(NOTEBOOK_FILE, as_version=4)
    NotebookClient(ran, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert read_texts(ran) == read_texts(shown)
    assert (tmp_path / "first_store/latest/report.html").is_file(), "the notebook names the report"
