"""A run with comparisons of two images has a section about them in its report and on the terminal."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from plumbline.operators.report.choices import make_choices_section, write_choice_sentences
from plumbline.operators.results.choices import compare_each_metric, compare_pairs
from plumbline.operators.results.summary import Skills
from tests.commands import run_for_output
from tests.operators.choosing import Judge
from tests.operators.report.made import MadeRun, make_run

NAME_BY_GENERATOR = {"g0": "cobalt", "g1": "borealis", "g2": "atlas"}
JUDGE_OF_THREE = Judge((0.0, 1.0, 3.0), bias=0.7, ties=0.1)


def make_comparisons(judge: Judge = JUDGE_OF_THREE, prompts: int = 12, seed: int = 0) -> pd.DataFrame:
    """Return a table of a judge's comparisons between the generators of a MadeRun, on its first `prompts` prompts."""
    table = judge.compare(np.random.default_rng(seed), prompts).replace(NAME_BY_GENERATOR)
    return table.assign(prompt_id=[f"p{int(prompt[1:]):04d}" for prompt in table["prompt_id"]])


def describe_choices(table: pd.DataFrame) -> str:
    return "\n".join(map(str, write_choice_sentences(compare_pairs(table))))


def test_the_report_and_the_terminal_show_win_rates_strengths_and_the_order_bias(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    table = make_comparisons(JUDGE_OF_THREE._replace(bias=2.0))
    run.store.write_table(f"runs/{run.run_id}/comparisons.parquet", pa.Table.from_pandas(table))
    said = run_for_output("report", f"store={tmp_path}/store")
    best = compare_pairs(table).overall.rows[0]
    assert best.generator == "atlas"
    assert f"│ atlas     │ {best.mean:.3f}    │ {best.low:.3f} to {best.high:.3f} │ a" in said
    assert "Win rates by pairwise" in said and "by pairwise (" in said
    assert "The judge favours the first image: the first image wins" in said
    for words in ("Choices between two images", "Row against column by pairwise", "Win rates at skills by pairwise",
                  "triples of generators that go in a circle", "counting (6)"):  # fmt: skip
        assert words in run.html


def read_letters(run: MadeRun, metric: str) -> dict[tuple[str, str], str]:
    """Return the letters in the run's leaderboards, or the marks if there is a baseline, by generator and skill."""
    rows = pd.read_csv(run.folder / "summary.csv", keep_default_na=False)
    rows = rows[rows["metric"] == metric]
    return dict(zip(zip(rows["generator"], rows["skill"], strict=True), rows["group"], strict=True))


def test_the_leaderboards_of_a_pairwise_judge_have_the_letters_of_its_choices(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    table = make_comparisons(JUDGE_OF_THREE._replace(strengths=(0.0, 0.2, 3.0))).assign(metric="gecko")
    run.store.write_table(f"runs/{run.run_id}/comparisons.parquet", pa.Table.from_pandas(table))
    said = " ".join(run_for_output("report", f"store={tmp_path}/store").split())
    groups = read_letters(run, "gecko")
    letters = {row.generator: row.group for row in compare_pairs(table).overall.rows}
    assert {name: groups[name, "overall"] for name in letters} == letters
    assert letters["cobalt"] == letters["borealis"] != letters["atlas"]
    assert "(signed-rank test (sign-flip test for gecko), Holm)" in said and "sign-flip test for gecko" in run.html
    run_for_output("report", f"store={tmp_path}/store", "baseline=atlas")
    groups = read_letters(run, "gecko")
    assert [groups[name, "overall"] for name in ("borealis", "cobalt")] == ["worse", "worse"]


def test_some_pairs_alone_leave_the_leaderboard_to_the_scores(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run_for_output("report", f"store={tmp_path}/store")
    before = read_letters(run, "gecko")
    table = make_comparisons().assign(metric="gecko")
    both = {"atlas", "cobalt"}
    without = table[[{row.first_generator, row.second_generator} != both for row in table.itertuples()]]
    run.store.write_table(f"runs/{run.run_id}/comparisons.parquet", pa.Table.from_pandas(without))
    run_for_output("report", f"store={tmp_path}/store")
    assert read_letters(run, "gecko") == before


def test_a_run_without_comparisons_has_no_such_section(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert "Win rates" not in run_for_output("report", f"store={tmp_path}/store") and "Choices between" not in run.html


def test_few_prompts_are_refused_in_one_sentence_and_the_report_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.store.write_table(f"runs/{run.run_id}/comparisons.parquet", pa.Table.from_pandas(make_comparisons(prompts=7)))
    said = run_for_output("report", f"store={tmp_path}/store")
    assert "pairwise compares no generators: comparisons by pairwise: expected at least 10 prompts" in said
    assert "found 7" in said and "answered in both orders" in run.html


def test_every_metric_of_the_comparisons_is_shown() -> None:
    both = pd.concat([make_comparisons(), make_comparisons(seed=1).assign(metric="other")])
    titles = [
        table.title
        for table in make_choices_section(compare_each_metric(pa.Table.from_pandas(both), Skills(()))).tables
    ]
    assert [title for title in titles if title.startswith("Win rates")] == [
        "Win rates by other",
        "Win rates by pairwise",
    ]


@pytest.mark.parametrize(("bias", "place"), [(50.0, "first"), (-50.0, "second")])
def test_a_judge_that_always_chooses_one_position_is_reported_with_its_p_value(bias: float, place: str) -> None:
    said = describe_choices(make_comparisons(Judge((0.0, 0.0, 0.0), bias=bias), prompts=20))
    assert f"The judge always answers the {place} image: in all of 120 answers (p < 0.001)." in said
    assert "no two differ clearly" in said


def test_the_sentences_say_which_image_a_judge_favours_and_which_pairs_are_left_out() -> None:
    fair = make_comparisons(JUDGE_OF_THREE._replace(bias=0.0), prompts=20)
    assert "The judge does not clearly favour the first or second image: the first image wins" in describe_choices(fair)
    second = make_comparisons(JUDGE_OF_THREE._replace(bias=-1.0), prompts=40)
    assert "The judge favours the second image: the first image wins" in describe_choices(second)
    fair.loc[[0, 1, 61], "p_first"] = None
    assert "Left out: 2 of 60 pairs: 1 answered in one order only, 1 without an answer." in describe_choices(fair)
    assert "Left out" not in describe_choices(second)


def test_without_all_pairs_of_generators_there_are_no_letters() -> None:
    table = make_comparisons(prompts=20)
    shown = pd.concat([table["first_generator"], table["second_generator"]], axis=1)
    without = table[~shown.isin(["atlas", "cobalt"]).all(axis=1)]
    assert "There are no letters: only 2 of 3 pairs of generators were compared." in describe_choices(without)


def test_a_generator_without_a_strength_is_named() -> None:
    said = describe_choices(make_comparisons(Judge((0.0, 0.1, 0.2, 60.0)), prompts=40))
    assert "No strength: g3, winning or losing every comparison with the others." in said
