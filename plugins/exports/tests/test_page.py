"""The Python examples on the plugin's page work, and print the scores of a run."""

import re
from pathlib import Path

import pytest

from tests.commands import run_for_output
from tests.operators.report.made import draw_noisy_score, make_run

PAGE_EXAMPLES = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), flags=re.DOTALL
)
ROW_CHECK = "assert len(atlas) == 12 and failed.values.tolist() == [['cobalt-p0007', 'corrupt_image']] * 2"


@pytest.mark.parametrize(("table_format", "recipe"), zip(("iceberg", "lance"), PAGE_EXAMPLES, strict=True))
def test_the_examples_in_the_readme_return_the_runs_scores(
    table_format: str, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(
        tmp_path,
        score=lambda name, metric, at: None if (name, at) == ("cobalt", 7) else draw_noisy_score(name, metric, at),
    )
    monkeypatch.chdir(tmp_path)
    run_for_output("export", f"format={table_format}", f"store={run.store.place.url}", "output=data/lake")
    exec("\n".join([recipe, ROW_CHECK]), {})
