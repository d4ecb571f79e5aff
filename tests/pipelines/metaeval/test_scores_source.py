"""A job that reads scores accepts the id of a run in a store, or the path of a table."""

from pathlib import Path

import pandas as pd
import pytest

from tests.commands import run_for_output, run_refused
from tests.operators.report.made import MadeRun, make_plain_prompts, make_run

GENERATORS = ("atlas", "cobalt")


def score(generator: str, metric: str, prompt: int) -> float:
    return (prompt * 7 + 3 * len(generator) + len(metric)) % 11 / 11


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    return make_run(tmp_path_factory.mktemp("made"), prompts=make_plain_prompts(36), generators=GENERATORS, score=score)


@pytest.fixture(scope="module")
def rating_options(run: MadeRun, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Write shuffled ratings that follow one metric's scores; return the options with which a job reads them."""
    scores = pd.read_parquet(run.folder / "scores.parquet").query("metric == 'gecko'")
    ratings = scores[["prompt_id", "generator"]].assign(rater="a", rating=(1 + scores["score"] * 4).round())
    path = tmp_path_factory.mktemp("rated") / "ratings.csv"
    ratings.sample(frac=1, random_state=0).to_csv(path, index=False)
    return ["protocol=long", f"protocol.path={path}"]


def test_a_run_can_be_selected_by_its_id_or_its_folder(tmp_path: Path, run: MadeRun, rating_options: list[str]) -> None:
    few = [*rating_options, "sampling.resamples=20", "sampling.permutations=99"]
    store = str(run.folder.parent.parent)
    named = {"folder": [f"scores={run.folder}"]}
    named |= {name: [f"run={name}", f"store={store}"] for name in ("latest", run.folder.name)}
    for name, words in named.items():
        run_for_output("metaeval", *few, *words, f"output={tmp_path}/{name}")
    folder, *others = (pd.read_parquet(tmp_path / name / "judgements.parquet") for name in named)
    assert {"gecko", "clipscore"} <= set(folder["metric"])
    for judged in others:
        pd.testing.assert_frame_equal(judged, folder)


def test_the_conclusion_is_the_same_as_in_the_runs_report(
    tmp_path: Path, run: MadeRun, rating_options: list[str]
) -> None:
    words = [*rating_options, "run=latest", f"store={run.folder.parent.parent}"]
    printed_here = run_for_output("metaeval", *words, f"output={tmp_path}", "sampling.resamples=200")
    (conclusion,) = [line for line in printed_here.splitlines() if line.startswith("gecko agrees best with likert by ")]
    assert "72 images of 36 prompts" in conclusion and "Clearly less: clipscore." in conclusion
    assert f"  {conclusion}\n" in run_for_output("report", *words)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["scores=latest"],
            "latest: not found; check the path, or select a run in a store with run=latest store=STORE",
        ),
        (["run=latest", "scores=s.csv"], "run=latest, scores=s.csv: expected only one of the two; leave one out"),
        (["run=other"], "run=other: no such run in "),
        (["run=latest", "store=nowhere"], "there is no store here"),
    ],
)
def test_missing_scores_are_an_error_with_a_remedy(
    words: list[str], line: str, run: MadeRun, rating_options: list[str]
) -> None:
    assert line in run_refused("metaeval", *rating_options, f"store={run.folder.parent.parent}", *words)
