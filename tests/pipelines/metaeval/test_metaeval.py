"""A meta-evaluation runs end to end, from releases and any score tables to the files that a paper needs."""

import json
import math
import os
import re
import shutil
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from plumbline.jobs.command import get_command, load_values
from plumbline.jobs.display.findings import show_agreement
from plumbline.operators.base import schemas
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.metaeval.judgement import PEOPLE, Judgement
from plumbline.pipelines.metaeval.metaeval import Findings, run_metaeval
from plumbline.pipelines.metaeval.protocols import MetaevalConfig
from plumbline.pipelines.metaeval.releases.release import Release
from plumbline.pipelines.metaeval.reproduction import (
    ReproductionConfig,
    format_reproduction,
    reproduce_published_numbers,
)
from plumbline.pipelines.plans.sweep_config import read_config
from tests.commands import load_job_config, run_for_output, run_refused
from tests.pipelines.metaeval.releases.files import LAYOUTS, Layout, read_with

REFERENCE_FOLDER = os.environ.get("REFERENCE_DATA")
NEEDS_REFERENCE_DATA = pytest.mark.skipif(REFERENCE_FOLDER is None, reason="REFERENCE_DATA is not set")


def make_metaeval_config(folder: Path, *overrides: str) -> MetaevalConfig:
    few = ["sampling.resamples=20", "sampling.permutations=99", f"output={folder / 'out'}"]
    found: MetaevalConfig = load_job_config("metaeval", *few, *overrides)
    return found


def find_judgement(found: Findings, metric: str, statistic: str) -> Judgement:
    return next(
        its for its in found.judgements if (its.metric, its.statistic, its.group) == (metric, statistic, "overall")
    )


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """Write a long table of two raters' ratings of five images, and return its path."""
    rows = [(f"i{n}", f"p{n}", "g", rater, "likert", 1 + n) for n in range(5) for rater in ("a", "b")]
    columns = ["image_id", "prompt_id", "generator", "rater", "template", "rating"]
    path = tmp_path / "ratings.csv"
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return path


def write_scores(folder: Path, **metrics: list[float | None]) -> Path:
    path = folder / "scores.csv"
    pd.DataFrame({"image_id": [f"i{n}" for n in range(len(next(iter(metrics.values()))))], **metrics}).to_csv(
        path, index=False
    )
    return path


def test_any_table_of_scores_is_judged_by_any_table_of_ratings(tmp_path: Path, ratings: Path) -> None:
    scores = write_scores(tmp_path, good=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], bad=[0.5, None, 0.3, 0.2, 0.1, 0.0])
    found = run_metaeval(
        make_metaeval_config(tmp_path, "protocol=long", f"protocol.path={ratings}", f"scores={scores}")
    )
    assert find_judgement(found, "good", "spearman").value == pytest.approx(1)
    assert find_judgement(found, "bad", "spearman").value == pytest.approx(-1)
    assert (
        find_judgement(found, "bad", "spearman").n_unscored,
        find_judgement(found, "bad", "spearman").n_unrated,
    ) == (1, 1)
    assert find_judgement(found, "people", "alpha_ordinal").value == pytest.approx(1)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    tables = {
        f"{name}.parquet"
        for name in ("judgements", "comparisons", "orders", "correlations", "mean_ratings", "corrected", "contradicted")
    }
    assert written == {*tables, "judgements.md", "judgements.tex"}
    (row,) = pd.read_parquet(tmp_path / "out" / "correlations.parquet").to_dict("records")
    assert (row["metric"], row["other"], row["kind"], row["n"]) == ("good", "bad", "metric", 5)
    assert row["rho"] == pytest.approx(-1)
    kept = pd.read_parquet(tmp_path / "out" / "judgements.parquet")
    assert set(kept["metric"]) == {"good", "bad", "people"}
    assert kept["convention"].str.len().gt(0).all()


def test_ratings_of_some_images_correct_the_scores_of_all_images(tmp_path: Path) -> None:
    """The metric scores generator g too high, but people rated enough images to correct its mean.

    The metric scores the images of 60 prompts. People rated the images of 16 of them, in a table with image ids only.
    """
    random = np.random.default_rng(0)
    fit = {name: mean + random.normal(0, 1, 60) for name, mean in (("f", 3.4), ("g", 2.0))}
    images = [
        {"image_id": f"{name}{n}", "prompt_id": f"p{n}", "generator": name, "score": fit[name][n] + 2.5 * (name == "g")}
        for name in fit
        for n in range(60)
    ]
    pd.DataFrame(images).rename(columns={"score": "m"}).to_csv(tmp_path / "scores.csv", index=False)
    said = [(f"{name}{n}", rater, round(fit[name][n])) for name in fit for n in range(16) for rater in "ab"]
    pd.DataFrame(said, columns=["image_id", "rater", "rating"]).to_csv(tmp_path / "ratings.csv", index=False)
    words = ["protocol=long", f"protocol.path={tmp_path}/ratings.csv", f"scores={tmp_path}/scores.csv"]
    told = run_for_output("metaeval", *words, f"output={tmp_path}/out", "sampling.resamples=20")
    f, g, pair, *passing = pd.read_parquet(tmp_path / "out" / "corrected.parquet").to_dict("records")
    assert [(one["generator"], one["scale"]) for one in passing] == [("f", "passing"), ("g", "passing")]
    assert [(row["generator"], row["n_rated"], row["n_scored"]) for row in (f, g)] == [("f", 16, 60), ("g", 16, 60)]
    assert f["low"] < 3.4 < f["high"] and g["low"] < 2.0 < g["high"] and g["predicted_low"] > g["high"]
    assert f["people"] == pytest.approx(np.mean([row[2] for row in said if row[0].startswith("f")]))
    assert (pair["generator"], pair["other"], pair["better"], pair["metric_better"]) == ("f", "g", "f", "g")
    assert "m contradicts people on f and g: people find f better by +" in told and "m alone finds g" in told
    page = (tmp_path / "out" / "judgements.md").read_text()
    assert "### generators by likert, corrected" in page and "| m contradicts people on f and g:" in page


RENAMED_COLUMNS = {
    "rating": "stars",
    "prompt_id": "caption id",
    "generator": "model",
    "rater": "who",
    "template": "asked",
}


