"""Sweeps reproduce the scores of upstream's code, whose formulas the tests repeat step by step on the same answers."""

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scipy.stats import gmean

from plugins.third_party_benchmarks.tests.packs import write_oneig
from plumbline.operators.metrics.metric import Answered, Evidence
from plumbline.operators.metrics.writing import WrittenQuestion
from tests.bench_of import read_prompt_rows
from tests.commands import load_job_config
from tests.pipelines.test_released_numbers import (
    QUESTIONS,
    Answers,
    SweepScores,
    compute_gated_score,
    make_annotations,
    run,
    says_yes,
    write_pairs,
)
from tests.question_packs import ANNOTATION_COLUMNS, write_csv, write_geneval2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("bench"))


class DpgBenchScores(NamedTuple):
    scores: Mapping[str, float]
    """Scores by prompt, without prompts that have a failed image."""
    levels: Mapping[str, float]
    categories: Mapping[str, float]


def compute_dpg_bench(answers: Answers, *, first_row: int, last_image_only: bool) -> DpgBenchScores:
    """Compute the scores from answers in the same way as upstream's code.

    That code sets an answer to zero in place if the value of a parent question is zero. The means by level and
    category use the answers before they are set to zero. With `last_image_only`, as in that code, the means only use
    the answers for a prompt's last image.
    """
    items: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in make_annotations()[first_row:]:
        items[row["item_id"]].append(row)
    scores: dict[str, float] = {}
    levels, categories = defaultdict(list), defaultdict(list)
    for item, rows in items.items():
        each, answered = [], []
        try:
            for image in range(2):
                value = {
                    row["proposition_id"]: float(says_yes(answers[item, image, row["question_natural_language"]]))
                    for row in rows
                }
                answered.append(dict(value))
                for row in rows:
                    parents = [int(parent) for parent in row["dependency"].split(",")]
                    if any(parent != 0 and value[parent] == 0 for parent in parents):
                        value[row["proposition_id"]] = 0.0
                each.append(sum(value.values()) / len(value))
        except KeyError:
            continue
        scores[item] = sum(each) / len(each)
        for of_image in answered[-1:] if last_image_only else answered:
            for row in rows:
                category = row["tuple"].split("(")[0].strip()
                categories[category].append(of_image[row["proposition_id"]])
                levels[category.split("-")[0].strip()].append(of_image[row["proposition_id"]])
    mean = {name: sum(values) / len(values) for name, values in levels.items()}
    return DpgBenchScores(scores, mean, {name: sum(values) / len(values) for name, values in categories.items()})


@pytest.fixture(scope="module")
def dpg_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("dpg") / "dpg_bench.csv", ANNOTATION_COLUMNS, make_annotations())


DPG_OPTIONS = ("benchmark=dpg_bench", "metric=[dpg_bench,dpg_bench_levels]", "benchmark.prompts=${benchmark.questions}")


@pytest.fixture(scope="module")
def fixed_scores(folder: Path, dpg_file: Path) -> SweepScores:
    given = (f"benchmark.questions={dpg_file}", "benchmark.convention=fixed", "metrics.dpg_bench_levels.images=mean")
    return run(folder, folder / "fixed", *DPG_OPTIONS, *given)


@pytest.fixture(scope="module")
def released_scores(folder: Path, dpg_file: Path) -> SweepScores:
    return run(folder, folder / "released", *DPG_OPTIONS, f"benchmark.questions={dpg_file}")


def read_levels(ran: SweepScores, level: int) -> dict[str, float]:
    compute_kind_scores = pytest.importorskip("plumbline.plugins.diagnosis.question_kinds").compute_kind_scores
    return {
        row.kind: row.mean
        for row in compute_kind_scores(ran.store, ran.run_id, "dpg_bench_levels")
        if row.level == level
    }


def test_dpg_bench_as_released_reproduces_upstreams_scores(
    released_scores: SweepScores, fixed_scores: SweepScores
) -> None:
    """As in upstream's code, the first prompt fails, because an answer is missing.

    The means by level only use the answers for the last image of a prompt.
    """
    expected = compute_dpg_bench(fixed_scores.answers, first_row=1, last_image_only=True)
    first, *others = [one["prompt_id"] for one in read_prompt_rows(4)]
    assert set(expected.scores) == set(others)
    assert released_scores.scores["dpg_bench"][first] is None
    assert {one: released_scores.scores["dpg_bench"][one] for one in others} == pytest.approx(dict(expected.scores))
    assert read_levels(released_scores, 1) == pytest.approx(dict(expected.levels))
    dashed = {name: value for name, value in expected.categories.items() if "-" in name}
    assert read_levels(released_scores, 2) == pytest.approx(dashed)


def test_dpg_bench_as_fixed_counts_every_question(released_scores: SweepScores, fixed_scores: SweepScores) -> None:
    expected = compute_dpg_bench(fixed_scores.answers, first_row=0, last_image_only=False)
    assert fixed_scores.scores["dpg_bench"] == pytest.approx(dict(expected.scores))
    assert read_levels(fixed_scores, 1) == pytest.approx(dict(expected.levels))
    assert read_levels(fixed_scores, 1) != pytest.approx(read_levels(released_scores, 1)), (
        "the released and the fixed scores differ in this fixture"
    )


@pytest.mark.parametrize("zeroing", ["direct", "recursive"])
def test_other_zeroing_options_lead_to_other_scores(
    zeroing: str, fixed_scores: SweepScores, folder: Path, dpg_file: Path
) -> None:
    given = (f"benchmark.questions={dpg_file}", "benchmark.convention=fixed", f"metrics.dpg_bench.zeroing={zeroing}")
    other = run(folder, folder / "fixed", *DPG_OPTIONS, *given)
    assert other.scores["dpg_bench"] != pytest.approx(dict(fixed_scores.scores["dpg_bench"]))


