"""Which images people should still rate: how many, which, and when nothing can be said."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from plugins.rating.tests.annotation_files import annotated
from plumbline.jobs.command import command_of, load_values
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.statistics.prediction_powered import FEWEST_LABELS
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.judging.metaeval import open_release
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.plugins.rating.jobs.labels import main
from plumbline.plugins.rating.labelling import LabelsConfig, coverage_table, plan_labels, shown_labels
from tests.commands import config_of, printed, run
from tests.pipelines.judging.releases.files import REFERENCE, ROOT, needs_reference, put

MEANS = {"best": 4.0, "close": 2.1, "last": 2.0}
PROMPTS = 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Scores of 200 prompts by three generators, of which people rated the first 40."""
    random = np.random.default_rng(0)
    rows = [
        {"prompt_id": f"p{prompt:03d}", "generator": name, "gecko": mean / 5 + random.normal(0, 0.1)}
        for prompt in range(PROMPTS)
        for name, mean in MEANS.items()
    ]
    scores = pd.DataFrame(rows)
    scores.to_csv(tmp_path / "scores.csv", index=False)
    rating = 5 * scores["gecko"] + random.normal(0, 0.5, len(scores))
    rated = scores.assign(rating=rating).drop(columns="gecko")
    rated[rated["prompt_id"] < "p040"].to_csv(tmp_path / "ratings.csv", index=False)
    return tmp_path


def config(folder: Path, *overrides: str) -> LabelsConfig:
    given = ("protocol=long", f"protocol.path={folder}/ratings.csv", f"output={folder}/next.csv")
    return config_of("labels", *given, *overrides)


def test_a_clear_pair_is_decided_and_a_close_one_is_told_what_it_wants(folder: Path) -> None:
    wanted = config(folder, f"scores={folder}/scores.csv")
    plan = plan_labels(wanted)
    assert [pair.better for pair in plan.pairs] == ["best", "best", None]
    assert [pair.rated for pair in plan.pairs] == [40, 40, 40]
    assert all(pair.found is not None and pair.found.worth > 1 for pair in plan.pairs)
    table = shown_labels(wanted, plan)
    assert [row[-2:] for row in table.rows[:2]] == [("best", "0"), ("best", "0")]
    assert table.rows[2][-2] == "undecided"
    assert "replaces nobody" in table.caption
    assert main(wanted) == 2, "as long as something is undecided"
    rows = pd.read_csv(folder / "next.csv")
    assert set(rows["generator"]) == {"close", "last"}
    assert (rows["prompt_id"] >= "p040").all() and not rows.duplicated().any()


def test_ratings_of_several_templates_are_not_mixed(folder: Path) -> None:
    ratings = pd.read_csv(folder / "ratings.csv")
    words = ratings.assign(rating=0.0, template="wl")
    pd.concat([ratings.assign(template="likert"), words]).to_csv(folder / "ratings.csv", index=False)
    with pytest.raises(ConfigError, match=r"expected one of likert, wl; set protocol.templates=\[likert\]"):
        plan_labels(config(folder, f"scores={folder}/scores.csv"))
    chosen = config(folder, f"scores={folder}/scores.csv", "protocol.templates=[likert]")
    assert [pair.better for pair in plan_labels(chosen).pairs] == ["best", "best", None]
    with pytest.raises(ConfigError, match=r"protocol.templates: expected one of likert, wl, got 'words'"):
        plan_labels(config(folder, f"scores={folder}/scores.csv", "protocol.templates=[words]"))


def test_votes_between_two_images_are_differences_by_themselves(folder: Path) -> None:
    """People prefer best's image on each of 40 prompts, and of close and last each on half of them."""
    pairs = [("best", "close", 1.0), ("last", "best", 0.0), ("close", "last", 0.5)]
    tasks = [
        {"data": {"prompt_id": f"p{n:03d}", "generator_a": a, "generator_b": b}, "annotations": [
            annotated(1, ("vote", "choices", {"choices": ["left" if n < 40 * share else "right"]}))
        ]}
        for n in range(40) for a, b, share in pairs
    ]  # fmt: skip
    path = put(folder / "export.json", tasks)
    given = (f"scores={folder}/scores.csv", "protocol=annotations", f"protocol.path={path}")
    plan = plan_labels(config_of("labels", *given, f"output={folder}/next.csv"))
    assert [(pair.a, pair.b, pair.rated) for pair in plan.pairs] == [
        ("best", "close", 40), ("best", "last", 40), ("close", "last", 40)
    ]  # fmt: skip
    assert plan.pairs[2].people[np.isfinite(plan.pairs[2].people)].sum() == 0
    assert plan.pairs[2].better is None


def test_of_too_few_ratings_nothing_is_said_but_how_many_are_wanted(folder: Path) -> None:
    ratings = pd.read_csv(folder / "ratings.csv")
    ratings[ratings["prompt_id"] < "p005"].to_csv(folder / "ratings.csv", index=False)
    wanted = config(folder, f"scores={folder}/scores.csv", "generators=[best,last]")
    plan = plan_labels(wanted)
    (row,) = shown_labels(wanted, plan).rows
    assert row[1:5] == ("5", "–", "–", "–")
    assert row[5:] == (f"not told below {FEWEST_LABELS} prompts", str(FEWEST_LABELS - 5))
    assert len(plan.next_prompts) == 2 * (FEWEST_LABELS - 5)


