"""Rehearsals on existing scores show how many prompts would have been enough to decide the pairs."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.plugins.rating.jobs.rehearse import main
from plumbline.plugins.rating.rehearsing import rehearse_all_judges
from tests.commands import load_job_config, run_for_output
from tests.pipelines.metaeval.releases.files import NEEDS_REFERENCE_DATA, REFERENCE_FOLDER, ROOT


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        [
            {"prompt_id": f"p{prompt}", "generator": name, "metric": "gecko", "score": mean + random.normal(0, 0.05)}
            for prompt in range(64)
            for name, mean in {"best": 0.8, "close": 0.3, "last": 0.29}.items()
        ]
    )
    frame.loc[0, "score"] = np.nan
    frame.to_csv(tmp_path / "scores.csv", index=False)
    return tmp_path / "scores.csv"


def test_the_tables_of_a_users_scores_show_the_cost_in_prompts(scores: Path, tmp_path: Path) -> None:
    wanted = load_job_config(
        "rehearse", f"scores={scores}", "orders=20", "adaptive.indifference=0.3", f"page={tmp_path}/page.md"
    )
    false, cost, by_pair = rehearse_all_judges(wanted).tables
    assert {row[0] for row in (*false.rows, *cost.rows)} == {"scores.csv"} and "scores.csv gecko" in by_pair.title
    assert [row[1:5] for row in false.rows] == [("gecko", way, "3", "64") for way in ("betting", "asymptotic")]
    assert [row[5] for row in false.rows] == ["0.0%", "0.0%"]
    assert cost.names[-1] == "given"
    (betting, *_) = cost.rows
    assert float(betting[-1].rstrip("%")) < float(betting[4].rstrip("%")), (
        "fewer prompts are enough with an indifference"
    )
    assert [row[0] for row in by_pair.rows][-1] == "close, last"
    assert dict(zip(by_pair.names, by_pair.rows[0], strict=True))["prompts of both"] == "63"
    page = tmp_path / "page.md"
    for _ in range(2):
        assert main(replace(wanted, orders=2)) == 0
        assert page.read_text().count("### False decisions") == 1
    page.write_text("# Notes\n" + page.read_text() + "The end.\n")
    assert main(replace(wanted, orders=2)) == 0
    assert page.read_text().startswith("# Notes\n<!-- begin") and page.read_text().endswith("-->\nThe end.\n")
    page.write_text("# Other notes\n")
    with pytest.raises(ConfigError, match="expected the lines <!-- begin rehearsal --> and"):
        main(replace(wanted, orders=2))


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (
            ["adaptive.indifference=0.3"],
            r"\d\d of 64 prompts are enough to decide all 3 pairs or find them within 0.3 of each other, on average",
        ),
        (
            [],
            "it takes all 64 prompts or more to decide between close and last; "
            r"\d\d of 64 prompts are enough to decide the other 2 pairs, on average",
        ),
    ],
    ids=("indifferent", "exact"),
)
def test_the_last_line_states_how_many_prompts_are_enough(overrides: list[str], answer: str, scores: Path) -> None:
    last = run_for_output("rehearse", f"scores={scores}", "orders=20", "spreads=[]", *overrides).splitlines()[-1]
    whole = rf"scores.csv, gecko: {answer} \(betting\). In 0.0% of 20 orders a decision was false."
    assert re.fullmatch(whole, last), last


def test_equal_scores_need_all_prompts(tmp_path: Path) -> None:
    frame = [{"prompt_id": f"p{n}", "generator": name, "m": n % 7 / 10} for n in range(40) for name in "ab"]
    pd.DataFrame(frame).to_csv(tmp_path / "s.csv", index=False)
    (answer,) = rehearse_all_judges(
        load_job_config("rehearse", f"scores={tmp_path}/s.csv", "orders=5", "spreads=[]")
    ).answers
    assert answer.startswith("s.csv, m: it takes all 40 prompts or more to decide between a and b (betting). In 0.0%")


def test_scores_beyond_the_range_are_rehearsed_only_by_the_asymptotic_method(scores: Path) -> None:
    false, *_ = rehearse_all_judges(
        load_job_config("rehearse", f"scores={scores}", "orders=2", "adaptive.range=[0.5,1]")
    ).tables
    assert [row[2] for row in false.rows] == ["asymptotic"]


def test_a_missing_source_is_refused_with_the_options_that_set_it() -> None:
    with pytest.raises(
        ConfigError, match="scores: expected a run or a table of scores, got none; set run=latest or scores"
    ):
        load_job_config("rehearse")


def test_generators_without_prompts_in_common_are_refused(tmp_path: Path) -> None:
    pd.DataFrame({"prompt_id": ["p", "q"], "generator": ["a", "b"], "gecko": [0.1, 0.2]}).to_csv(tmp_path / "s.csv")
    with pytest.raises(ConfigError, match="expected two generators with 30 scored prompts in common"):
        rehearse_all_judges(load_job_config("rehearse", f"scores={tmp_path}/s.csv"))


@NEEDS_REFERENCE_DATA
def test_pairs_of_genai_bench_are_decided_with_fewer_images_than_were_rated() -> None:
    path = REFERENCE_FOLDER / "genai_bench/genai_bench_527_image_ratings.json"
    false, _, by_pair = rehearse_all_judges(
        load_job_config("rehearse", "protocol=genai_bench", f"protocol.path={path}", "orders=40", "spreads=[]")
    ).tables
    assert [row[5] for row in false.rows] == ["0.0%", "0.0%"]
    thirteen = by_pair.rows[12]
    assert all(float(thirteen[place].rstrip("%")) < 71 for place in (4, 6))
    page = (ROOT / "plugins/rating/planning.md").read_text()
    line = next(line for line in page.splitlines() if thirteen[0].partition(",")[0].replace("_", r"\_") in line)
    assert re.search(r"\d+\.\d%", line)


@NEEDS_REFERENCE_DATA
def test_the_simulations_on_the_page_have_at_most_5_percent_false_decisions() -> None:
    page = (ROOT / "plugins/rating/planning.md").read_text()
    table = page.partition("### False decisions")[2].partition("###")[0]
    rows = [line.split(" | ") for line in table.splitlines() if "betting |" in line or "asymptotic |" in line]
    assert len(rows) > 50
    for row in rows:
        assert all(float(share.rstrip("%")) <= 5 for share in row[5:7]), row