@pytest.fixture(params=["csv", "parquet", "jsonl"])
def renamed_ratings(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Write scores, and shuffled ratings whose columns have other names; return the path of the ratings."""
    drawn = [
        (f"p{n}", f"g{n % 3}", rater, "fit", 1 + n % 5) for n in range(11) for rater in "ab" if (n, rater) != (3, "b")
    ]
    frame = pd.DataFrame(drawn, columns=["prompt_id", "generator", "rater", "template", "rating"])
    frame = frame.rename(columns=RENAMED_COLUMNS).sample(frac=1, random_state=0)
    path = tmp_path / f"ratings.{request.param}"
    write = {"csv": frame.to_csv, "parquet": frame.to_parquet, "jsonl": frame.to_json}[request.param]
    write(path, **({"orient": "records", "lines": True} if request.param == "jsonl" else {"index": False}))  # type: ignore[operator]
    scores = pd.DataFrame({"prompt_id": [f"p{n}" for n in range(11)], "generator": [f"g{n % 3}" for n in range(11)]})
    scores.assign(good=[n % 5 for n in range(11)]).to_csv(tmp_path / "scores.csv", index=False)
    return path


def test_ratings_with_configured_column_names_are_read(renamed_ratings: Path) -> None:
    named = [f"protocol.columns.{ours}={theirs}" for ours, theirs in RENAMED_COLUMNS.items()]
    given = ["protocol=long", f"protocol.path={renamed_ratings}", f"scores={renamed_ratings.parent}/scores.csv", *named]
    found = run_metaeval(
        make_metaeval_config(renamed_ratings.parent, *given, "protocol.statistics=[kendall_a,spearman]")
    )
    assert find_judgement(found, "good", "spearman").value == pytest.approx(1)
    assert find_judgement(found, "good", "kendall_a").value == pytest.approx(1 - 7 / 55)  # 7 of 55 pairs are ties
    assert find_judgement(found, "good", "spearman").n == 11
    assert {judged.template for judged in found.judgements} == {"fit"}
    assert not any("not read" in note for note in found.notes)


def test_ratings_with_unknown_column_names_are_an_error_with_a_remedy(renamed_ratings: Path) -> None:
    folder = renamed_ratings.parent
    given = ["protocol=long", f"protocol.path={renamed_ratings}", f"scores={folder}/scores.csv", f"output={folder}/out"]
    for named, message in (
        ([], "expected column(s) rating, found caption id, model, who, asked, stars; set protocol.columns.rating"),
        (["protocol.columns.rating=stars"], "expected column(s) prompt_id, generator, found caption id, model, who"),
        (["protocol.columns.rating=stars", "protocol.columns.image_id=file"], "expected column(s) file, found caption"),
    ):
        assert message in run_refused("metaeval", *given, *named, code=1)


def test_column_names_can_only_be_set_for_users_own_ratings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"protocol\.columns: expected null for tifa160; only your own ratings"):
        make_metaeval_config(tmp_path, "protocol=tifa160", "protocol.path=x", "+protocol.columns.rating=stars")


def test_the_values_of_every_error_graph_are_written(tmp_path: Path) -> None:
    found = run_metaeval(
        make_metaeval_config(
            tmp_path, "protocol=t2iscorescore", f"protocol.path={LAYOUTS['t2iscorescore'].write(tmp_path / 'ts2')}"
        )
    )
    graphs = pd.read_parquet(tmp_path / "out" / "graphs.parquet")
    assert graphs.groupby(["metric", "convention"]).size().to_dict() == {
        (metric, convention): n
        for metric in ("clipscore", "viescore")
        for convention, n in (("published", 3), ("paper", 4), ("current", 4))  # graph 164 is unpublished
    }
    assert {*graphs.columns} == {*schemas.GRAPHS.names} and set(graphs["subset"]) == {"synth", "nat", "real"}
    own = graphs[(graphs["metric"] == "clipscore") & (graphs["convention"] == "paper")]["ordering"].mean()
    assert find_judgement(found, "clipscore", "ordering_paper").value == pytest.approx(own)


SCORES_BY_ORDERING = {1.0: (2, 1, 0), 0.5: (2, 0, 1), -0.5: (0, 2, 1), -1.0: (0, 1, 2)}
"""Scores of three images (with no, one and two errors), keyed by the ordering statistic that these scores give."""
ORDERINGS = {
    "clip": (1.0, 0.5, -0.5, -1.0, 1.0),
    "dsg": (0.5, 1.0, -1.0, -0.5, -1.0),
    "llmscore_ec": (-1.0, -0.5, 0.5, 1.0, -1.0),  # counts errors, so its signs are reversed
    "fuyu": (0.5, 0.5, 0.5, 0.5, 0.5),
}
"""Each metric's ordering statistic by error graph: the graphs 0 to 3 (synthetic), and 164 (real and unpublished)."""


@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_correlated_over_the_same_error_graphs(tmp_path: Path, seed: int) -> None:
    lines = [
        {"id": graph, "target_prompt": "t", "file_name": f"{graph}-{level}.jpg", "image_source": "g", "rank": level,
         **{metric: SCORES_BY_ORDERING[values[place]][level] for metric, values in ORDERINGS.items()}}
        for place, graph in enumerate((0, 1, 2, 3, 164))
        for level in (0, 1, 2)
    ]  # fmt: skip
    shuffled = pd.DataFrame(lines).sample(frac=1, random_state=seed)
    shuffled[["id", "target_prompt", "file_name", "image_source", "rank"]].to_csv(
        tmp_path / "metadata.csv", index=False
    )
    shuffled[["id", *ORDERINGS]].to_csv(tmp_path / "ts2_scores_per_image.csv", index=False)
    asked = ["protocol=t2iscorescore", f"protocol.path={tmp_path}", "protocol.conventions=[paper,published]"]
    shown = run_for_output("metaeval", *asked, "sampling.resamples=20", f"output={tmp_path / 'out'}", "verbose=true")
    written = pd.read_parquet(tmp_path / "out/graph_correlations.parquet")
    ordering = written[written["measure"] == "ordering"].set_index(["convention", "subset", "metric", "other"])
    of_synth = ordering.loc[("paper", "synth")]
    assert of_synth["pearson"].to_dict() == {
        ("clip", "dsg"): pytest.approx(2 / 2.5),
        ("clip", "llmscore_ec"): pytest.approx(1),
        ("dsg", "llmscore_ec"): pytest.approx(2 / 2.5),
        **{(metric, "fuyu"): pytest.approx(math.nan, nan_ok=True) for metric in ("clip", "dsg", "llmscore_ec")},
    }
    n = ordering["n"].groupby(["convention", "subset"]).unique()
    assert {key: list(values) for key, values in n.items()} == {
        ("paper", "overall"): [5], ("paper", "synth"): [4], ("paper", "real"): [1],
        ("published", "overall"): [4], ("published", "synth"): [4],
    }  # fmt: skip
    assert ordering["pearson"].loc[("paper", "overall", "clip", "dsg")] == pytest.approx(1.2 / 3.3)
    for said in (shown, (tmp_path / "out/judgements.md").read_text()):
        assert "ordering of the same graphs, overall" in said
        assert "correlation in % between metrics over 5 graphs, paper convention" in said
        assert re.search(r"1 clip +[|│] +100 +[|│] +36 +[|│] +100 +[|│] +– +[|│]", said)


def test_scores_that_match_no_rating_are_an_error_with_a_remedy(tmp_path: Path, ratings: Path) -> None:
    other = tmp_path / "other.csv"
    pd.DataFrame({"image_id": ["x", "y"], "m": [0.1, 0.2]}).to_csv(other, index=False)
    theirs = r"image_id \('i0', 'i1'\), prompt_id \('p0', 'p1'\), generator \('g'\)"
    wanted = rf"the scores have image_id \('x', 'y'\), no prompt_id, no generator; .*ratings.csv has {theirs}; use"
    with pytest.raises(SourceError, match=wanted):
        run_metaeval(make_metaeval_config(tmp_path, "protocol=long", f"protocol.path={ratings}", f"scores={other}"))
    with pytest.raises(SourceError, match=r"have image_id \('x', 'y'\); .* has image_id \('i0', 'i1'\); use"):
        asked = ["protocol=long", f"protocol.path={ratings}", f"scores={other}", "protocol.match=image"]
        run_metaeval(make_metaeval_config(tmp_path, *asked))


PROMPT_IDS, GENERATORS = [f"p{n}" for n in range(5)], ("g", "h")
IMAGES = [(prompt, generator) for prompt in PROMPT_IDS for generator in GENERATORS]


def write_csv(path: Path, columns: dict[str, list[object]]) -> Path:
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def make_id_columns(names: str, image: str = "{prompt}-{generator}") -> dict[str, list[object]]:
    """Return the named id columns for ten images, which two generators made for five prompts."""
    made: dict[str, list[object]] = {
        "image_id": [image.format(prompt=prompt, generator=generator) for prompt, generator in IMAGES],
        "prompt_id": [prompt for prompt, _ in IMAGES],
        "generator": [generator for _, generator in IMAGES],
    }
    return {name: made[name] for name in names.split()}


MATCHED_BY_PROMPT_NOTE = "scores and judgements are matched by prompt_id and generator"


@pytest.mark.parametrize(
    ("rated", "scored", "note"),
    [
        (make_id_columns("prompt_id generator"), make_id_columns("prompt_id generator"), MATCHED_BY_PROMPT_NOTE),
        (
            make_id_columns("image_id prompt_id generator"),
            make_id_columns("image_id prompt_id generator", "{prompt}#{generator}"),
            MATCHED_BY_PROMPT_NOTE,
        ),
        (
            make_id_columns("image_id prompt_id generator", "{prompt}"),
            make_id_columns("image_id prompt_id generator", "{prompt}"),
            MATCHED_BY_PROMPT_NOTE,
        ),
        (
            make_id_columns("prompt_id generator"),
            make_id_columns("image_id", "{prompt}/{generator}"),
            MATCHED_BY_PROMPT_NOTE.replace("prompt_id and generator", "image_id"),
        ),
        (
            make_id_columns("image_id"),
            make_id_columns("image_id prompt_id generator"),
            MATCHED_BY_PROMPT_NOTE.replace("prompt_id and generator", "image_id"),
        ),
    ],
    ids=[
        "by prompt and generator alone",
        "other image ids",
        "image ids of each generator",
        "long's names",
        "image ids",
    ],
)
def test_scores_and_ratings_are_matched_by_ids_that_both_files_have(
    tmp_path: Path, rated: dict[str, list[object]], scored: dict[str, list[object]], note: str
) -> None:
    ratings = write_csv(tmp_path / "r.csv", {**rated, "rating": [1 + row % 5 for row in range(10)]})
    scores = write_csv(tmp_path / "s.csv", {**scored, "m": [row % 5 / 10 for row in range(10)]})
    found = run_metaeval(
        make_metaeval_config(tmp_path, "protocol=long", f"protocol.path={ratings}", f"scores={scores}")
    )
    assert (find_judgement(found, "m", "pearson").value, find_judgement(found, "m", "pearson").n) == (
        pytest.approx(1),
        10,
    )
    assert note in found.notes


def test_ratings_without_prompts_get_those_of_the_scores(tmp_path: Path) -> None:
    ratings = write_csv(tmp_path / "r.csv", {**make_id_columns("image_id"), "rating": [1, 2, 3, 4, 5, 5, 4, 3, 2, 1]})
    asked = ["protocol=long", f"protocol.path={ratings}", f"scores={tmp_path / 's.csv'}"]
    for names, unit in [
        ("image_id prompt_id generator", "no interval: too few of 5 prompts differ"),
        ("image_id", "bootstrap of 10 images without a prompt,"),
    ]:
        write_csv(tmp_path / "s.csv", {**make_id_columns(names), "m": list(range(10))})
        found = run_metaeval(make_metaeval_config(tmp_path, *asked))
        pearson = find_judgement(found, "m", "pearson")
        assert unit in pearson.convention
        assert "no interval" in unit or pearson.interval.low < pearson.value < pearson.interval.high
        generators = {its.generator for its in found.judgements if its.statistic == "mean_rating"}
        assert generators == ({"g", "h"} if "generator" in names else set())


@pytest.mark.parametrize(
    ("protocol", "name", "content", "complaint"),
    [
        (
            "long",
            "r.csv",
            "image_id,rating\ni0,\ni1,nan\n",
            "r.csv: no usable judgements: all 2 ratings are empty; .*fill",
        ),
        ("long", "r.csv", "image_id,rating\ni0,7\n", "no usable judgements: all 1 ratings are empty"),
        ("tifa160", "t.json", '{"p_g": {"text_id": "p", "human_scores": [null]}}', "all 1 ratings are empty"),
        (
            "genai_bench",
            "g.json",
            '{"1": {"models": {}}}',
            "no usable judgements: the release has none; .*fill in the file",
        ),
    ],
)
def test_a_release_without_any_judgement_is_an_error(
    tmp_path: Path, protocol: str, name: str, content: str, complaint: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    scores = write_scores(tmp_path, m=[0.1, 0.2])
    left_out = ["protocol.rating_range=[1,5]", "protocol.out_of_range=left_out"]
    with pytest.raises(SourceError, match=complaint):
        run_metaeval(
            make_metaeval_config(
                tmp_path, f"protocol={protocol}", f"protocol.path={path}", f"scores={scores}", *left_out
            )
        )


def test_only_the_tables_that_a_task_needs_count_as_judgements(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    shutil.copytree("assets/shapes", pack, ignore=lambda _, names: [name for name in names if "parquet" not in name])
    rated = pd.read_parquet(pack / "ratings.parquet")
    rated.assign(rating=float("nan")).to_parquet(pack / "ratings.parquet")
    scores = write_csv(tmp_path / "s.csv", {"image_id": list(rated["image_id"].unique()[:9]), "m": list(range(9))})
    with pytest.raises(SourceError, match=r"no usable judgements: all \d+ ratings are empty"):
        asked = [f"protocol.path={pack}", f"scores={scores}", "protocol.tasks=[ratings]"]
        run_metaeval(make_metaeval_config(tmp_path, "protocol=shapes", *asked))


def test_a_table_of_empty_scores_is_an_error_with_the_reason(tmp_path: Path, ratings: Path) -> None:
    scores = write_scores(tmp_path, m=[None, None])
    with pytest.raises(SourceError, match=r"scores.csv: all 2 scores are empty \(the table has no score here; .*score"):
        run_metaeval(make_metaeval_config(tmp_path, "protocol=long", f"protocol.path={ratings}", f"scores={scores}"))


def test_a_rating_outside_the_scale_of_the_others_gives_a_warning_unless_the_scale_is_set(tmp_path: Path) -> None:
    rating = [1, 2, 3, 4, 5, 5, 4, 3, 2, 55]
    ratings = write_csv(tmp_path / "r.csv", {**make_id_columns("image_id"), "rating": rating})
    scores = write_csv(tmp_path / "s.csv", {**make_id_columns("image_id"), "m": list(range(10))})
    asked = ["protocol=long", f"protocol.path={ratings}", f"scores={scores}"]
    found = run_metaeval(make_metaeval_config(tmp_path, *asked))
    [warning] = found.warnings
    assert warning.startswith(
        "1 of 10 ratings (likert) are outside 0 to 10, the range of the others (first: 55 for image p4-h"
    )
    assert warning in (tmp_path / "out" / "judgements.md").read_text()
    console = Console(width=200, record=True)
    show_agreement(console, found)
    assert console.export_text().startswith("warning 1 of 10 ratings")
    assert not run_metaeval(make_metaeval_config(tmp_path, *asked, "protocol.rating_range=[1,100]")).warnings


def test_an_image_rated_under_two_prompt_ids_gives_a_warning(tmp_path: Path) -> None:
    images = [f"i{n % 12}" for n in range(24)]
    prompts = [f"p{n % 12}" if n < 12 or n % 12 > 2 else f"q{n}" for n in range(24)]
    rated = {"image_id": images, "prompt_id": prompts, "rater": [str(n // 12) for n in range(24)]}
    ratings = tmp_path / "ratings.csv"
    pd.DataFrame({**rated, "rating": [1 + n % 5 for n in range(24)]}).sample(frac=1, random_state=0).to_csv(ratings)
    asked = [
        "protocol=long",
        f"protocol.path={ratings}",
        f"scores={write_scores(tmp_path, m=[n % 7 for n in range(12)])}",
    ]
    [warning] = run_metaeval(make_metaeval_config(tmp_path, *asked)).warnings
    assert warning.startswith("3 images are rated under several prompt ids, first ")
    assert "protocol.match=image_and_prompt" in warning


def test_peoples_order_uses_only_prompts_that_the_metric_scored(tmp_path: Path) -> None:
    prompts = [f"p{n}" for n in range(40)]
    rating = {"g": lambda n: 1 + n % 2, "h": lambda n: 5 - n % 3 if n < 20 else 1}
    both = [(prompt, generator) for prompt in prompts for generator in "gh"]
    people: dict[str, list[object]] = {
        "prompt_id": [prompt for prompt, _ in both],
        "generator": [generator for _, generator in both],
        "rating": [rating[generator](int(prompt[1:])) for prompt, generator in both],
    }
    ratings = write_csv(tmp_path / "r.csv", people)
    scored = {name: column[:40] for name, column in people.items() if name != "rating"}
    few = write_csv(tmp_path / "few.csv", {**scored, "few": people["rating"][:40]})
    asked = ["protocol=long", f"protocol.path={ratings}", "protocol.tasks=[ratings,orders]"]
    found = run_metaeval(make_metaeval_config(tmp_path, *asked, f"scores={few}"))
    assert {(its.judge, its.n, its.better) for its in found.orders} == {("people", 20, "h"), ("few", 20, "h")}
    assert find_judgement(found, "few", "model_ordering").value == 1.0
    whole = write_csv(
        tmp_path / "both.csv",
        {
            **{name: people[name] for name in scored},
            "all": people["rating"],
            "few": [*people["rating"][:40], *[None] * 40],
        },
    )
    found = run_metaeval(make_metaeval_config(tmp_path, *asked, f"scores={whole}"))
    assert {(its.judge, its.n) for its in found.orders} == {
        ("people, where all scored", 40),
        ("people, where few scored", 20),
        ("all", 40),
        ("few", 20),
    }
    assert {find_judgement(found, metric, "model_ordering").value for metric in ("all", "few")} == {1.0}


def write_random_study(folder: Path, seed: int, *, prompts: int, alike: bool = False) -> list[str]:
    """Write shuffled ratings of two generators by three raters, and scores by two metrics; return the options.

    All ratings are random or, if `alike`, equal.
    """
    random = np.random.default_rng(seed)
    images = [(f"p{prompt}", generator) for prompt in range(prompts) for generator in ("atlas", "garnet")]
    rated = [(*image, rater, 3 if alike else random.integers(1, 6)) for image in images for rater in "abc"]
    scored = [(*image, metric, random.normal()) for image in images for metric in ("first", "second")]
    for name, rows in (("rater", rated), ("metric", scored)):
        columns = ["prompt_id", "generator", name, "rating" if name == "rater" else "score"]
        frame = pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=seed)
        frame.to_csv(folder / f"{name}s.csv", index=False)
    return ["protocol=long", f"protocol.path={folder}/raters.csv", f"scores={folder}/metrics.csv"]


@pytest.mark.parametrize("seed", [0, 1])
def test_agreement_on_orders_is_undefined_if_people_order_no_generators(tmp_path: Path, seed: int) -> None:
    asked = write_random_study(tmp_path, seed, prompts=4)
    found = run_metaeval(make_metaeval_config(tmp_path, *asked, "protocol.tasks=[ratings,orders]"))
    assert {order.better for order in found.orders} == {None}
    for metric in ("first", "second"):
        for name in ("model_ordering", "orders_reversed", "orders_missed"):
            judged = find_judgement(found, metric, name)
            assert math.isnan(judged.value) and judged.n == 1
            assert judged.convention == "undefined: people tell no two generators apart by significance, of 1 pair"
    kept = pd.read_parquet(tmp_path / "out/judgements.parquet").query("statistic == 'model_ordering'")
    assert kept["value"].isna().all() and len(kept) == 2


def test_agreement_is_undefined_with_a_reason_if_all_ratings_are_equal(tmp_path: Path) -> None:
    statistics = "pearson,spearman,kendall_b,pairwise_accuracy,pairwise_accuracy_grouped,sensitivity,specificity"
    asked = [*write_random_study(tmp_path, 2, prompts=8, alike=True), f"protocol.statistics=[{statistics}]"]
    found = run_metaeval(make_metaeval_config(tmp_path, *asked, "protocol.tasks=[ratings,orders]"))
    judged = [one for one in found.judgements if one.metric != PEOPLE or one.statistic.startswith("alpha")]
    assert {one.statistic for one in judged} > {
        "alpha_ordinal",
        "model_ordering",
        "epsilon_grouped",
        *statistics.split(","),
    }
    assert [one.statistic for one in judged if not math.isnan(one.value)] == []
    reasons = {one.statistic: one.convention.partition("undefined: ")[2] for one in judged}
    assert reasons["pairwise_accuracy"].startswith("people rate the images of every pair alike")
    assert reasons["sensitivity"].startswith("people pass all rated images")


def test_results_of_other_ratings_or_scores_are_not_overwritten_silently(tmp_path: Path) -> None:
    """Results are named after the ratings file and the scores file.

    If they replace results from other files with the same names, the output says so.
    """
    studies = {}
    for name, seed in (("first", 3), ("second", 4)):
        (tmp_path / name).mkdir()
        studies[name] = write_random_study(tmp_path / name, seed, prompts=4)
    (protocol, path, scores), (_, other_path, _) = studies.values()
    shutil.copy(tmp_path / "second/metrics.csv", tmp_path / "first/others.csv")
    shutil.copy(tmp_path / "second/raters.csv", tmp_path / "first/more.csv")
    few = [protocol, f"store={tmp_path}/store", "sampling.resamples=20", "sampling.permutations=99"]
    others = f"scores={tmp_path}/first/others.csv"
    told = [run_for_output("metaeval", *few, *words) for words in ((path, scores), (path, others), (path, scores))]
    told.append(run_for_output("metaeval", *few, path.replace("raters", "more"), scores))
    assert not any("replaced the results" in said for said in told)
    folder = tmp_path / "store/metaeval/long"
    assert {kept.name for kept in folder.iterdir()} == {"raters-metrics", "raters-others", "more-metrics"}
    words = run_for_output("metaeval", *few, other_path, scores)
    assert f"{folder}/raters-metrics: replaced the results of ratings {tmp_path}/first/raters.csv, scores " in words
    assert "replaced" not in (folder / "raters-metrics/judgements.md").read_text()
    assert f"judged: ratings {tmp_path}/second/raters.csv" in (folder / "raters-metrics/judgements.md").read_text()


@pytest.mark.parametrize(("metrics", "others"), [(2, "Clearly less"), (9, "No clear difference")])
def test_the_command_prints_one_screen_that_ends_with_its_conclusion(tmp_path: Path, metrics: int, others: str) -> None:
    """People rated 60 images under two templates; `best` agrees with them, and the other metrics are noise.

    With so few permutations, none of 9 metrics can be distinguished from any other.
    """
    random = np.random.default_rng(metrics)
    ids = [(f"p{prompt}", generator) for prompt in range(30) for generator in ("atlas", "garnet")]
    fit = random.normal(0, 1, len(ids))
    names = ["best", *(f"idle{n}" for n in range(1, metrics))]
    rated = [
        (*image, rater, template, np.clip(round(3 + fit[at] + random.normal(0, 0.3)), 1, 5))
        for at, image in enumerate(ids)
        for rater in "ab"
        for template in ("likert", "wl")
    ]
    scored = [
        (*image, name, (fit[at] if name == "best" else random.normal()))
        for at, image in enumerate(ids)
        for name in names
    ]
    for name, rows, columns in (("r", rated, ["rater", "template", "rating"]), ("s", scored, ["metric", "score"])):
        frame = pd.DataFrame(rows, columns=["prompt_id", "generator", *columns])
        frame.sample(frac=1, random_state=1).to_csv(tmp_path / f"{name}.csv", index=False)
    asked = ["protocol=long", f"protocol.path={tmp_path}/r.csv", f"scores={tmp_path}/s.csv", f"output={tmp_path}/out"]
    asked += ["sampling.resamples=20", "sampling.permutations=199"]
    lines = run_for_output("metaeval", *asked).splitlines()
    folder = lines.index(f"written to {tmp_path}/out/ (verbose=true prints it too):")
    assert 10 < folder <= 42, "the table fits on a screen"
    files = {line.split()[0] for line in lines[folder + 1 :] if line.startswith("  ")}
    assert {"judgements.md", "comparisons.parquet", "corrected.parquet"} <= files
    assert files <= {path.name for path in (tmp_path / "out").iterdir()}
    best = [line for line in lines if line.startswith("best agrees best with ")]
    assert [line.split(" (")[0] for line in best] == [
        "best agrees best with likert by pearson",
        "best agrees best with wl by pearson",
    ]
    assert all(f", over 60 images of 30 prompts). {others}: idle" in line for line in best)
    assert lines.index(best[0]) > folder and len(lines) - lines.index(best[0]) < 6
    whole = run_for_output("metaeval", *asked, "verbose=true").splitlines()
    assert whole[-len(best) :] == lines[-len(best) :] and len(whole) > 3 * len(lines)
    assert any(line.startswith("pearson: mean rating of an image's raters") for line in whole)


def test_the_ratings_in_the_documentation_are_read_as_likert(tmp_path: Path) -> None:
    page = Path("docs/metaeval.md").read_text()
    shown = page.partition("a row for each image and rater:\n\n")[2].partition("\n\n")[0]
    (tmp_path / "ratings.csv").write_text("\n".join(line.strip() for line in shown.splitlines()))
    said = run_for_output(
        "metaeval", "protocol=long", f"protocol.path={tmp_path}/ratings.csv", f"output={tmp_path}/out"
    )
    assert said.endswith("set run=latest or scores=PATH to judge metrics by them\n")
    judged = pd.read_parquet(tmp_path / "out/judgements.parquet")
    assert set(judged["template"]) == {"likert"} and "mean_rating" in set(judged["statistic"])


def make_scores(release: Release) -> dict[str, list[object]]:
    """Return two scores for every judged image: `hits`, and `errors`, which is the negated `hits`."""
    tables = (release.ratings, release.pairings, release.graph_nodes, release.preferences)
    rows = [row for table in tables for row in table.to_pylist()]
    pairs = [{**row, "image_id": row[name]} for row in rows if "image_a" in row for name in ("image_a", "image_b")]
    judged = [row for row in (*pairs, *rows) if row.get("image_id")]
    with_generator = {
        (row["image_id"], row["prompt_id"]): row.get("generator") for row in judged if row.get("prompt_id")
    }
    named = {image for image, _ in with_generator}
    bare = {(row["image_id"], ""): "" for row in judged if row.get("image_id") and row["image_id"] not in named}
    images = [(image, prompt, generator or "") for (image, prompt), generator in (with_generator | bare).items()]
    hits = [crc32("".join(one).encode()) / 2**32 for one in images]
    columns = zip(("image_id", "prompt_id", "generator"), map(list, zip(*images, strict=True)), strict=True)
    return {**dict(columns), "hits": hits, "errors": [-hit for hit in hits]}


@pytest.mark.parametrize("name", {layout.reader: name for name, layout in LAYOUTS.items()}.values())
def test_a_metric_listed_as_lower_is_better_is_judged_like_its_negated_scores(name: str, tmp_path: Path) -> None:
    check_negated(LAYOUTS[name], tmp_path)


def check_negated(layout: Layout, tmp_path: Path) -> None:
    """Check that `errors`, for which lower is better, gets the same results as `hits`, the negated metric."""
    path = layout.write(tmp_path / "release")
    scores = write_csv(tmp_path / "s.csv", make_scores(read_with(layout.reader, path)))
    asked = [f"protocol={layout.reader}", f"protocol.path={path}", f"scores={scores}", "protocol.falling=[errors]"]
    found = run_metaeval(make_metaeval_config(tmp_path, *asked))
    hits, errors = (
        {(one.template, one.statistic, one.group): one.value for one in found.judgements if one.metric == metric}
        for metric in ("hits", "errors")
    )
    assert hits and errors == pytest.approx(hits, nan_ok=True)
    orders = {order.judge: (order.better, order.difference) for order in found.orders}
    if "hits" in orders:
        assert orders["errors"] == (orders["hits"][0], pytest.approx(-orders["hits"][1]))
    assert "errors: a lower score is better, so its scores are negated" in found.notes


def test_equation_1_ranks_the_scores_of_a_lower_is_better_metric_without_negating_them(tmp_path: Path) -> None:
    """T2IScoreScore's ordering is computed on graphs without alternative nodes (a single walk) and with many ties."""
    random = np.random.default_rng(5)
    levels = np.sort(random.integers(0, 4, (12, 9)))
    nodes = [(graph, image, level) for (graph, image), level in np.ndenumerate(levels)]
    metadata = pd.DataFrame(nodes, columns=["id", "image", "rank"]).assign(target_prompt="p", image_source="g")
    metadata["file_name"] = [f"{graph}-{image}.png" for graph, image, _ in nodes]
    counts = [int(level + random.integers(-1, 2)) + 1 for *_, level in nodes]
    folder = tmp_path / "release"
    folder.mkdir()
    metadata.drop(columns="image").to_csv(folder / "ts2_metadata.csv", index=False)
    metadata[["id"]].assign(llmscore_ec=counts).to_csv(folder / "ts2_scores_per_image.csv", index=False)
    found = run_metaeval(make_metaeval_config(tmp_path, "protocol=t2iscorescore", f"protocol.path={folder}"))

    def count_smaller(values: np.ndarray) -> list[int]:
        return [int((values < value).sum()) for value in values]

    grouped = metadata.assign(counts=counts).groupby("id")
    rho = [
        np.corrcoef(count_smaller(of["rank"].to_numpy()), count_smaller(of["counts"].to_numpy()))[0, 1]
        for _, of in grouped
    ]
    assert find_judgement(found, "llmscore_ec", "ordering_paper").value == pytest.approx(np.mean(rho))


def test_every_statistic_is_shown_with_its_number_of_rows(tmp_path: Path) -> None:
    ratings = write_csv(tmp_path / "r.csv", {**make_id_columns("image_id"), "rating": [1, 2, 3, 4, 5, 5, 4, 3, 2, 1]})
    scores = write_csv(
        tmp_path / "s.csv", {**make_id_columns("image_id"), "m": list(range(10)), "k": [None, *range(9)]}
    )
    found = run_metaeval(
        make_metaeval_config(tmp_path, "protocol=long", f"protocol.path={ratings}", f"scores={scores}")
    )
    lines = (tmp_path / "out" / "judgements.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    shown = {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[1:3]}
    assert [(shown[name]["n"], shown[name]["n of pairwise_accuracy"]) for name in "mk"] == [("10", "45"), ("9", "36")]
    console = Console(width=200, record=True)
    show_agreement(console, found)
    rows = {line.split()[1]: line.split() for line in console.export_text().splitlines() if line.startswith("│ ")}
    assert rows["pairwise_accuracy"][-4:] == ["45", "│", "36", "│"]


def test_ratings_out_of_range_are_refused_or_left_out_with_a_note(tmp_path: Path, ratings: Path) -> None:
    scores = write_scores(tmp_path, m=[0.1, 0.2, 0.3, 0.4, 0.5])
    asked = ["protocol=long", f"protocol.path={ratings}", f"scores={scores}", "protocol.rating_range=[1,4]"]
    with pytest.raises(SourceError, match="2 ratings are outside 1 to 4, first 5 of image i4 by rater a"):
        run_metaeval(make_metaeval_config(tmp_path, *asked))
    found = run_metaeval(make_metaeval_config(tmp_path, *asked, "protocol.out_of_range=left_out"))
    assert find_judgement(found, "m", "pearson").n == 4
    assert any("left out" in note for note in found.notes)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("protocol.statistics=[person]", "protocol.statistics.0.: expected 'pearson', .*got 'person'"),
        ("protocol.reader=tifa", "protocol.reader: expected one of .*, got 'tifa'"),
        ("protocol.alpha=2", "between 0 and 1, got 2"),
        ("protocol.tasks=[rating]", "protocol.tasks"),
    ],
)
def test_invalid_options_are_an_error_of_one_line(tmp_path: Path, ratings: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_metaeval_config(tmp_path, "protocol=long", f"protocol.path={ratings}", override)


LAYOUTS_WITHOUT_SCORES = {layout.reader: name for name, layout in LAYOUTS.items()}


@pytest.mark.parametrize("name", LAYOUTS_WITHOUT_SCORES.values())
def test_a_release_without_scores_reports_on_people_or_asks_for_scores(name: str, tmp_path: Path) -> None:
    check_without_scores(LAYOUTS[name], tmp_path)


def check_without_scores(layout: Layout, tmp_path: Path) -> None:
    """Check that a layout without scores gives results about people only, or an error about missing scores."""
    path = layout.write(tmp_path / "release")
    release = read_with(layout.reader, path)
    asked = make_metaeval_config(tmp_path, f"protocol={layout.reader}", f"protocol.path={path}")
    if len(release.scores):
        return
    if not any(map(len, (release.ratings, release.preferences, release.graph_nodes))):
        with pytest.raises(ConfigError, match="the release has no scores; set run=latest, or scores=PATH"):
            run_metaeval(asked)
        return
    found = run_metaeval(asked)
    assert {one.metric for one in found.judgements} <= {PEOPLE} and {one.judge for one in found.orders} <= {PEOPLE}
    assert sum(note.startswith("no scores: only the judgements") for note in found.notes) == 1
    assert not any("matched by" in note for note in found.notes)


def test_results_about_people_are_the_same_with_and_without_scores(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    images = [(f"p{n}", f"g{k}") for n in range(40) for k in range(3) if random.random() < 0.9]
    rated = [
        (*image, rater, "likert", int(np.clip(random.normal(2 + int(image[1][1]), 0.8), 1, 5)))
        for image in images
        for rater in "abc"
        if random.random() < 0.8
    ]
    frame = pd.DataFrame(rated, columns=["prompt_id", "generator", "rater", "template", "rating"])
    path = write_csv(tmp_path / "r.csv", frame.sample(frac=1, random_state=1).to_dict("list"))
    scored = frame[["prompt_id", "generator"]].drop_duplicates()
    scores = write_csv(tmp_path / "s.csv", {**scored.to_dict("list"), "m": random.random(len(scored)).tolist()})
    asked = ["protocol=long", f"protocol.path={path}", "protocol.tasks=[ratings,orders]"]
    alone = run_metaeval(make_metaeval_config(tmp_path, *asked))
    page = (tmp_path / "out" / "judgements.md").read_text()
    beside = run_metaeval(make_metaeval_config(tmp_path, *asked, f"scores={scores}"))
    assert alone.judgements == [one for one in beside.judgements if one.metric == PEOPLE]
    assert alone.orders == [one for one in beside.orders if one.judge == PEOPLE] and len(alone.orders) == 3
    assert {"alpha_ordinal", "mean_rating"} <= {one.statistic for one in alone.judgements}
    assert "### people, likert" in page and "generator g2" in page and "no scores:" in page


def test_an_unknown_metric_is_an_error(tmp_path: Path, ratings: Path) -> None:
    with pytest.raises(ConfigError, match="the release has no scores; set run=latest, or scores=PATH"):
        run_metaeval(make_metaeval_config(tmp_path, "protocol=long", f"protocol.path={ratings}", "metrics=[n]"))
    scores = write_scores(tmp_path, m=[0.1, 0.2, 0.3, 0.4, 0.5])
    asked = ["protocol=long", f"protocol.path={ratings}", f"scores={scores}"]
    with pytest.raises(ConfigError, match="no scores by the metric 'n'; there are scores by m"):
        run_metaeval(make_metaeval_config(tmp_path, *asked, "metrics=[n]"))


def test_only_reliable_prompts_can_be_used(tmp_path: Path) -> None:
    rows = [
        ("i0", "p0", "a", 1),
        ("i0", "p0", "b", 5),
        ("i1", "p1", "a", 2),
        ("i1", "p1", "b", 2),
        ("i2", "p2", "a", 4),
    ]
    ratings = tmp_path / "ratings.csv"
    frame = pd.DataFrame(rows, columns=["image_id", "prompt_id", "rater", "rating"]).assign(generator="g")
    frame.to_csv(ratings, index=False)
    scores = write_scores(tmp_path, m=[0.1, 0.2, 0.3])
    asked = ["protocol=long", f"protocol.path={ratings}", f"scores={scores}", "protocol.reliable=true"]
    found = run_metaeval(make_metaeval_config(tmp_path, *asked))
    assert find_judgement(found, "m", "pearson").n == 2
    assert any(note.startswith("2 of 3 prompts are reliable") for note in found.notes)


def test_the_true_scores_of_the_embedded_benchmark_agree_with_its_ratings_and_graphs(tmp_path: Path) -> None:
    truth = pd.read_parquet("assets/shapes/truth.parquet")
    needed = pd.read_parquet("assets/shapes/requirements.parquet").groupby("prompt_id").size()
    met = 1 - truth["broken"].str.len() / truth["prompt_id"].map(needed)
    scores = tmp_path / "truth.parquet"
    truth[["image_id", "prompt_id", "generator"]].assign(truth=met).to_parquet(scores)
    asked = ["protocol=shapes", f"scores={scores}", "protocol.by_skill=false", "protocol.conventions=[paper,current]"]
    found = run_metaeval(make_metaeval_config(tmp_path, *asked))
    assert find_judgement(found, "truth", "spearman").value > 0.85
    separated = find_judgement(found, "truth", "separation_paper").value
    assert find_judgement(found, "truth", "ordering_current").value == pytest.approx(separated)
    assert 0.9 < find_judgement(found, "truth", "ordering_paper").value < separated, (
        "equation 1 ranks ties by the lowest rank"
    )
    assert find_judgement(found, "truth", "model_ordering").value > 0.9


@NEEDS_REFERENCE_DATA
def test_every_published_number_is_reproduced_or_its_difference_explained() -> None:
    values = load_values(get_command("reproduce"), [f"reference={REFERENCE_FOLDER}", "output=unused.md"])
    checks = reproduce_published_numbers(read_config(values, ReproductionConfig))
    unmatched = [check for check in checks if not check.matches]
    assert all(check.reason for check in unmatched)
    assert (len(checks), len(unmatched)) == (1612, 20)
    correlations = [check for check in checks if ", correlation of " in check.group]
    assert len(correlations) == 8 * 17 * 16 / 2 and all(check.matches for check in correlations)
    assert sum(check.reason.startswith("swapped with table") for check in unmatched) == 8
    assert Path("docs/reproduction.md").read_text() == format_reproduction(checks)


def test_reproduction_without_published_files_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFERENCE_DATA", raising=False)
    with pytest.raises(ConfigError, match="set REFERENCE_DATA, or reference=PATH"):
        load_job_config("reproduce")


@NEEDS_REFERENCE_DATA
def test_a_published_release_is_judged_by_its_own_scores(tmp_path: Path) -> None:
    path = Path(str(REFERENCE_FOLDER)) / "t2vscore"
    found = run_metaeval(
        make_metaeval_config(tmp_path, "protocol=t2vscore", f"protocol.path={path}", "protocol.by_skill=false")
    )
    accuracy = find_judgement(found, "CLIP Score", "pairwise_accuracy")
    assert round(accuracy.value, 3) == 0.599
    assert accuracy.interval.low < accuracy.value < accuracy.interval.high
    assert json.dumps(list(found.notes))


def test_sensitivity_and_specificity_compare_passing_scores_with_passing_ratings(tmp_path: Path) -> None:
    """People pass six of ten images, those rated 4 or 5.

    The metric `judge` passes six images as well, but people reject one of these. The metric `errors` counts errors, and
    passes the images with at most two.
    """
    rated = pd.DataFrame({"rating": [5, 5, 4, 4, 5, 4, 1, 2, 3, 1]})
    rated = rated.assign(image_id=[f"i{n}" for n in range(10)], prompt_id=[f"p{n}" for n in range(10)])
    rated.assign(rater="a", generator="g", template="likert").to_csv(tmp_path / "ratings.csv", index=False)
    judge = [9, 9, 8, 8, 7, 2, 7, 1, 1, 0]
    errors = [0, 1, 2, 2, 5, 6, 2, 4, 8, 9]
    scores = write_scores(tmp_path, judge=judge, errors=errors, flat=[1] * 10)
    pd.read_csv(scores).assign(generator="g").to_csv(scores, index=False)
    asked = ["protocol=long", f"protocol.path={tmp_path / 'ratings.csv'}", f"scores={scores}"]
    asked += ["protocol.falling=[errors]", "protocol.passing_scores={errors: 2}"]
    found = run_metaeval(make_metaeval_config(tmp_path, *asked))
    right, wrong = (find_judgement(found, "judge", name) for name in ("sensitivity", "specificity"))
    assert (right.value, right.n, wrong.value, wrong.n) == (pytest.approx(5 / 6), 6, pytest.approx(3 / 4), 4)
    assert right.interval == pytest.approx(stats.binomtest(5, 6).proportion_ci(0.95, "exact"))
    assert "mean rating of 4 or more, the metric passes those with a score of 7 or more" in right.convention
    few = [find_judgement(found, "errors", name) for name in ("sensitivity", "specificity")]
    assert [one.value for one in few] == pytest.approx([4 / 6, 3 / 4])
    flat = [find_judgement(found, "flat", name) for name in ("sensitivity", "specificity")]
    assert all(math.isnan(one.value) and one.convention.count("undefined: all scores are equal") for one in flat)
    shares = {one.metric: one for one in found.corrected if one.scale == "passing"}
    assert (shares["judge"].generator, shares["judge"].people, shares["judge"].predicted) == ("g", 0.6, 0.6)
    assert "add up to 1.58, which is not clearly above 1" in shares["judge"].note, "there are too few images"
    strict = run_metaeval(make_metaeval_config(tmp_path, *asked, "protocol.passing_ratings={likert: 5}"))
    assert find_judgement(strict, "judge", "sensitivity").n == 3


def test_ratings_of_one_generator_correct_the_pass_rate_of_another(tmp_path: Path) -> None:
    """Ratings of g's images show how often the judge is wrong, which corrects the pass rate of h's unrated images.

    People pass 20 of g's 40 images. The judge passes 18 of these 20 and 4 of the others, and 30 of h's 40 images.
    """
    passes = {"g": [1] * 18 + [0] * 2 + [1] * 4 + [0] * 16, "h": [1] * 30 + [0] * 10}
    ids = [{"image_id": f"{name}{at}", "prompt_id": f"p{at}", "generator": name} for name in "gh" for at in range(40)]
    pd.DataFrame(ids).assign(judge=passes["g"] + passes["h"]).to_csv(tmp_path / "scores.csv", index=False)
    rated = pd.DataFrame(ids[:40]).assign(rater="a", template="likert", rating=[5] * 20 + [1] * 20)
    rated.to_csv(tmp_path / "ratings.csv", index=False)
    asked = ["protocol=long", f"protocol.path={tmp_path / 'ratings.csv'}", f"scores={tmp_path / 'scores.csv'}"]
    found = run_metaeval(make_metaeval_config(tmp_path, *asked, "protocol.passing_scores={judge: 1}"))
    assert (
        find_judgement(found, "judge", "sensitivity").value == 0.9
        and find_judgement(found, "judge", "specificity").value == 0.8
    )
    g, h = (one for one in found.corrected if one.scale == "passing")
    assert (g.people, g.predicted, g.corrected) == pytest.approx((0.5, 22 / 40, (22 / 40 + 0.8 - 1) / 0.7))
    assert (h.n_rated, h.predicted, h.corrected) == pytest.approx((0, 0.75, (0.75 + 0.8 - 1) / 0.7))
    assert math.isnan(h.people) and h.low < 0.75 < h.corrected < h.high
    assert "images that pass by likert, corrected" in (tmp_path / "out/judgements.md").read_text()


def test_shuffled_ratings_and_scores_give_the_same_findings_to_the_last_bit(tmp_path: Path) -> None:
    """Ratings are square roots, like ImagenHub's overall ratings, so a mean of three depends on the summation order."""
    random = np.random.default_rng(0)
    given, scored = [], []
    for prompt in range(30):
        for generator in "abc":
            image = (f"{generator}{prompt}", f"p{prompt}", generator)
            levels = random.permuted(random.integers(1, 4, 2).tolist() * 2)[:3]
            given += [(*image, str(rater), "likert", math.sqrt(level / 3)) for rater, level in enumerate(levels)]
            scored.append((*image, random.integers(0, 4) / 3))
    ids = ["image_id", "prompt_id", "generator"]
    tables = {
        "ratings": pd.DataFrame(given, columns=[*ids, "rater", "template", "rating"]),
        "scores": pd.DataFrame(scored, columns=[*ids, "m"]),
    }
    statistics = "pearson,spearman,spearman_viescore,kendall_b,sensitivity,pairwise_accuracy,pairwise_accuracy_grouped"
    found = []
    for seed in range(3):
        paths = {name: tmp_path / f"{name}.csv" for name in tables}
        for name, path in paths.items():
            tables[name].sample(frac=1, random_state=seed).to_csv(path, index=False)
        asked = ["protocol=long", f"protocol.path={paths['ratings']}", f"scores={paths['scores']}"]
        asked += ["protocol.tasks=[ratings,orders]", f"protocol.statistics=[{statistics}]"]
        judged = run_metaeval(make_metaeval_config(tmp_path, *asked))
        found.append({repr(one) for one in (*judged.judgements, *judged.orders, *judged.comparisons)})
    assert len(found[0]) > 12
    assert found[0] == found[1] == found[2]


def test_skills_can_be_judged_without_samples_that_need_other_skills(tmp_path: Path) -> None:
    """Table 3a of the VQAScore paper reports Winoground's basic skills without samples that also need advanced ones."""
    random = np.random.default_rng(6)
    basic, advanced = ("attribute", "scene"), ("counting", "negation")
    samples = random.permutation(60).tolist()
    tags = {n: [tag for tag in (*basic, *advanced) if random.random() < 0.4] for n in samples}
    rows = [
        {"id": n, **{f"{kind}_{i}": f"{kind} {n} {i}" for kind in ("image", "caption") for i in (0, 1)}}
        for n in samples
    ]
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "new_tag_assignments.json").write_text(json.dumps({str(n): tags[n] for n in samples}))
    fits = {n: bool(random.random() < 0.5) for n in samples}
    scores = pd.DataFrame([
        {"image_id": f"{n}_i{i}", "prompt_id": f"{n}_c{c}", "metric": "m", "score": float((c == i) == fits[n])}
        for n in samples for c in (0, 1) for i in (0, 1)
    ])  # fmt: skip
    scores.sample(frac=1, random_state=1).to_csv(tmp_path / "scores.csv", index=False)
    asked = ["protocol=winoground", f"protocol.path={tmp_path}/examples.jsonl", f"scores={tmp_path}/scores.csv"]
    found = run_metaeval(make_metaeval_config(tmp_path, *asked, "protocol.without_skills=[counting,negation]"))
    group = {one.subset: one for one in found.judgements if one.statistic == "group"}
    left = [n for n in samples if not {*advanced} & {*tags[n]}]
    expected = {tag: [fits[n] for n in left if tag in tags[n]] for tag in basic}
    expected |= {"overall": [fits[n] for n in left], "No Tag": [fits[n] for n in left if not tags[n]]}
    assert {tag: one.n for tag, one in group.items()} == {tag: len(right) for tag, right in expected.items()}
    assert {tag: one.value for tag, one in group.items()} == pytest.approx({
        tag: np.mean(right) for tag, right in expected.items()
    })  # fmt: skip
    note = f"protocol.without_skills leaves out {2 * (len(samples) - len(left))} prompts with counting or negation"
    assert note in found.notes
    assert "attribute" in run_refused("metaeval", *asked, "protocol.without_skills=[attributes]")
