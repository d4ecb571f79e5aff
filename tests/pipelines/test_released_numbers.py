"""Sweeps give the numbers of the releases, whose arithmetic is repeated here step by step on the same answers."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scipy.stats import gmean

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.question_kinds import pool_kinds
from tests.bench_of import images, plan_bench, prompts, run_plan, write_rows
from tests.commands import printed, store_at
from tests.question_packs import ANNOTATIONS, proposition, write_csv, write_geneval2, write_oneig

ASKED = [
    (1, "0", 'Does this figure show "{}"?', "entity - whole"),
    (2, "1", "Is there a triangle?", "entity - whole"),
    (3, "2", "Is there a circle?", "global"),
    (4, "5", "Is there a star?", "global"),
    (5, "3", "Is there a blue triangle?", "attribute - shape"),
    (6, "1,2", "Is there a square?", "relation - spatial"),
]
"""One of which hangs on a question behind it. Garnet shows a triangle, a circle and a star for "two green circles"."""

Answers = Mapping[tuple[str, int, str], Sequence[Sequence[float]]]
"""By prompt_id, image of its row and question, the log-probabilities of each choice's tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four prompts, each with a row of two images."""
    folder = tmp_path_factory.mktemp("bench")
    both = zip(images("atlas", 4), images("garnet", 4), strict=True)
    rows = [{**one, "image": [one["image"], other["image"]]} for one, other in both]
    write_rows(folder / "images" / "pairs" / "00000.parquet", rows)
    write_rows(folder / "prompts.parquet", prompts(4))
    return folder


class Ran(NamedTuple):
    scores: Mapping[str, Mapping[str, float | None]]
    """By metric and prompt_id."""
    answers: Answers
    store: Store
    run_id: str


def run(folder: Path, store: Path, *overrides: str) -> Ran:
    planned = plan_bench(folder, store, *overrides, "benchmark.name=packed")
    finished = run_plan(planned)
    scores: dict[str, dict[str, float | None]] = defaultdict(dict)
    for row in finished.results.read_scores().to_pylist():
        scores[row["metric"]][row["prompt_id"]] = row["score"]
    opened = store_at(planned.store.place.url)
    return Ran(scores, answers_of(planned, opened), opened, finished.run_id)


def answers_of(planned: PlannedSweep, store: Store) -> Answers:
    def tables(stage: str) -> list[dict[str, Any]]:
        cells = [cell for cell in planned.plan.cells if cell.recipe.stage == stage]
        return [row for cell in cells for row in store.read(cell.path).to_pylist()]

    text_of = {(row["prompt_id"], row["question_id"]): row["text"] for row in tables("questions")}
    answers: dict[tuple[str, int, str], Any] = {}
    for row in tables("answers"):
        given = row["answers"] or ()
        for place, answer in enumerate(given):
            text = text_of[row["prompt_id"], answer["question_id"]]
            answers[row["prompt_id"], place * row["images"] // len(given), text] = answer["token_logprobs"]
    return answers


def says_yes(logprobs: Sequence[Sequence[float]]) -> bool:
    return sum(logprobs[0]) >= sum(logprobs[1])


# DPG-Bench


def annotations() -> list[dict[str, Any]]:
    return [
        proposition(one["prompt_id"], one["text"], number, needs, question.format(one["text"]), kind)
        for one in prompts(4)
        for number, needs, question, kind in ASKED
    ]


class Benchmark(NamedTuple):
    """The output of compute_dpg_bench.py."""

    scores: Mapping[str, float]
    """Of each prompt whose image it does not fail on."""
    levels: Mapping[str, float]
    categories: Mapping[str, float]


def dpg_bench(answers: Answers, *, first_row: int, last_image_only: bool) -> Benchmark:
    """The release's way from answers to numbers: dictionaries by number, zeroed in place, and levels of what was
    answered before that about the image that was looked at last."""
    items: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in annotations()[first_row:]:
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
    return Benchmark(scores, mean, {name: sum(values) / len(values) for name, values in categories.items()})


@pytest.fixture(scope="module")
def dpg_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("dpg") / "dpg_bench.csv", ANNOTATIONS, annotations())


DPG = ("benchmark=dpg_bench", "metric=[dpg_bench,dpg_bench_levels]", "benchmark.prompts=${benchmark.questions}")


@pytest.fixture(scope="module")
def fixed(folder: Path, dpg_file: Path) -> Ran:
    given = (f"benchmark.questions={dpg_file}", "benchmark.convention=fixed", "metrics.dpg_bench_levels.images=mean")
    return run(folder, folder / "fixed", *DPG, *given)


@pytest.fixture(scope="module")
def released(folder: Path, dpg_file: Path) -> Ran:
    return run(folder, folder / "released", *DPG, f"benchmark.questions={dpg_file}")


def levels_of(ran: Ran, level: int) -> dict[str, float]:
    return {row.kind: row.mean for row in pool_kinds(ran.store, ran.run_id, "dpg_bench_levels") if row.level == level}


def test_dpg_bench_as_released(released: Ran, fixed: Ran) -> None:
    """The first prompt fails there, for want of an answer; the levels are of the last images, and before zeroing."""
    expected = dpg_bench(fixed.answers, first_row=1, last_image_only=True)
    first, *others = [one["prompt_id"] for one in prompts(4)]
    assert set(expected.scores) == set(others)
    assert released.scores["dpg_bench"][first] is None
    assert {one: released.scores["dpg_bench"][one] for one in others} == pytest.approx(dict(expected.scores))
    assert levels_of(released, 1) == pytest.approx(dict(expected.levels))
    dashed = {name: value for name, value in expected.categories.items() if "-" in name}
    assert levels_of(released, 2) == pytest.approx(dashed)


