"""All Python code on docs/results.md runs, and its output agrees with the run."""

import re
from pathlib import Path

import pytest

from plumbline.pipelines.store.store import LATEST_FILE
from tests.operators.report.made import MadeRun, draw_noisy_score, make_run
from tests.s3 import S3Server

PAGE_TEXT = (Path(__file__).parent.parent / "docs/results.md").read_text()
TEXT_BY_SECTION = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE_TEXT, flags=re.DOTALL | re.MULTILINE))
CHECKS_BY_SECTION = {
    "pandas": [
        "assert len(scores) == 72 and scores.score.isna().sum() == 2",
        "assert list(overall.columns) == ['clipscore', 'gecko']",
        "assert list(overall.index) == ['atlas', 'borealis', 'cobalt'] and overall.gecko.is_monotonic_decreasing",
        "assert by_image.shape == (35, 2) and list(reasons.items()) == [(('corrupt_image', 'cobalt'), 2)]",
    ],
    "DuckDB": [
        "assert len(means) == 6 and means.n.sum() == 70 and means.n_null.sum() == 2",
        "assert reasons.values.tolist() == [['corrupt_image', False, 2]]",
        "assert set(leaders.skill) == {'overall', 'counting', 'colour'} and set(leaders.generator) == {'atlas'}",
    ],
    "Polars": [
        "assert means['n_null'].sum() == 2 and reasons.rows() == [('corrupt_image', 2)] and summary.height == 18",
        "best = means.filter(metric='gecko').sort('score')['generator'].to_list()",
        "assert best == ['cobalt', 'borealis', 'atlas']",
    ],
    "Joining scores with your images": [
        "assert len(worst) == 3 and worst.score.is_monotonic_increasing",
        "assert all(bytes(image).startswith(b'\\x89PNG') for image in worst.image)",
    ],
    "From S3": ["assert len(scores if 'scores' in vars() else means) == (72 if 'scores' in vars() else 2)"],
}
RECIPES = [
    pytest.param(section, recipe, id=f"{section}-{number}")
    for section, claims in CHECKS_BY_SECTION.items()
    for number, recipe in enumerate(re.findall(r"```python\n(.*?)```", TEXT_BY_SECTION[section], flags=re.DOTALL))
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """Make a run of three generators and two metrics with a failed image; images are in `data` next to the store."""
    folder = tmp_path_factory.mktemp("results")
    made = make_run(
        folder,
        score=lambda name, metric, at: None if (name, at) == ("cobalt", 7) else draw_noisy_score(name, metric, at),
    )
    made.store.write_text(LATEST_FILE, f"{made.run_id}\n")  # as a sweep writes it
    (folder / "bench").rename(folder / "data")
    scores = made.folder / "scores.parquet"
    rows = made.store.read_table(f"runs/{made.run_id}/scores.parquet")
    scores.unlink()
    for number in range(2):  # a folder of parts, as a sweep writes it
        made.store.write_table(f"runs/{made.run_id}/scores.parquet/{number:05d}.parquet", rows.slice(36 * number, 36))
    return made


def test_every_block_of_python_is_run() -> None:
    assert len(RECIPES) == PAGE_TEXT.count("```python") == 8


@pytest.mark.parametrize("section, recipe", RECIPES)
@pytest.mark.filterwarnings("error::FutureWarning")
def test_a_recipe_agrees_with_the_run(
    section: str, recipe: str, run: MadeRun, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run.folder.parent.parent.parent
    if "s3://bucket/plumbline" in recipe:
        server: S3Server = request.getfixturevalue("s3_server")
        bucket = request.getfixturevalue("bucket")
        server.filesystem().put(f"{folder}/store/runs", f"{bucket}/plumbline/runs", recursive=True)
        recipe = recipe.replace("s3://bucket/", f"{bucket}/")
    monkeypatch.chdir(folder)
    exec("\n".join([recipe, *CHECKS_BY_SECTION[section]]), {})
