"""A study's answers become human judgements, against which metrics can be compared."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugins.rating.tests.simulated import make_answer, make_task
from plumbline.operators.base.errors import SourceError
from plumbline.operators.statistics.options import Sampling
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.metaeval.metaeval import run_metaeval
from plumbline.pipelines.metaeval.releases.release import split_words
from plumbline.pipelines.store.checksums import encode_json
from plumbline.pipelines.store.store import encode_table
from plumbline.plugins.rating.answers import Answer, encode_answer
from plumbline.plugins.rating.labelling import plan_labels
from plumbline.plugins.rating.numbers import collect_ratings
from plumbline.plugins.rating.question_templates import TEMPLATES
from plumbline.plugins.rating.raters import find_agreement
from plumbline.plugins.rating.study_files import (
    make_answer_path,
    make_key,
    make_tasks_path,
    make_version_path,
    read_answers,
)
from plumbline.plugins.rating.study_ratings import RATING_NAMES, read_study_ratings
from plumbline.plugins.rating.tasks import Task, encode_tasks
from tests.commands import load_job_config
from tests.operators.report.made import make_plain_prompts, make_run
from tests.pipelines.metaeval.releases.files import write_file

LIKERT_TASK, WORDS_TASK, QUESTIONS_TASK = (
    make_task(name, "p1", ("atlas",), skills=("color",)) for name in ("likert", "words", "questions")
)
SIDE_BY_SIDE_TASK, VOTE_TASK = (
    make_task(name, "p1", ("atlas", "flint"), skills=("color",)) for name in ("side_by_side", "vote")
)


def write_version(study: Place, tasks: Sequence[Task], version: int = 1) -> None:
    (study / make_tasks_path(version)).write(encode_table("tasks", encode_tasks(tasks)))
    (study / make_version_path(version)).write(encode_json({"version": version, "design": {}}).encode())


def store_answer(study: Place, given: Answer, revision: int = 0) -> None:
    (study / make_answer_path(make_key(given), revision)).write(encode_answer(given))


@pytest.fixture
def study(tmp_path: Path) -> Place:
    place = StorageConfig().locate(str(tmp_path / "study"))
    write_version(place, [LIKERT_TASK, WORDS_TASK, QUESTIONS_TASK, SIDE_BY_SIDE_TASK, VOTE_TASK])
    return place


def test_every_template_has_its_own_judgements(study: Place) -> None:
    """Words and questions that a rater is unsure about do not count.

    Of the words of "a red cube", one is marked wrong and one unsure, so the rating is 1/2. Only one of two questions
    has an answer.
    """
    said: dict[str, tuple[Task, Any]] = {
        "ann": (LIKERT_TASK, 4), "bob": (LIKERT_TASK, "unsure"), "cy": (WORDS_TASK, {"wrong": [1], "unsure": [0]}),
        "di": (WORDS_TASK, "cannot_tell"), "ed": (QUESTIONS_TASK, {"q1": "yes", "q2": "cannot_tell"}),
        "flo": (SIDE_BY_SIDE_TASK, "b"),
        "gus": (SIDE_BY_SIDE_TASK, "tie"), "hal": (VOTE_TASK, "a"), "ida": (VOTE_TASK, "unsure"),
    }  # fmt: skip
    for rater, (task, answer) in said.items():
        store_answer(study, make_answer(task, rater, answer))
    release = read_study_ratings(study)
    ratings = {row["rater"]: (row["template"], row["rating"]) for row in release.ratings.to_pylist()}
    assert ratings == {
        "ann": ("likert", 4.0), "bob": ("likert", None), "cy": ("wl", 0.5), "di": ("wl", None), "ed": ("dsg_h", 1.0),
    }  # fmt: skip
    ids = {(row["image_id"], row["prompt_id"], row["generator"]) for row in release.ratings.to_pylist()}
    assert ids == {("p1/atlas", "p1", "atlas")}
    words = [(row["rater"], row["word"], row["start"], row["aligned"]) for row in release.words.to_pylist()]
    assert words == [
        ("cy", "a", 0, None), ("cy", "red", 2, 0.0), ("cy", "cube", 6, 1.0),
        ("di", "a", 0, None), ("di", "red", 2, None), ("di", "cube", 6, None),
    ]  # fmt: skip
    choices = {row["rater"]: (row["template"], row["preferred"]) for row in release.preferences.to_pylist()}
    assert choices == {
        "flo": ("side_by_side", "b"), "gus": ("side_by_side", "unsure"), "hal": ("vote", "a"), "ida": ("vote", None),
    }  # fmt: skip
    (pair,) = {tuple(row[f"{name}_{side}"] for name in ("image", "generator") for side in "ab")
               for row in release.preferences.to_pylist()}  # fmt: skip
    assert pair == ("p1/atlas", "p1/flint", "atlas", "flint")
    assert release.skills == {"p1": ("color",)}
    assert release.notes == [
        "2 answers unsure: no rating",
        "1 answer cannot tell: no rating",
        "2 of 5 ratings are empty and count as unsure",
    ]


def test_grades_in_the_papers_templates_become_ratings_in_which_higher_is_better(study: Place) -> None:
    """Two errors out of at most nine become a rating of seven; subjective and invalid replies do not count."""
    said = {"genai_bench": 2, "gecko_likert": 5, "llmscore_overall": 10, "llmscore_errors": 2}
    tasks = {name: make_task(name, "p1", ("atlas",)) for name in said}
    write_version(study, [*tasks.values(), QUESTIONS_TASK])
    for name, answer in said.items():
        store_answer(study, make_answer(tasks[name], "ann", answer))
    store_answer(study, make_answer(QUESTIONS_TASK, "ann", {"q1": "no", "q2": "subjective"}))
    store_answer(study, make_answer(QUESTIONS_TASK, "bob", {"q1": "invalid", "q2": "yes"}))
    ratings = [(row["template"], row["rater"], row["rating"]) for row in read_study_ratings(study).ratings.to_pylist()]
    assert sorted(ratings) == [
        ("dsg_h", "ann", 0.0), ("dsg_h", "bob", 1.0), ("gecko_likert", "ann", 5.0), ("genai_bench", "ann", 2.0),
        ("llmscore_errors", "ann", 7.0), ("llmscore_overall", "ann", 10.0),
    ]  # fmt: skip


def test_the_last_revision_counts_and_gold_repeats_and_removed_tasks_are_noted(study: Place) -> None:
    gone = make_task("likert", "p2", ("atlas",))
    write_version(study, [LIKERT_TASK, gone])
    store_answer(study, make_answer(LIKERT_TASK, "ann", 1))
    store_answer(study, make_answer(LIKERT_TASK, "ann", 5), revision=1)
    store_answer(study, make_answer(LIKERT_TASK, "ann", 2, repeat=1))
    store_answer(study, make_answer(LIKERT_TASK, "bob", 2, gold=3))
    store_answer(study, make_answer(gone, "ann", 3))
    write_version(study, [LIKERT_TASK, SIDE_BY_SIDE_TASK], version=2)
    store_answer(study, replace(make_answer(LIKERT_TASK, "cy", 4), version=2))
    release = read_study_ratings(study)
    assert [(row["rater"], row["rating"]) for row in release.ratings.to_pylist()] == [("ann", 5), ("cy", 4)]
    assert {*release.notes} == {
        "1 answer to gold questions, left out",
        "1 answer to repeats, left out",
        "1 answer to tasks that version 2 no longer asks, left out",
        "1 answer of earlier versions of the study, kept: version 2 asks the same",
    }


def test_a_study_without_answers_is_refused_with_the_remedy(study: Place) -> None:
    with pytest.raises(
        SourceError, match=r"the study has no answers yet; collect some with plumbline rate study=.*study"
    ):
        read_study_ratings(study)


@pytest.fixture(scope="module")
def judged_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write ratings and scores of 20 prompts, and return their folder.

    Atlas beats flint on every prompt, except in some votes.
    """
    folder = tmp_path_factory.mktemp("judged")
    place, tasks = StorageConfig().locate(str(folder / "study")), list[Task]()
    scores = []
    for number in range(20):
        prompt, names = f"p{number}", ("atlas", "flint")
        alone = [make_task(template, prompt, (name,)) for template in ("likert", "words") for name in names]
        both = [make_task(template, prompt, names) for template in ("side_by_side", "vote")]
        scores += [
            {"image_id": f"{prompt}/{name}", "prompt_id": prompt, "generator": name,
             "hits": number / 100 + (name == "atlas")} for name in names
        ]  # fmt: skip
        for task in (*alone, *both):
            good = task.generators[0] == "atlas"
            said = {
                "likert": 5 if good else 1 + number % 2, "words": {"wrong": [] if good else [1], "unsure": []},
                "side_by_side": "a", "vote": "b" if number < 6 else "a",
            }[task.template]  # fmt: skip
            for rater in ("ann", "bob"):
                store_answer(place, make_answer(task, rater, said))
        tasks += [*alone, *both]
    write_version(place, tasks)
    write_file(folder / "scores.csv", scores)
    return folder


