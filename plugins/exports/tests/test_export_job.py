"""The export command works as documented for a new user."""

import shlex
from pathlib import Path

import pytest

from plumbline.plugins.exports.formats import FORMATS
from tests.commands import run_for_output, run_refused
from tests.operators.report.made import make_run

PAGE_FILE = Path(__file__).parents[1] / "README.md"
EXPORT_COMMANDS = [line for line in PAGE_FILE.read_text().splitlines() if "plumbline export" in line]


def test_the_page_has_a_command_for_every_format_and_every_format_is_an_extra() -> None:
    extras = (PAGE_FILE.parents[2] / "pyproject.toml").read_text()
    for name, line in zip(FORMATS, EXPORT_COMMANDS, strict=True):
        assert f"\n{name} = [" in extras and f"format={name} " in line


@pytest.mark.parametrize("line", EXPORT_COMMANDS, ids=FORMATS)
def test_each_command_in_the_readme_prints_the_number_of_rows_and_the_table(line: str, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    given = [option for option in shlex.split(line)[3:] if not option.startswith("output=")]
    options = [*given, f"store={run.store.place.url}", f"output={tmp_path}/lake"]
    said = run_for_output("export", *options)
    assert f"run {run.run_id}: 72 of 72 rows written" in said and f"table: {tmp_path}/lake" in said
    assert f"run {run.run_id}: 0 of 72 rows written" in run_for_output("export", *options)


def test_an_export_without_the_library_is_refused_with_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    monkeypatch.delitem(FORMATS.loaded, "lance", raising=False)
    monkeypatch.delitem(__import__("sys").modules, "plumbline.plugins.exports.formats.lance", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "lance", None)
    said = run_refused("export", "format=lance", f"store={run.store.place.url}", f"output={tmp_path}/lake", code=1)
    assert "'lance'" in said and "install the extra 'lance' of plumbline-t2i" in said
