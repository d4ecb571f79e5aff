"""Four editors in the built-in edits are ranked as expected; the last one changes nothing."""

import pandas as pd
import pyarrow.parquet as pq
import pytest

from plumbline.assets.making.edits import (
    EDIT_FUNCTIONS,
    EDITOR_FUNCTIONS,
    EDITS_PER_KIND,
    SCISSORS_ERRORS_PER_KIND,
    format_questions_csv,
    make_edit_tables,
    make_edits,
)
from tests.commands import find_newest_run_folder, run_for_output
from tests.environment import ROOT

EDITS_FOLDER = ROOT / "assets/shapes_edits"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, pd.DataFrame]:
    store = tmp_path_factory.mktemp("edits")
    shown = run_for_output("sweep", "sweep=shapes_edits", f"store={store}", "cluster=here", "verbose=true")
    scores = pd.read_parquet(find_newest_run_folder(store) / "scores.parquet")
    truth = pd.read_parquet(EDITS_FOLDER / "truth.parquet").rename(columns={"score": "true"})
    return shown, pd.merge(scores, truth, on=["image_id", "prompt_id", "generator"])


def test_editors_are_ranked_in_the_known_order_and_every_comparison_is_clear(swept: tuple[str, pd.DataFrame]) -> None:
    shown, scores = swept
    assert (
        len(scores) == 3 * len(EDIT_FUNCTIONS) * EDITS_PER_KIND * len(EDITOR_FUNCTIONS)
        and scores["score"].notna().all()
    )
    means = scores.groupby(["metric", "generator"])["score"].mean().unstack()
    assert means.loc["dsg_1k"].sort_values(ascending=False).index.tolist() == list(EDITOR_FUNCTIONS)
    assert "6 of 6 comparisons of two generators by one metric are clear" in " ".join(shown.split())


def test_the_scores_of_questions_agree_with_the_true_answers(swept: tuple[str, pd.DataFrame]) -> None:
    asked = swept[1][swept[1]["metric"] == "dsg_1k"]
    assert (asked["score"] - asked["true"]).abs().lt(1e-6).mean() > 0.95
    means = asked.groupby("generator")[["score", "true"]].mean()
    assert means["true"].to_dict() == pytest.approx(
        {"tweezers": 1, "scissors": 1 - SCISSORS_ERRORS_PER_KIND / EDITS_PER_KIND, "roller": 0.3, "glass": 0}
    )
    assert means["score"].to_numpy() == pytest.approx(means["true"].to_numpy(), abs=0.05)


def test_the_editor_that_changes_nothing_keeps_everything(swept: tuple[str, pd.DataFrame]) -> None:
    means = swept[1].groupby(["metric", "generator"])["score"].mean().unstack()
    assert means.loc["source_l1", "glass"] == 0 and means.loc["source_ssim", "glass"] == 1
    assert means.loc["source_l1"].idxmax() == means.loc["source_ssim"].idxmin() == "roller"
    assert means.loc["source_l1"].drop("glass").min() > 0.01


def test_the_stored_tables_can_be_reproduced_from_the_seed() -> None:
    made = make_edit_tables(0)
    assert {str(file.relative_to(EDITS_FOLDER)) for file in EDITS_FOLDER.rglob("*.parquet")} == set(made)
    for name in ("prompts.parquet", "truth.parquet"):
        kept = pq.read_table(EDITS_FOLDER / name)
        columns = [column for column in kept.column_names if column != "image_id"]  # PNGs differ by Pillow's version
        assert kept.select(columns).equals(made[name].select(columns))
    assert (EDITS_FOLDER / "questions.csv").read_text() == format_questions_csv(make_edits(0))