def test_metrics_are_judged_by_all_templates_of_a_study(judged_study: Path) -> None:
    given = [f"protocol.path={judged_study}/study", f"scores={judged_study}/scores.csv", f"output={judged_study}/out"]
    found = run_metaeval(
        load_job_config("metaeval", "protocol=study", *given, "protocol.alpha=0.2", "sampling.resamples=20")
    )
    values = {
        (one.metric, one.template, one.statistic): one.value for one in found.judgements if one.group == "overall"
    }
    assert values["hits", "side_by_side", "binary_accuracy"] == 1
    assert values["hits", "vote", "binary_accuracy"] == 0.7
    assert values["hits", "wl", "pairwise_accuracy_grouped"] == 1
    for template in ("likert", "wl", "side_by_side", "vote"):
        assert values["hits", template, "model_ordering"] == 1
    assert values["people", "likert", "alpha_ordinal"] == values["people", "vote", "alpha_ordinal"] == 1
    means = {(one.template, one.group): one.value for one in found.judgements if one.statistic == "mean_rating"}
    assert means["wl", "generator flint"] == pytest.approx(2 / 3) and means["likert", "generator flint"] == 1.5
    people = {order.template: (order.generator_a, order.better) for order in found.orders if order.judge == "people"}
    assert people == dict.fromkeys(("likert", "wl", "side_by_side", "vote", "majority"), ("atlas", "atlas"))


