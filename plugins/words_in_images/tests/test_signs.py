"""On the embedded signs, the real PP-OCRv6 finds all misspelt words, and the generators are ranked correctly."""

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from plumbline.assets.making.signs import MISSPELT_WORDS, SIGN_TEXTS, make_sign_tables
from tests.bench_of import run_config
from tests.commands import load_job_config
from tests.environment import ROOT

SIGNS_FOLDER = ROOT / "assets/shapes_text"
N_PROMPTS = 2
"""Number of prompts in a quick sweep; reading a sign takes about a second."""


def test_every_score_matches_the_number_of_misspelt_words(tmp_path: Path) -> None:
    limited = [f"benchmark.limit={N_PROMPTS}", "benchmark.limit_seed=1"]
    finished = run_config(load_job_config("sweep", "sweep=shapes_text", f"store={tmp_path}", "cluster=here", *limited))
    scores = finished.results.read_scores().to_pandas()
    truth = pq.read_table(SIGNS_FOLDER / "truth.parquet").to_pandas()
    both = pd.merge(scores, truth, on=["image_id", "generator"])
    assert finished.exit_code == 0 and len(both) == len(scores) == N_PROMPTS * len(MISSPELT_WORDS)
    assert both["score"].tolist() == pytest.approx((1 - both["wrong"] / 2).tolist()) and both["wrong"].nunique() > 1


@pytest.mark.slow
def test_the_reported_wrong_words_are_each_generators_misspellings(tmp_path: Path) -> None:
    finished = run_config(load_job_config("sweep", "sweep=shapes_text", f"store={tmp_path}", "cluster=here"))
    scores = finished.results.read_scores().to_pandas()
    assert (
        finished.exit_code == 0
        and len(scores) == len(SIGN_TEXTS) * len(MISSPELT_WORDS)
        and scores["score"].notna().all()
    )
    truth = pq.read_table(SIGNS_FOLDER / "truth.parquet").to_pandas()
    both = pd.merge(scores, truth, on=["image_id", "generator"])
    assert both["score"].tolist() == pytest.approx((1 - both["wrong"] / 2).tolist())
    wrong = (2 * (1 - both["score"])).groupby(both["generator"]).sum()
    assert wrong.to_dict() == MISSPELT_WORDS
    assert scores.groupby("generator")["score"].mean().sort_values(ascending=False).index.tolist() == list(
        MISSPELT_WORDS
    )


def test_the_stored_tables_can_be_reproduced_from_the_seed() -> None:
    made = make_sign_tables(0)
    assert {str(file.relative_to(SIGNS_FOLDER)) for file in SIGNS_FOLDER.rglob("*.parquet")} == set(made)
    for name in ("prompts.parquet", "truth.parquet"):
        kept = pq.read_table(SIGNS_FOLDER / name)
        columns = [column for column in kept.column_names if column != "image_id"]  # PNGs differ by Pillow's version
        assert kept.select(columns).equals(made[name].select(columns))
