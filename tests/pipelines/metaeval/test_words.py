"""A metric's answers about words are compared with people's ratings of these words."""

from pathlib import Path

import pandas as pd
import pytest

from plumbline.operators.base.errors import ConfigError, PlumblineError, SourceError
from plumbline.pipelines.metaeval.metaeval import Findings, run_metaeval
from tests.commands import load_job_config
from tests.operators.report.made import MadeRun, make_plain_prompts, make_run
from tests.pipelines.metaeval.releases.files import ROOT, read_with, write_file

ANSWERS = ("Aligned", "Not aligned", "Unsure")
GENERATORS = ("atlas", "cobalt")


def score(generator: str, metric: str, prompt: int) -> float:
    """Return gecko's score for the question about the word "red": low for cobalt, except for the last prompt."""
    return 0.9 if generator == "atlas" or prompt == 3 else 0.1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """Make a run of four prompts by two generators, in which gecko asks about the words "red" and "star".

    The function `score` returns the score for "red"; the answer about "star" is correct for every image.
    """
    folder = tmp_path_factory.mktemp("made")
    return make_run(folder, prompts=make_plain_prompts(4), generators=GENERATORS, score=score)


def write_ratings(folder: Path, third: str = "Aligned") -> Path:
    """Write two people's answers about three words of each prompt; for cobalt's images, the first word is not aligned.

    `third` is the answer about the third word.
    """
    answers = {
        ("atlas", 1): "Aligned", ("cobalt", 1): "Not aligned", ("atlas", 2): "Aligned", ("cobalt", 2): "Aligned",
        ("atlas", 3): third, ("cobalt", 3): third,
    }  # fmt: skip
    lines = [
        f"p{prompt:04d},{generator},{rater},{word},{answer}"
        for prompt in range(4)
        for (generator, word), answer in answers.items()
        for rater in ("a", "b")
    ]
    write_file(folder / "wl.csv", "\n".join(["prompt_id,generator,rater,word,answer", *lines, ""]))
    prompts = [f"x/y:{place % 2},{text},t,p{place:04d}" for place, text in enumerate(make_plain_prompts(4))]
    write_file(folder / "prompts.csv", "\n".join(["dataset_id,prompt,prompt_type,prompt_id", *prompts, ""]))
    return folder


def judge_words(folder: Path, scores: str, *overrides: str) -> Findings:
    given = ["protocol=gecko", f"protocol.path={folder}", "protocol.tasks=[words]", f"scores={scores}",
             "sampling.resamples=20", f"output={folder}/out", *overrides]  # fmt: skip
    return run_metaeval(load_job_config("metaeval", *given))


def list_values(findings: Findings, subset: str = "overall") -> dict[str, float]:
    return {one.statistic: one.value for one in findings.judgements if one.subset == subset}


def test_a_metric_is_judged_on_the_words_that_its_questions_are_about(tmp_path: Path, run: MadeRun) -> None:
    found = judge_words(write_ratings(tmp_path), str(run.folder))
    assert {(one.metric, one.template) for one in found.judgements} == {("gecko", "words")}
    assert list_values(found) == {
        "accuracy": 15 / 16,  # the metric considers cobalt's last red correct
        "precision": 1.0,
        "recall": 3 / 4,
        "auroc": pytest.approx((3 * 12 + 8 + 4 / 2) / 48),
        "coverage": 2 / 3,  # nothing is asked about `beside`
    }
    accuracy = next(one for one in found.judgements if one.statistic == "accuracy")
    assert (accuracy.n, accuracy.n_unscored) == (
        16,
        8,
    ) and "the lowest of the questions about it" in accuracy.convention
    written = pd.read_parquet(tmp_path / "out/words.parquet")
    row = written[(written["generator"] == "cobalt") & (written["word"] == "red")].iloc[0]
    assert (row["metric"], row["start"], row["end"], row["rated"], row["score"]) == ("gecko", 2, 5, 0.0, 0.1)
    assert written["score"].isna().sum() == 8 and set(written["n_questions"]) == {0, 1}


def test_words_do_not_count_if_people_disagree_or_are_unsure(tmp_path: Path, run: MadeRun) -> None:
    folder = write_ratings(tmp_path, third="Unsure")
    text = (folder / "wl.csv").read_text()
    (folder / "wl.csv").write_text(text.replace("cobalt,b,1,Not aligned", "cobalt,b,1,Aligned"))
    found = judge_words(folder, f"{run.folder}/scores.parquet", "metrics=[gecko]")
    assert list_values(found)["coverage"] == 1 and list_values(found)["accuracy"] == 1
    recall = next(one for one in found.judgements if one.statistic == "recall")
    assert recall.n == 0 and recall.convention == "undefined: every word is aligned"


def test_scores_and_prompts_that_cannot_be_used_for_words_are_errors(tmp_path: Path, run: MadeRun) -> None:
    folder = write_ratings(tmp_path)
    write_file(folder / "scores.csv", "prompt_id,generator,gecko\np0000,atlas,1\n")
    with pytest.raises(ConfigError, match=r"judging words requires a run in its store \(STORE/runs/ID\).*scores\.csv"):
        judge_words(folder, f"{folder}/scores.csv")
    with pytest.raises(SourceError, match="no metric in the run asks about words in the prompts of rated images"):
        judge_words(folder, str(run.folder), "metrics=[clipscore]")
    write_file(folder / "prompts.csv", (folder / "prompts.csv").read_text().replace("a red star", "A tall man"))
    with pytest.raises(
        SourceError, match=r"gecko asks about 'red' for image 'atlas-p0000', but people rated 'tall' at"
    ):
        judge_words(folder, str(run.folder))
    (folder / "prompts.csv").unlink()
    with pytest.raises(PlumblineError, match="no usable judgements"):
        judge_words(folder, str(run.folder))


def test_the_embedded_benchmark_marks_missing_words_as_not_aligned() -> None:
    words = read_with("shapes", ROOT / "assets/shapes").words.to_pandas()
    prompts = pd.read_parquet(ROOT / "assets/shapes/prompts.parquet").set_index("prompt_id")["text"]
    assert [prompts[row.prompt_id][row.start : row.end] for row in words.head(50).itertuples()] == [*words["word"][:50]]
    broken = pd.read_parquet(ROOT / "assets/shapes/truth.parquet").set_index("image_id")["broken"]
    whole = words.groupby("image_id")["aligned"].min()
    assert all((whole[image] == 1) == (len(broken[image]) == 0) for image in whole.index)