def test_of_ratings_that_are_mostly_equal_the_interval_says_how_little_is_known(folder: Path) -> None:
    """People see a difference on one of 20 rated prompts; the scale is configured, or is the range of the ratings."""
    ratings = pd.read_csv(folder / "ratings.csv")
    alike = ratings[ratings["prompt_id"] < "p020"].assign(rating=3.0)
    alike.loc[(alike["prompt_id"] == "p007") & (alike["generator"] == "last"), "rating"] = 2.0
    alike.sample(frac=1, random_state=0).to_csv(folder / "ratings.csv", index=False)
    ends = []
    for words in ((), ("protocol.rating_range=[1,5]",)):
        chosen = config(folder, f"scores={folder}/scores.csv", "generators=[best,last]", *words)
        plan = plan_labels(chosen)
        (pair,) = plan.pairs
        assert pair.found is not None and pair.better is None
        ends.append(pair.found.interval(pair.level, pair.widest))
        assumed = "if ratings lie from 2.000 to 3.000, as all so far (protocol.rating_range says so)"
        assert (assumed in shown_labels(chosen, plan).caption) == (not words)
    assert ends[1][0] < ends[0][0] < -0.1 and 0.2 < ends[0][1] < ends[1][1]


def test_ratings_that_are_all_equal_tell_no_scale(folder: Path) -> None:
    ratings = pd.read_csv(folder / "ratings.csv").assign(rating=3.0)
    ratings.to_csv(folder / "ratings.csv", index=False)
    with pytest.raises(
        SourceError, match=r"all ratings are 3\.000, which does not show how far .* set protocol.rating_range="
    ):
        plan_labels(config(folder, f"scores={folder}/scores.csv"))
    plan = plan_labels(config(folder, f"scores={folder}/scores.csv", "protocol.rating_range=[1,5]"))
    assert [pair.better for pair in plan.pairs] == [None] * 3


def test_an_exit_code_of_two_says_which_pairs_are_undecided_and_which_nobody_rated(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ratings = pd.read_csv(folder / "ratings.csv")
    ratings[ratings["generator"] != "close"].sample(frac=1, random_state=1).to_csv(folder / "ratings.csv", index=False)
    given = ["protocol=long", f"protocol.path={folder}/ratings.csv", f"scores={folder}/scores.csv"]
    ended = run("labels", *given, f"output={folder}/next.csv")
    shown = ended.words
    assert ended.code == 2
    assert "exit code 2: 2 of 3 pairs are undecided (of 2 nobody has rated both generators on one prompt)" in shown
    assert f"have people rate the images of {folder}/next.csv" in shown and shown.count("nobody rated both") == 2
    assert "exit code" not in printed("labels", *given, "generators=[best,last]", f"output={folder}/next.csv")


def test_where_everything_is_rated_people_alone_are_heard(folder: Path) -> None:
    scores = pd.read_csv(folder / "scores.csv")
    scores[scores["prompt_id"] < "p040"].to_csv(folder / "scores.csv", index=False)
    plan = plan_labels(config(folder, f"scores={folder}/scores.csv", "generators=[best,last]"))
    (pair,) = plan.pairs
    assert pair.found is not None and (pair.found.power, pair.found.worth) == (0, 1)
    assert pair.found.estimate == pytest.approx(pair.people[np.isfinite(pair.people)].mean())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("generators=[best,other]",), "generators: gecko scored none of 'other'; it scored best, close, last"),
        (("generators=[best]",), "generators: expected two or more, got 'best' alone"),
        (("chance=1",), "chance: expected a probability between 0 and 1, got 1.0"),
        (("scores=null",), "scores: long holds none; set run=latest, or scores=PATH to a table"),
    ],
)
def test_what_is_not_there_is_refused(folder: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_labels(config(folder, f"scores={folder}/scores.csv", *overrides))


def test_ratings_of_other_images_are_refused(folder: Path) -> None:
    ratings = pd.read_csv(folder / "ratings.csv")
    ratings.assign(prompt_id="x" + ratings["prompt_id"]).to_csv(folder / "ratings.csv", index=False)
    with pytest.raises(SourceError, match="rates no image that gecko scored; write the same ids into both"):
        plan_labels(config(folder, f"scores={folder}/scores.csv"))


def test_of_several_metrics_one_is_to_be_named(folder: Path) -> None:
    scores = pd.read_csv(folder / "scores.csv")
    scores.assign(dsg=scores["gecko"]).to_csv(folder / "scores.csv", index=False)
    with pytest.raises(ConfigError, match="metrics: expected one of gecko, dsg; set metrics="):
        plan_labels(config(folder, f"scores={folder}/scores.csv"))
    assert plan_labels(config(folder, f"scores={folder}/scores.csv", "metrics=[dsg]")).metric == "dsg"


@needs_reference
def test_the_page_has_the_coverage_that_is_measured() -> None:
    path = REFERENCE / "tifa160/tifa160_human_and_scores.json"
    values = load_values(command_of("labels"), ["protocol=tifa160", f"protocol.path={path}"])
    protocol = read_config(values, LabelsConfig).protocol
    assert len(open_release(protocol, StorageConfig()).ratings)
    page = (ROOT / "plugins/rating/planning.md").read_text().partition("### Intervals of people's ratings")[2]
    assert page
    rows = [row for row in coverage_table([protocol], StorageConfig()).rows if int(row[2]) >= FEWEST_LABELS]
    for row in rows:
        assert float(row[4].rstrip("%")) <= 5, row
        assert " | ".join(row).replace("_", r"\_") in page
