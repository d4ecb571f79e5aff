"""While raters work, a study mixes in gold questions and repeats, shows its progress, and stops when it is done."""

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from plugins.rating.tests.raters import MEAN_GRADES, RatedStudy, grade_randomly
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.statistics.prediction_powered import MIN_LABELS
from plumbline.plugins.rating.labelling import plan_labels
from plumbline.plugins.rating.order import MIN_TASKS_BEFORE_REPEAT
from plumbline.plugins.rating.study_files import read_answers
from tests.commands import load_job_config
from tests.operators.report.made import MadeRun, make_plain_prompts, make_run


@pytest.fixture(scope="module")
def scored_run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    return make_run(tmp_path_factory.mktemp("made"), prompts=make_plain_prompts(40), generators=tuple(MEAN_GRADES))


def make_study(scored_run: MadeRun, folder: Path, **config: Any) -> RatedStudy:
    return RatedStudy(store=scored_run.store.place.url, study=str(folder / "study"), **config)


def write_gold(path: Path, answer: object = 5, generator: str = "atlas") -> str:
    rows = [
        {"template": "likert", "prompt_id": f"p{at:04d}", "generator": generator, "answer": answer} for at in range(4)
    ]
    pd.DataFrame(rows).to_csv(path, index=False)
    return str(path)


def test_gold_questions_and_repeats_look_like_other_tasks(scored_run: MadeRun, tmp_path: Path) -> None:
    study = make_study(scored_run, tmp_path, gold=write_gold(tmp_path / "gold.csv"), repeats=0.1, pictures=30)
    asked = study.rate("ann")
    answers = read_answers(study.study.place)
    assert len(asked) == len(answers)
    gold = [answer for answer in answers if answer.gold is not None]
    assert {answer.prompt_id for answer in gold} == {f"p{at:04d}" for at in range(4)}
    assert all((answer.generators, answer.gold) == (("atlas",), 5) for answer in gold)
    places = {(task["task_id"], task["repeat"]): place for place, task in enumerate(asked)}
    again = [key for key in places if key[1]]
    assert 2 <= len(again) <= 6 and all(places[key] - places[key[0], 0] >= MIN_TASKS_BEFORE_REPEAT for key in again)
    assert len({tuple(sorted(task)) for task in asked}) == 1 and "gold" not in str(asked), (
        "gold questions look like ordinary tasks"
    )
    ordinary = Counter(answer.prompt_id for answer in answers if answer.gold is None and not answer.repeat)
    assert len(ordinary) >= 26 and all(count <= 2 for count in ordinary.values())


def test_a_finished_study_gives_raters_no_tasks_and_says_that_it_is_done(scored_run: MadeRun, tmp_path: Path) -> None:
    study = make_study(scored_run, tmp_path, queue="labels", stop=True, raters=1, repeats=0.0)
    assert 24 <= len(study.rate("ann")) < 60, "fewer than the 80 tasks are needed"
    assert study.rate("bob") == []
    page = study("/progress").text
    assert "Every pair of generators differs clearly, and the study is done" in page
    assert "<bdi>gecko</bdi> (prediction-powered)" in page, "the page names the run's first metric"


def test_the_progress_page_shows_agreement_pairs_and_random_raters(scored_run: MadeRun, tmp_path: Path) -> None:
    study = make_study(scored_run, tmp_path, raters=4, repeats=0.0, pictures=25)
    for name in ("ann", "bobby", "cyrill"):
        study.rate(name)
    study.rate("zed", grade_randomly)
    page = study("/progress").text
    assert "random: the answers may be random" in page
    main = page.partition('id="standing"')[2].partition("</main>")[0]
    assert main.count('class="warning"') == 1 and "<strong><bdi>zed</bdi></strong>" in main
    assert '<td class="n">200</td><td class="n">200</td>' in main, "all required answers are given"
    assert "1 of 1 pair of generators decided; 200 of 200 answers." in main
    assert "with ordinal distance" in main and "prediction-powered" not in main


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"metrics": ("dsg",)}, "dsg"),
        ({"metrics": ("gecko", "dsg")}, "metrics: expected one, such as .*, got gecko, dsg"),
        ({"stop": True}, "stop: needs queue=labels"),
        ({"repeats": 2.0}, "repeats: expected a fraction between 0 and 1, got 2"),
    ],
)
def test_an_impossible_queue_is_refused(
    scored_run: MadeRun, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, SourceError), match=message):
        make_study(scored_run, tmp_path, **config)


def test_a_gold_question_that_matches_no_task_is_refused_with_its_row(scored_run: MadeRun, tmp_path: Path) -> None:
    with pytest.raises(
        SourceError,
        match=r"gold.csv, row 0: expected one task of the study that matches this gold question, found none",
    ):
        make_study(scored_run, tmp_path, gold=write_gold(tmp_path / "gold.csv", generator="other"))


def test_the_queue_starts_with_the_images_that_the_labels_job_lists(scored_run: MadeRun, tmp_path: Path) -> None:
    """After a round of eight prompts, the estimate asks for a few more prompts; the next tasks cover exactly these."""
    study = make_study(scored_run, tmp_path, queue="labels", raters=1, repeats=0.0)
    study.rate("ann", limit=16)
    run = f"{scored_run.store.place.url}/runs/{scored_run.run_id}"
    words = ("protocol=study", f"protocol.path={tmp_path}/study", f"scores={run}", "metrics=[gecko]")
    listed = plan_labels(load_job_config("labels", *words)).next_prompts.to_pylist()
    asked = [study.study.served.tasks[task["task_id"]] for task in study.get_tasks("bob", count=9)]
    assert len(listed) == 2 * (MIN_LABELS - 8)
    assert {(row["prompt_id"], (row["generator"],)) for row in listed} == {
        (task.prompt_id, task.generators) for task in asked[:-1]
    }