def draw_answer(task: Task, random: np.random.Generator) -> Any:
    if random.random() < 0.1:
        return "unsure"
    if grades := TEMPLATES[task.template].grades:
        return int(random.choice(grades))
    marks = random.choice(["shown", "wrong", "unsure"], len(task.words), p=[0.6, 0.3, 0.1])
    return {
        "words": {mark: [int(word) for word in np.flatnonzero(marks == mark)] for mark in ("wrong", "unsure")},
        "questions": {one.question_id: str(random.choice(["yes", "no", "unsure"])) for one in task.questions},
    }.get(task.template, str(random.choice(["a", "b", "tie"])))


def test_the_rate_and_metaeval_jobs_compute_the_same_alpha_for_a_study(tmp_path: Path) -> None:
    random, place = np.random.default_rng(11), StorageConfig().locate(str(tmp_path / "study"))
    tasks = [
        make_task(template, f"p{number}", names[: 1 + (template in ("side_by_side", "vote"))])
        for template in TEMPLATES
        for number in range(9)
        for names in permutations(("atlas", "flint"))
    ]
    write_version(place, tasks)
    for at in random.permutation(3 * len(tasks)):
        if random.random() < 0.9:
            store_answer(place, make_answer(tasks[at // 3], "abc"[at % 3], draw_answer(tasks[at // 3], random)))
    found = run_metaeval(
        load_job_config(
            "metaeval", "protocol=study", f"protocol.path={place}", f"output={tmp_path}/out", "sampling.resamples=20"
        )
    )
    alphas = [one for one in found.judgements if (one.statistic, one.group) == ("alpha_ordinal", "overall")]
    ours = {one.template: one.value for one in alphas}
    progress = find_agreement(collect_ratings(read_answers(place), tasks), Sampling(resamples=20))
    assert len(ours) == len(TEMPLATES) and len({*ours.values()}) == len(TEMPLATES)
    assert ours == pytest.approx({RATING_NAMES.get(one.template, one.template): one.alpha for one in progress})


def test_raters_who_each_reject_a_different_word_do_not_agree(tmp_path: Path) -> None:
    """Each rater rejects one of three words: the same one for prompts named `same...`, otherwise different ones."""
    random, place = np.random.default_rng(3), StorageConfig().locate(str(tmp_path / "study"))
    tasks = [
        make_task("words", f"{kind}{number}", (name,))
        for kind in ("same", "other")
        for number in range(6)
        for name in ("atlas", "flint")
    ]
    write_version(place, tasks)
    for task in tasks:
        words = random.permutation(3)
        for word, rater in zip(words, "abc", strict=True):
            wrong = int(words[0] if task.prompt_id.startswith("same") else word)
            store_answer(place, make_answer(task, rater, {"wrong": [wrong], "unsure": []}))
    words_of = ("protocol=study", f"protocol.path={place}", f"output={tmp_path}/out")
    found = run_metaeval(load_job_config("metaeval", *words_of))
    alphas = {one.value for one in found.judgements if one.statistic == "alpha_ordinal"}
    assert all(0.2 < alpha < 0.8 for alpha in alphas), (
        "agreement is computed per word, not from the fraction of right words"
    )
    reliable = run_metaeval(load_job_config("metaeval", *words_of, "protocol.reliable=true"))
    assert any(note.startswith("6 of 12 prompts are reliable: raters' variance") for note in reliable.notes)
    assert {one.value for one in reliable.judgements if one.statistic == "alpha_ordinal"} == {1}


@pytest.mark.parametrize("template", ["likert", "vote"])
def test_the_labels_job_decides_pairs_by_one_template_of_a_study(judged_study: Path, template: str) -> None:
    given = [
        f"protocol.path={judged_study}/study",
        f"scores={judged_study}/scores.csv",
        f"output={judged_study}/next.csv",
    ]
    plan = plan_labels(load_job_config("labels", "protocol=study", *given, f"protocol.templates=[{template}]"))
    (pair,) = plan.pairs
    assert (pair.a, pair.b, pair.rated) == ("atlas", "flint", 20)
    assert pair.estimate is not None and pair.estimate.estimate == pytest.approx({"likert": 3.5, "vote": 0.4}[template])


def test_words_that_a_rater_marks_in_a_study_show_how_good_a_runs_questions_are(tmp_path: Path) -> None:
    """The rater marks "red" as wrong in cobalt's images, which gecko also scores low."""
    texts = make_plain_prompts(4)
    names = ("atlas", "cobalt")
    run = make_run(tmp_path, prompts=texts, generators=names, score=lambda name, *_: 0.9 if name == "atlas" else 0.1)
    place = StorageConfig().locate(str(tmp_path / "study"))
    made = [make_task("words", f"p{number:04d}", (name,)) for number in range(4) for name in names]
    tasks = [replace(task, prompt=texts[int(task.prompt_id[1:])]) for task in made]
    tasks = [replace(task, words=tuple(word for word, _, _ in split_words(task.prompt))) for task in tasks]
    for task in tasks:
        wrong = [task.words.index("red")] if task.generators == ("cobalt",) else []
        store_answer(place, make_answer(task, "ann", {"wrong": wrong, "unsure": []}))
    write_version(place, tasks)
    given = [f"protocol.path={place.url}", f"scores={run.folder}", f"output={tmp_path}/out", "sampling.resamples=20"]
    asked = "protocol.tasks=[ratings,preferences,words,orders]"
    found = run_metaeval(load_job_config("metaeval", "protocol=study", *given, asked))
    values = {
        one.statistic: one.value for one in found.judgements if one.template == "words" and one.group == "overall"
    }
    assert values["recall"] == values["precision"] == 1
    assert "task preferences: the release has no judgements for it" in found.notes
    assert any(one.template == "wl" and one.statistic == "spearman" for one in found.judgements)