@pytest.mark.parametrize("convention", ["released", "fixed"])
def test_soft_tifa_adds_up_the_probabilities_of_an_answers_spellings(
    convention: str, folder: Path, tmp_path: Path
) -> None:
    """The convention `released` uses the spellings' first tokens; `fixed` uses all tokens except the end token."""
    questions = write_geneval2(tmp_path / "geneval2_data.jsonl")
    given = [f"benchmark.questions={questions}", "metric=[geneval2,geneval2_am]", f"benchmark.convention={convention}"]
    ran = run(folder, tmp_path / "store", "benchmark=geneval2", *given)
    probabilities: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (prompt_id, image, _), spellings in ran.answers.items():
        logs = [tokens[0] if convention == "released" else sum(tokens[:-1]) for tokens in spellings]
        probabilities[prompt_id, image].append(sum(map(math.exp, logs)))
    assert len(probabilities) == 8 and all(len(of_image) == 2 for of_image in probabilities.values())
    for one in read_prompt_rows(4):
        each = [probabilities[one["prompt_id"], image] for image in range(2)]
        geometric = sum(gmean(of_image) for of_image in each) / 2
        arithmetic = sum(sum(of_image) / 2 for of_image in each) / 2
        assert ran.scores["geneval2"][one["prompt_id"]] == pytest.approx(geometric, rel=1e-5)
        assert ran.scores["geneval2_am"][one["prompt_id"]] == pytest.approx(arithmetic, rel=1e-5)
    compute_kind_scores = pytest.importorskip("plumbline.plugins.diagnosis.question_kinds").compute_kind_scores
    kinds = {row.kind: row.n for row in compute_kind_scores(ran.store, ran.run_id, "geneval2_am")}
    assert kinds == {"count": 4, "object": 4}


def test_oneig_counts_a_yes_only_if_the_parent_question_has_a_yes(folder: Path, tmp_path: Path) -> None:
    place = write_oneig(tmp_path / "oneig")
    ran = run(folder, tmp_path / "store", "benchmark=oneig", f"benchmark.questions={place}", "metric=[oneig]")
    for one in read_prompt_rows(4):
        each = [
            compute_gated_score(
                {
                    number: says_yes(ran.answers[one["prompt_id"], image, question])
                    for number, question in ((1, "Is there a circle?"), (2, "Is the circle red?"))
                },
                {2: [1]},
            )
            for image in range(2)
        ]
        assert ran.scores["oneig"][one["prompt_id"]] == pytest.approx(sum(each) / 2)


def count_down_from_roots(answered: Mapping[int, bool], parents: Mapping[int, list[int]]) -> float:
    """Return the fraction of questions that are reached from the roots through questions that are answered yes.

    Arena-T2I Hard's judge answers questions in this order, and never sees a question whose parent is not answered yes.
    """
    passed = {0}
    waiting = [0]
    while waiting:
        waiting.pop()
        reached = [one for one, needs in parents.items() if one not in passed and {*needs} <= passed and answered[one]]
        passed |= {*reached}
        waiting += reached
    return len(passed - {0}) / len(answered)


def test_arena_t2i_hard_counts_no_question_below_one_that_is_not_answered_yes(
    fixed_scores: SweepScores, folder: Path, dpg_file: Path
) -> None:
    given = (f"benchmark.questions={dpg_file}", "metric=[arena_t2i_hard]", "benchmark.convention=fixed")
    ran = run(folder, folder / "fixed", "benchmark=dsg_1k", *given, "benchmark.prompts=${benchmark.questions}")
    parents = {number: [*map(int, needs.split(","))] for number, needs, _, _ in QUESTIONS}
    for one in read_prompt_rows(4):
        each = [
            count_down_from_roots(
                {
                    number: says_yes(fixed_scores.answers[one["prompt_id"], image, question.format(one["text"])])
                    for number, _, question, _ in QUESTIONS
                },
                parents,
            )
            for image in range(2)
        ]
        assert ran.scores["arena_t2i_hard"][one["prompt_id"]] == pytest.approx(sum(each) / 2)
    assert ran.scores["arena_t2i_hard"] != fixed_scores.scores["dpg_bench"]


THRONE_PARENTS = {
    **{number: [0] for number in (3, 9, 10, 12, 13, 14, 26)},
    **{number: [3] for number in (4, 5, 6, 7, 8)},
    **{2: [0, 1], 11: [10], 15: [1], 17: [16], 19: [18], 21: [20], 22: [1, 16, 18, 20]},
}
"""Questions of the second example on Arena-T2I Hard's page that depend on others, of 27."""
CAT_PARENTS = {1: [0], 3: [2], 4: [0, 2]}
"""Questions of the first example that depend on others, of 6."""


@pytest.mark.parametrize(
    ("count", "parents", "failed", "passed"), [(27, THRONE_PARENTS, {10, 17, 19}, 23), (6, CAT_PARENTS, {2}, 3)]
)
def test_the_examples_on_arena_t2i_hards_page_have_its_scores(
    count: int, parents: Mapping[int, list[int]], failed: set[int], passed: int
) -> None:
    """The judge is not asked what depends on a failed question; here it is asked, and says yes."""
    metric = load_job_config("scorer", "metric=[arena_t2i_hard]", "models=shapes").metrics["arena_t2i_hard"]
    answered = []
    for number in range(count):
        needs = tuple(map(str, parents.get(number, ())))
        question = WrittenQuestion(str(number), "", ("yes", "no"), "yes", parents=needs)
        yes = -5.0 if number in failed else -0.1
        answered.append(Answered(question, ((yes,), (-1.0,))))
    assert metric.score(Evidence({}, answered)).score == pytest.approx(passed / count)
