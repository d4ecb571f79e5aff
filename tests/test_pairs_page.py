"""The code in docs/pairs.md runs in order, and the command and the code print the output on the page."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.commands import run_for_output
from tests.operators.choosing import Judge
from tests.operators.report.made import make_run

PAGE_TEXT = (Path(__file__).parent.parent / "docs/pairs.md").read_text()
JUDGE = Judge((0.0, 0.3, 1.0), bias=0.5, ties=0.1)
NAME_BY_GENERATOR = {"g0": "cobalt", "g1": "borealis", "g2": "atlas"}


def test_the_page_prints_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, prompts=[f"{number} red stars" for number in range(60)])
    table = JUDGE.compare(np.random.default_rng(0), 60).replace(NAME_BY_GENERATOR)
    table["prompt_id"] = [f"p{int(prompt[1:]):04d}" for prompt in table["prompt_id"]]
    run.store.write_table(f"runs/{run.run_id}/comparisons.parquet", pa.Table.from_pandas(table))
    table.to_parquet(tmp_path / "comparisons.parquet")
    table.iloc[:150].to_parquet(tmp_path / "people.parquet")
    monkeypatch.chdir(tmp_path)
    said = run_for_output("report", "store=store")
    by_command, by_code = re.findall(r"```text\n(.*?)```", PAGE_TEXT, flags=re.DOTALL)
    assert [line for line in by_command.splitlines()[1:] if line not in said] == []
    capsys.readouterr()
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE_TEXT, flags=re.DOTALL)), {})
    assert by_code in capsys.readouterr().out