def test_dpg_bench_as_it_is_meant(released: Ran, fixed: Ran) -> None:
    expected = dpg_bench(fixed.answers, first_row=0, last_image_only=False)
    assert fixed.scores["dpg_bench"] == pytest.approx(dict(expected.scores))
    assert levels_of(fixed, 1) == pytest.approx(dict(expected.levels))
    assert levels_of(fixed, 1) != pytest.approx(levels_of(released, 1)), "the two are told apart by this fixture"


@pytest.mark.parametrize("zeroing", ["direct", "recursive"])
def test_the_fixture_tells_the_ways_of_zeroing_apart(zeroing: str, fixed: Ran, folder: Path, dpg_file: Path) -> None:
    given = (f"benchmark.questions={dpg_file}", "benchmark.convention=fixed", f"metrics.dpg_bench.zeroing={zeroing}")
    other = run(folder, folder / "fixed", *DPG, *given)
    assert other.scores["dpg_bench"] != pytest.approx(dict(fixed.scores["dpg_bench"]))


def test_the_levels_are_shown_with_their_numbers(fixed: Ran) -> None:
    said = printed("kinds", f"store={fixed.store.place.url}", f"run={fixed.run_id}", "of=dpg_bench_levels")
    assert "dpg_bench_levels by kind" in said and "attribute - shape" in said
    assert f"{levels_of(fixed, 1)['entity']:.4f} (8)" in said


def test_a_metric_that_the_run_has_not_is_named(fixed: Ran) -> None:
    with pytest.raises(ConfigError, match=r"of=dsg_1k: run .* has no such metric; it has dpg_bench, dpg_bench_levels"):
        pool_kinds(fixed.store, fixed.run_id, "dsg_1k")


# GenEval2


@pytest.mark.parametrize("convention", ["released", "fixed"])
def test_soft_tifa_is_the_mean_and_the_geometric_mean_over_the_spellings(
    convention: str, folder: Path, tmp_path: Path
) -> None:
    """First tokens of all spellings as released; fixed, whole spellings without their end."""
    questions = write_geneval2(tmp_path / "geneval2_data.jsonl")
    given = [f"benchmark.questions={questions}", "metric=[geneval2,geneval2_am]", f"benchmark.convention={convention}"]
    ran = run(folder, tmp_path / "store", "benchmark=geneval2", *given)
    probabilities: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (prompt_id, image, _), spellings in ran.answers.items():
        logs = [tokens[0] if convention == "released" else sum(tokens[:-1]) for tokens in spellings]
        probabilities[prompt_id, image].append(sum(map(math.exp, logs)))
    assert len(probabilities) == 8 and all(len(of_image) == 2 for of_image in probabilities.values())
    for one in prompts(4):
        each = [probabilities[one["prompt_id"], image] for image in range(2)]
        geometric = sum(gmean(of_image) for of_image in each) / 2
        arithmetic = sum(sum(of_image) / 2 for of_image in each) / 2
        assert ran.scores["geneval2"][one["prompt_id"]] == pytest.approx(geometric, rel=1e-5)
        assert ran.scores["geneval2_am"][one["prompt_id"]] == pytest.approx(arithmetic, rel=1e-5)
    kinds = {row.kind: row.n for row in pool_kinds(ran.store, ran.run_id, "geneval2_am")}
    assert kinds == {"count": 4, "object": 4}


# DSG-1k and OneIG


def gated(answered: Mapping[int, bool], parents: Mapping[int, Sequence[int]]) -> float:
    """calc_vqa_score of DSG and alignment_score of OneIG: parents are looked at as they were answered."""
    counts = [yes and all(answered[parent] for parent in parents.get(one, ())) for one, yes in answered.items()]
    return sum(counts) / len(counts)


@pytest.mark.parametrize("convention", ["released", "fixed"])
def test_dsg_counts_a_yes_where_its_parents_are_yes(convention: str, folder: Path, tmp_path: Path) -> None:
    """One dependency of every prompt has a word in it: the release's loader drops all of the prompt's."""
    rows = [row | {"dependency": "3, shape"} if row["proposition_id"] == 5 else row for row in annotations()]
    file = write_csv(tmp_path / "dsg.csv", ANNOTATIONS, rows)
    given = [f"benchmark.questions={file}", "metric=[dsg_1k]", "benchmark.prompts=${benchmark.questions}"]
    ran = run(folder, tmp_path / "store", "benchmark=dsg_1k", *given, f"benchmark.convention={convention}")
    needed = {number: [int(one) for one in needs.split(",") if one != "0"] for number, needs, _, _ in ASKED}
    for one in prompts(4):
        each = [
            gated(
                {
                    number: says_yes(ran.answers[one["prompt_id"], image, question.format(one["text"])])
                    for number, _, question, _ in ASKED
                },
                {} if convention == "released" else needed,
            )
            for image in range(2)
        ]
        assert ran.scores["dsg_1k"][one["prompt_id"]] == pytest.approx(sum(each) / 2)


def test_oneig_is_the_mean_over_a_rows_images_of_what_counts(folder: Path, tmp_path: Path) -> None:
    place = write_oneig(tmp_path / "oneig")
    ran = run(folder, tmp_path / "store", "benchmark=oneig", f"benchmark.questions={place}", "metric=[oneig]")
    for one in prompts(4):
        each = [
            gated(
                {
                    number: says_yes(ran.answers[one["prompt_id"], image, question])
                    for number, question in ((1, "Is there a circle?"), (2, "Is the circle red?"))
                },
                {2: [1]},
            )
            for image in range(2)
        ]
        assert ran.scores["oneig"][one["prompt_id"]] == pytest.approx(sum(each) / 2)
