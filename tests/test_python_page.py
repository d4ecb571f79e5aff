"""The code in docs/python.md runs in order and prints the output on the page."""

import re
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

from tests.bench_of import read_image_rows
from tests.operators.report.made import draw_noisy_score, make_run

ROOT = Path(__file__).parent.parent
PAGE_TEXT = (ROOT / "docs/python.md").read_text()
EXAMPLE_CHECKS = [
    "assert abs(alike.score[0] - alike.score[1]) < 1e-4 and alike.error[2]['kind'] == 'missing_image'",
    "assert scores.score.notna().tolist() == [True, True, False] and list(scores.image_id) == ['0', '1', '2']",
    "assert failed.error.map(lambda error: error['kind']).tolist() == ['corrupt_image']",
    "assert len(rewards) == 1 and abs(rewards[0] - scores.score[0]) < 1e-4",
    "assert scores.prompt.tolist() == ['three red circles', 'a blue square', 'a blue square']",
    "assert len(summary) and run.read_manifest()['run_id'] == run.run_id and len(run.read_errors()) == 0",
    "assert agreement[agreement.statistic == 'pairwise_accuracy'].value.tolist() in ([0], [1])",
    "assert list(by_prompt.columns) == ['atlas', 'borealis', 'cobalt']",
    "assert 0 <= test.p_value <= p_value <= 1 and test.n == len(by_prompt) and interval.low < interval.high",
    "assert 0.9 < spearman < 1 and ties.pairs == 10 and 0.9 <= ties.accuracy <= 1",
]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_run(tmp_path, score=draw_noisy_score)
    made.store.write_text("runs/latest", f"{made.run_id}\n")
    for name, row in zip(("first", "second"), read_image_rows("atlas", 2), strict=True):
        (tmp_path / f"{name}.png").write_bytes(row["image"])
    (tmp_path / "damaged.png").write_bytes(b"no image")
    pieces = re.findall(r"```python\n(.*?)```", PAGE_TEXT, flags=re.DOTALL)
    assert len(pieces) == 10
    monkeypatch.chdir(tmp_path)
    exec("\n".join([*pieces, *EXAMPLE_CHECKS]), {})


def test_every_exported_name_exists_and_has_a_docstring() -> None:
    for module in ("plumbline", "plumbline.extending", "plumbline.statistics"):
        exports = import_module(module)
        for name in exports.__all__:
            value = getattr(exports, name)
            assert value.__doc__ or not isinstance(value, type | FunctionType), name
    told = set(re.findall(r"`([A-Za-z_]+)[^`]*`", PAGE_TEXT.split("| question |")[1]))
    assert set(import_module("plumbline.statistics").__all__) <= told
