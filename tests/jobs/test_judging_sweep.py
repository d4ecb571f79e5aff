"""One sweep command runs all metrics that have a model describe or judge an image, with tiny checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.bench_of import list_arguments, write_benchmark
from tests.commands import find_newest_run_folder, run, run_for_output, run_refused
from tests.operators import tiny
from tests.operators.tiny.roles import save_tiny_models
from tests.releases import CHAT_MODELS_RELEASE, is_older

pytestmark = pytest.mark.skipif(
    is_older(CHAT_MODELS_RELEASE),
    reason="the tiny captioner has random weights, which write nothing with older transformers",
)
EXPECTED_SCORES = {
    "llmscore": 0.07,
    "llmscore_error_counting": 1 - 7 / 9,
    "llmscore_errors": 7.0,
    "llmscore_rule_enhanced": 1.0,
    "viescore": (8 * 6) ** 0.5,
    "gpt4v_eval": 7.0,
}
"""Expected score of each metric; the tiny judges always give the same replies."""
CAPTION_METRICS = ("capclip", "capmeteor", "descclip", "descmeteor")
UNREADABLE_METRIC = "babble"
"""Name of an LLMScore metric whose judge has random weights, so that its replies match no schema."""

REPEATED_METRIC = "twice"


@pytest.fixture(scope="module")
def sweep_words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("judging")
    write_benchmark(folder / "bench", ["atlas"], count=4)
    tiny.save_causal_lm(folder / "babbler", max_position_embeddings=4096)
    (folder / "models").mkdir()
    babbler = f"+models.babbler={{family: causal_lm, checkpoint: {folder}/babbler}}"
    return list_arguments(
        folder / "bench", folder / "store", "max_failed=0.2", *save_tiny_models(folder / "models"), babbler
    )


@pytest.fixture(scope="module", params=["here", pytest.param("local", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, sweep_words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a sweep in which only the judge with random weights fails; return the sweep's store."""
    store = tmp_path_factory.mktemp(request.param)
    metrics = f"metric=[{','.join([*EXPECTED_SCORES, *CAPTION_METRICS])}]"
    babble = f"+metrics.{UNREADABLE_METRIC}={{kind: llmscore, judge: babbler, replies: text, max_tokens: 8}}"
    again = f"+metrics.{REPEATED_METRIC}={{kind: gpt4v_eval, repeats: 2, temperature: 1}}"
    assert run("sweep", *sweep_words, f"store={store}", metrics, babble, again, f"cluster={request.param}").code == 2
    return store


@pytest.fixture(scope="module")
def scores(store: Path) -> Mapping[str, list[dict[str, Any]]]:
    """Return the rows of the newest run's scores, keyed by metric."""
    table = pq.read_table(find_newest_run_folder(store) / "scores.parquet").to_pylist()
    return {
        metric: [row for row in table if row["metric"] == metric]
        for metric in (*EXPECTED_SCORES, *CAPTION_METRICS, UNREADABLE_METRIC)
    }


@pytest.mark.parametrize("metric", EXPECTED_SCORES)
def test_a_judges_numbers_become_scores(metric: str, scores: Mapping[str, list[dict[str, Any]]]) -> None:
    assert [row["score"] for row in scores[metric]] == pytest.approx([EXPECTED_SCORES[metric]] * 4)


@pytest.mark.parametrize("metric", CAPTION_METRICS)
def test_the_description_of_an_image_is_compared_with_its_prompt(
    metric: str, scores: Mapping[str, list[dict[str, Any]]]
) -> None:
    found = [row["score"] for row in scores[metric]]
    assert all(score is not None and -1 <= score <= 1 for score in found)
    assert len({*found}) > 1 or metric.endswith("meteor")


def test_unreadable_replies_of_a_judge_are_nulls_with_the_reason(
    scores: Mapping[str, list[dict[str, Any]]],
) -> None:
    assert [row["score"] for row in scores[UNREADABLE_METRIC]] == [None] * 4
    assert {row["error"]["kind"] for row in scores[UNREADABLE_METRIC]} == {"unreadable_reply"}
    assert "expected 1 lines of one number each" in scores[UNREADABLE_METRIC][0]["error"]["message"]


def test_the_noise_of_a_judge_that_is_asked_twice_is_in_a_table_and_in_the_report(store: Path) -> None:
    folder = find_newest_run_folder(store)
    (noise,) = pq.read_table(folder / "judge_noise.parquet").to_pylist()
    asked = (noise["metric"], noise["generator"], noise["repeats"], noise["images"], noise["unread"])
    assert asked == (REPEATED_METRIC, "atlas", 2, 4, 0)
    table = pq.read_table(folder / "scores.parquet").to_pandas()
    assert table[table["metric"] == REPEATED_METRIC]["score"].between(0, 100).all()
    assert "Judges asked several times" in (folder / "report.html").read_text("utf-8")


def test_at_temperature_0_a_judge_is_not_asked_twice(sweep_words: list[str]) -> None:
    asked = "+metrics.judge={kind: gpt4v_eval, repeats: 2}"
    said = run_refused("sweep", *sweep_words, "store=unused", "metric=[]", asked)
    assert "gpt4v_eval repeats: at temperature 0 all 2 replies are the same; set a temperature" in said


def test_captions_regions_and_descriptions_are_made_once(store: Path) -> None:
    for stage in ("captions", "regions", "descriptions"):
        (cell,) = (store / stage).rglob("*.parquet")
        assert len(pq.read_table(cell)) == 4
    assert len(list((store / "verdicts").rglob("*.parquet"))) == 5


def test_the_report_shows_the_judges_replies(store: Path) -> None:
    html = (find_newest_run_folder(store) / "report.html").read_text()
    assert "<bdi>semantic consistency</bdi> <b>8</b>" in html
    assert "&lt;b&gt;plausible&lt;/b&gt; &lt;b&gt;plausible&lt;/b&gt;" in html and "<b>plausible" not in html


def test_repeating_the_sweep_computes_nothing(sweep_words: list[str], store: Path) -> None:
    assert "0 cells to compute" in run_for_output(
        "sweep", *sweep_words, "metric=[viescore]", f"store={store}", "dry_run=true"
    )
