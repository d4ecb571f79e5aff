"""The embedded judge compares the generators of the embedded benchmark, whose true order is known."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from plumbline.operators.results.choices import ChoiceResults, compare_pairs
from plumbline.operators.results.comparison import list_generator_names
from tests.bench_of import SHAPES_FOLDER
from tests.commands import find_newest_run_folder, run_for_output

COMMAND = ("sweep=shapes", "metric=[pairwise]", "cluster=here")
N_PAIRS = 21 * 256
TIED = {"borealis", "cobalt"}
"""The two generators that were made with the same faults."""


def read_true_order() -> list[str]:
    """Return the generators' names, ordered from the largest to the smallest fraction of correct images."""
    truth = pq.read_table(SHAPES_FOLDER / "truth.parquet").to_pandas()
    return list(truth.groupby("generator")["correct"].mean().sort_values(ascending=False).index)


def merge_tied(generators: Sequence[str]) -> list[str]:
    """Return the generators, with one name for the two that were made with the same faults."""
    return ["tied" if name in TIED else name for name in generators]


def compare_newest(store: Path) -> ChoiceResults:
    return compare_pairs(pd.read_parquet(find_newest_run_folder(store) / "comparisons.parquet"))


def test_the_judge_needs_no_setting(tmp_path: Path) -> None:
    said = run_for_output("sweep", *COMMAND, f"store={tmp_path}", "limit=12", "benchmark.generators=[atlas,garnet]")
    assert "12 pairs compared in both orders" in said and "Win rates by pairwise" in said
    compared = pq.read_table(find_newest_run_folder(tmp_path) / "comparisons.parquet").to_pandas()
    assert set(compared["error"]) == {None} and compared["p_first"].nunique() > 12
    assert list_generator_names(compare_newest(tmp_path).overall.rows) == ["atlas", "garnet"]
    assert "means; sharing a letter: no clear difference (sign-flip test, Holm)" in " ".join(said.split())


@pytest.mark.slow
def test_the_judge_recovers_the_order_of_the_generators(tmp_path: Path) -> None:
    run_for_output("sweep", *COMMAND, f"store={tmp_path}")
    board = compare_newest(tmp_path).overall
    assert merge_tied(list_generator_names(board.rows)) == merge_tied(read_true_order())
    letters = {row.generator: set(row.group) for row in board.rows}
    assert set.intersection(*(letters[name] for name in TIED)), "generators with the same faults share a letter"
    order = read_true_order()
    apart = [duel for duel in board.duels if duel.better is not None]
    assert len(apart) >= 14
    assert all(order.index(str(duel.better)) < order.index(str(duel.worse)) for duel in apart)


@pytest.mark.slow
def test_active_choice_asks_about_fewer_than_half_of_the_pairs(tmp_path: Path) -> None:
    run_for_output("sweep", *COMMAND, f"store={tmp_path}", "adaptive=betting", "metrics.pairwise.pairs=active")
    asked = pq.read_table(find_newest_run_folder(tmp_path) / "comparisons.parquet").num_rows / 2
    assert asked < N_PAIRS / 2
    decided = pq.read_table(find_newest_run_folder(tmp_path) / "decisions.parquet").to_pandas()
    order = read_true_order()
    apart = decided[decided["verdict"].isin(["a", "b"])]
    assert len(apart) >= 18
    for row in apart.itertuples():
        a_is_better = order.index(row.generator_a) < order.index(row.generator_b)
        assert {row.generator_a, row.generator_b} == TIED or (row.verdict == "a") == a_is_better
