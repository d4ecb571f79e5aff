"""The labelling plan decides clear pairs, and lists the images to rate next to decide the remaining pairs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from plugins.rating.tests.annotation_files import make_annotation
from plumbline.jobs.command import get_command, load_values
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.statistics.prediction_powered import MIN_LABELS
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.release_selection import open_release
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.plugins.rating.jobs.labels import main
from plumbline.plugins.rating.labelling import LabelsConfig, measure_coverage, plan_labels, tabulate_pairs
from tests.commands import load_job_config, run, run_for_output
from tests.pipelines.metaeval.releases.files import NEEDS_REFERENCE_DATA, REFERENCE_FOLDER, ROOT, write_file

MEAN_RATINGS = {"best": 4.0, "close": 2.1, "last": 2.0}
N_PROMPTS = 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    rows = [
        {"prompt_id": f"p{prompt:03d}", "generator": name, "gecko": mean / 5 + random.normal(0, 0.1)}
        for prompt in range(N_PROMPTS)
        for name, mean in MEAN_RATINGS.items()
    ]
    scores = pd.DataFrame(rows)
    scores.to_csv(tmp_path / "scores.csv", index=False)
    rating = 5 * scores["gecko"] + random.normal(0, 0.5, len(scores))
    rated = scores.assign(rating=rating).drop(columns="gecko")
    rated[rated["prompt_id"] < "p040"].to_csv(tmp_path / "ratings.csv", index=False)
    return tmp_path


def make_config(folder: Path, *overrides: str) -> LabelsConfig:
    given = ("protocol=long", f"protocol.path={folder}/ratings.csv", f"output={folder}/next.csv")
    return load_job_config("labels", *given, *overrides)


def test_clear_pairs_are_decided_and_images_of_the_close_pair_are_listed(folder: Path) -> None:
    wanted = make_config(folder, f"scores={folder}/scores.csv")
    plan = plan_labels(wanted)
    assert [pair.better for pair in plan.pairs] == ["best", "best", None]
    assert [pair.rated for pair in plan.pairs] == [40, 40, 40]
    assert all(pair.estimate is not None and pair.estimate.worth > 1 for pair in plan.pairs)
    table = tabulate_pairs(wanted, plan)
    assert [row[-2:] for row in table.rows[:2]] == [("best", "0"), ("best", "0")]
    assert table.rows[2][-2] == "undecided"
    assert "as informative as one rating with it" in table.caption
    assert main(wanted) == 2, "a pair is undecided"
    rows = pd.read_csv(folder / "next.csv")
    assert set(rows["generator"]) == {"close", "last"}
    assert (rows["prompt_id"] >= "p040").all() and not rows.duplicated().any()


def test_ratings_of_several_templates_are_not_mixed(folder: Path) -> None:
    ratings = pd.read_csv(folder / "ratings.csv")
    words = ratings.assign(rating=0.0, template="wl")
    pd.concat([ratings.assign(template="likert"), words]).to_csv(folder / "ratings.csv", index=False)
    with pytest.raises(ConfigError, match=r"expected one of likert, wl; set protocol.templates=\[likert\]"):
        plan_labels(make_config(folder, f"scores={folder}/scores.csv"))
    chosen = make_config(folder, f"scores={folder}/scores.csv", "protocol.templates=[likert]")
    assert [pair.better for pair in plan_labels(chosen).pairs] == ["best", "best", None]
    with pytest.raises(ConfigError, match=r"protocol.templates: expected one of likert, wl, got 'words'"):
        plan_labels(make_config(folder, f"scores={folder}/scores.csv", "protocol.templates=[words]"))


def test_votes_between_two_images_count_as_differences(folder: Path) -> None:
    """People prefer the image by `best` on all 40 prompts; `close` and `last` each win on half of the prompts."""
    pairs = [("best", "close", 1.0), ("last", "best", 0.0), ("close", "last", 0.5)]
    tasks = [
        {"data": {"prompt_id": f"p{n:03d}", "generator_a": a, "generator_b": b}, "annotations": [
            make_annotation(1, ("vote", "choices", {"choices": ["left" if n < 40 * share else "right"]}))
        ]}
        for n in range(40) for a, b, share in pairs
    ]  # fmt: skip
    path = write_file(folder / "export.json", tasks)
    given = (f"scores={folder}/scores.csv", "protocol=annotations", f"protocol.path={path}")
    plan = plan_labels(load_job_config("labels", *given, f"output={folder}/next.csv"))
    assert [(pair.a, pair.b, pair.rated) for pair in plan.pairs] == [
        ("best", "close", 40), ("best", "last", 40), ("close", "last", 40)
    ]  # fmt: skip
    assert plan.pairs[2].people[np.isfinite(plan.pairs[2].people)].sum() == 0
    assert plan.pairs[2].better is None


def test_a_pair_with_too_few_ratings_has_no_estimate_but_a_number_of_prompts_to_rate(folder: Path) -> None:
    ratings = pd.read_csv(folder / "ratings.csv")
    ratings[ratings["prompt_id"] < "p005"].to_csv(folder / "ratings.csv", index=False)
    wanted = make_config(folder, f"scores={folder}/scores.csv", "generators=[best,last]")
    plan = plan_labels(wanted)
    (row,) = tabulate_pairs(wanted, plan).rows
    assert row[1:5] == ("5", "–", "–", "–")
    assert row[5:] == (f"fewer than {MIN_LABELS} prompts rated", str(MIN_LABELS - 5))
    assert len(plan.next_prompts) == 2 * (MIN_LABELS - 5)


def test_mostly_equal_ratings_have_a_wide_interval(folder: Path) -> None:
    """People see a difference on one of 20 rated prompts; the scale is configured, or is the range of the ratings."""
    ratings = pd.read_csv(folder / "ratings.csv")
    alike = ratings[ratings["prompt_id"] < "p020"].assign(rating=3.0)
    alike.loc[(alike["prompt_id"] == "p007") & (alike["generator"] == "last"), "rating"] = 2.0
    alike.sample(frac=1, random_state=0).to_csv(folder / "ratings.csv", index=False)
    ends = []
    for words in ((), ("protocol.rating_range=[1,5]",)):
        chosen = make_config(folder, f"scores={folder}/scores.csv", "generators=[best,last]", *words)
        plan = plan_labels(chosen)
        (pair,) = plan.pairs
        assert pair.estimate is not None and pair.better is None
        ends.append(pair.estimate.interval(pair.level, pair.max_difference))
        assumed = "if ratings range from 2.000 to 3.000, as they do so far (set protocol.rating_range to change this)"
        assert (assumed in tabulate_pairs(chosen, plan).caption) == (not words)
    assert ends[1][0] < ends[0][0] < -0.1 and 0.2 < ends[0][1] < ends[1][1]


def test_equal_ratings_need_a_configured_range(folder: Path) -> None:
    ratings = pd.read_csv(folder / "ratings.csv").assign(rating=3.0)
    ratings.to_csv(folder / "ratings.csv", index=False)
    with pytest.raises(
        SourceError, match=r"all ratings are 3\.000, which does not show how far .* set protocol.rating_range="
    ):
        plan_labels(make_config(folder, f"scores={folder}/scores.csv"))
    plan = plan_labels(make_config(folder, f"scores={folder}/scores.csv", "protocol.rating_range=[1,5]"))
    assert [pair.better for pair in plan.pairs] == [None] * 3


def test_undecided_pairs_are_counted_and_the_exit_code_is_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ratings = pd.read_csv(folder / "ratings.csv")
    ratings[ratings["generator"] != "close"].sample(frac=1, random_state=1).to_csv(folder / "ratings.csv", index=False)
    given = ["protocol=long", f"protocol.path={folder}/ratings.csv", f"scores={folder}/scores.csv"]
    ended = run("labels", *given, f"output={folder}/next.csv")
    shown = ended.words
    assert ended.code == 2
    assert (
        "exit code 2: 2 of 3 pairs are undecided (for 2, nobody has rated both generators on the same prompt)" in shown
    )
    assert f"have people rate the images of {folder}/next.csv" in shown and shown.count("no prompt rated for both") == 2
    assert "exit code" not in run_for_output("labels", *given, "generators=[best,last]", f"output={folder}/next.csv")


def test_the_metric_has_no_effect_if_everything_is_rated(folder: Path) -> None:
    scores = pd.read_csv(folder / "scores.csv")
    scores[scores["prompt_id"] < "p040"].to_csv(folder / "scores.csv", index=False)
    plan = plan_labels(make_config(folder, f"scores={folder}/scores.csv", "generators=[best,last]"))
    (pair,) = plan.pairs
    assert pair.estimate is not None and (pair.estimate.power, pair.estimate.worth) == (0, 1)
    assert pair.estimate.estimate == pytest.approx(pair.people[np.isfinite(pair.people)].mean())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("generators=[best,other]",), "generators: gecko has no scores for 'other'; it scored best, close, last"),
        (("generators=[best]",), "generators: expected two or more, got only 'best'"),
        (("chance=1",), "chance: expected a probability between 0 and 1, got 1.0"),
        (
            ("scores=null",),
            "scores: expected a metric's scores, but protocol long has none; set run=latest or scores=PATH",
        ),
    ],
)
def test_missing_generators_and_scores_are_refused(folder: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_labels(make_config(folder, f"scores={folder}/scores.csv", *overrides))


def test_ratings_of_other_images_are_refused(folder: Path) -> None:
    ratings = pd.read_csv(folder / "ratings.csv")
    ratings.assign(prompt_id="x" + ratings["prompt_id"]).to_csv(folder / "ratings.csv", index=False)
    with pytest.raises(SourceError, match="none of the rated images was scored by gecko; use the same ids in both"):
        plan_labels(make_config(folder, f"scores={folder}/scores.csv"))


def test_one_of_several_metrics_must_be_named(folder: Path) -> None:
    scores = pd.read_csv(folder / "scores.csv")
    scores.assign(dsg=scores["gecko"]).to_csv(folder / "scores.csv", index=False)
    with pytest.raises(ConfigError, match="metrics: expected one of gecko, dsg; set metrics="):
        plan_labels(make_config(folder, f"scores={folder}/scores.csv"))
    assert plan_labels(make_config(folder, f"scores={folder}/scores.csv", "metrics=[dsg]")).metric == "dsg"


@NEEDS_REFERENCE_DATA
def test_the_readme_shows_the_measured_coverage() -> None:
    path = REFERENCE_FOLDER / "tifa160/tifa160_human_and_scores.json"
    values = load_values(get_command("labels"), ["protocol=tifa160", f"protocol.path={path}"])
    protocol = read_config(values, LabelsConfig).protocol
    assert len(open_release(protocol, StorageConfig()).ratings)
    page = (ROOT / "plugins/rating/planning.md").read_text().partition("### Intervals of people's ratings")[2]
    assert page
    rows = [row for row in measure_coverage([protocol], StorageConfig()).rows if int(row[2]) >= MIN_LABELS]
    for row in rows:
        assert float(row[4].rstrip("%")) <= 5, row
        assert " | ".join(row).replace("_", r"\_") in page
