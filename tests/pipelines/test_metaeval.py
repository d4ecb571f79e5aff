"""Meta-evaluation end to end: from releases and score tables, ours or anybody's, to the files a paper needs."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from jobs.command import load_values
from operators.errors import ConfigError, SourceError
from operators.judging.judgement import Judgement
from pipelines.config import read_config
from pipelines.metaeval import Findings, run_metaeval
from pipelines.protocols import MetaevalConfig
from pipelines.reproduction import ReproductionConfig, reproduce, reproduction_text

REFERENCE = os.environ.get("REFERENCE_DATA")
needs_reference = pytest.mark.skipif(REFERENCE is None, reason="REFERENCE_DATA names no folder of published ratings")


def config(folder: Path, *overrides: str) -> MetaevalConfig:
    few = ["sampling.resamples=20", "sampling.permutations=99", f"output={folder / 'out'}"]
    found: MetaevalConfig = read_config(load_values("metaeval", [*few, *overrides]), MetaevalConfig)
    return found


def value(found: Findings, metric: str, statistic: str) -> Judgement:
    return next(
        its for its in found.judgements if (its.metric, its.statistic, its.subset) == (metric, statistic, "overall")
    )


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """A generic long table of five images' ratings by two raters."""
    rows = [(f"i{n}", f"p{n}", "g", rater, "likert", 1 + n) for n in range(5) for rater in ("a", "b")]
    columns = ["image_id", "prompt_id", "generator", "rater", "template", "rating"]
    path = tmp_path / "ratings.csv"
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return path


def table(folder: Path, **metrics: list[float | None]) -> Path:
    path = folder / "scores.csv"
    pd.DataFrame({"image_id": [f"i{n}" for n in range(len(next(iter(metrics.values()))))], **metrics}).to_csv(
        path, index=False
    )
    return path


def test_anybodys_scores_are_judged_by_anybodys_ratings_and_all_files_are_written(
    tmp_path: Path, ratings: Path
) -> None:
    scores = table(tmp_path, good=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], bad=[0.5, None, 0.3, 0.2, 0.1, 0.0])
    found = run_metaeval(config(tmp_path, "protocol=long", f"protocol.path={ratings}", f"scores={scores}"))
    assert value(found, "good", "spearman").value == pytest.approx(1)
    assert value(found, "bad", "spearman").value == pytest.approx(-1)
    assert (value(found, "bad", "spearman").n_unscored, value(found, "bad", "spearman").n_unrated) == (1, 1)
    assert value(found, "people", "alpha_ordinal").value == pytest.approx(1)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"judgements.parquet", "comparisons.parquet", "orders.parquet", "judgements.md", "judgements.tex"}
    kept = pd.read_parquet(tmp_path / "out" / "judgements.parquet")
    assert set(kept["metric"]) == {"good", "bad", "people"}
    assert kept["convention"].str.len().gt(0).all()


def test_nothing_that_matches_is_an_error_with_its_remedy(tmp_path: Path, ratings: Path) -> None:
    other = tmp_path / "other.csv"
    pd.DataFrame({"image_id": ["x", "y"], "m": [0.1, 0.2]}).to_csv(other, index=False)
    with pytest.raises(SourceError, match=r"no score is of a rated image; .* matched by image_id"):
        run_metaeval(config(tmp_path, "protocol=long", f"protocol.path={ratings}", f"scores={other}"))


def test_ratings_out_of_range_are_refused_or_left_out_with_a_note(tmp_path: Path, ratings: Path) -> None:
    scores = table(tmp_path, m=[0.1, 0.2, 0.3, 0.4, 0.5])
    asked = ["protocol=long", f"protocol.path={ratings}", f"scores={scores}", "protocol.rating_range=[1,4]"]
    with pytest.raises(SourceError, match="2 ratings are outside 1 to 4, first 5 of image i4 by rater a"):
        run_metaeval(config(tmp_path, *asked))
    found = run_metaeval(config(tmp_path, *asked, "protocol.out_of_range=left_out"))
    assert value(found, "m", "pearson").n == 4
    assert any("left out" in note for note in found.notes)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("protocol.statistics=[person]", "protocol.statistics: expected some of pearson.*got 'person'"),
        ("protocol.reader=tifa", "protocol.reader: expected one of .*, got 'tifa'"),
        ("protocol.alpha=2", "between 0 and 1, got 2"),
        ("protocol.tasks=[rating]", "protocol.tasks"),
    ],
)
def test_wrong_choices_are_refused_in_one_line(tmp_path: Path, ratings: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, "protocol=long", f"protocol.path={ratings}", override)


def test_a_release_without_scores_wants_some_and_unknown_metrics_are_named(tmp_path: Path, ratings: Path) -> None:
    with pytest.raises(ConfigError, match="the release holds no scores; set scores=PATH"):
        run_metaeval(config(tmp_path, "protocol=long", f"protocol.path={ratings}"))
    scores = table(tmp_path, m=[0.1, 0.2, 0.3, 0.4, 0.5])
    asked = ["protocol=long", f"protocol.path={ratings}", f"scores={scores}"]
    with pytest.raises(ConfigError, match="no scores of 'n'; there are m"):
        run_metaeval(config(tmp_path, *asked, "metrics=[n]"))


def test_reliable_prompts_alone_can_be_asked_for(tmp_path: Path) -> None:
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
    scores = table(tmp_path, m=[0.1, 0.2, 0.3])
    asked = ["protocol=long", f"protocol.path={ratings}", f"scores={scores}", "protocol.reliable=true"]
    found = run_metaeval(config(tmp_path, *asked))
    assert value(found, "m", "pearson").n == 2
    assert any(note.startswith("2 of 3 prompts are reliable") for note in found.notes)


def test_the_packs_ratings_and_error_graphs_judge_the_truth_as_right(tmp_path: Path) -> None:
    truth = pd.read_parquet("assets/shapes/truth.parquet")
    needed = pd.read_parquet("assets/shapes/requirements.parquet").groupby("prompt_id").size()
    met = 1 - truth["broken"].str.len() / truth["prompt_id"].map(needed)
    scores = tmp_path / "truth.parquet"
    truth[["image_id", "prompt_id", "generator"]].assign(truth=met).to_parquet(scores)
    found = run_metaeval(config(tmp_path, "protocol=shapes", f"scores={scores}", "protocol.by_skill=false"))
    assert value(found, "truth", "spearman").value > 0.85
    assert value(found, "truth", "separation_paper").value == pytest.approx(
        value(found, "truth", "ordering_paper").value
    )
    assert value(found, "truth", "model_ordering").value > 0.9


@needs_reference
def test_every_published_number_is_met_or_its_difference_explained() -> None:
    values = load_values("reproduce", [f"reference={REFERENCE}", "output=unused.md"])
    checks = reproduce(read_config(values, ReproductionConfig))
    unmatched = [check for check in checks if not check.matches]
    assert all(check.reason for check in unmatched)
    assert (len(checks), len(unmatched)) == (204, 7)
    assert Path("docs/reproduction.md").read_text() == reproduction_text(checks)


def test_without_published_files_reproducing_says_where_to_put_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFERENCE_DATA", raising=False)
    with pytest.raises(ConfigError, match="set REFERENCE_DATA, or reference=PATH"):
        read_config(load_values("reproduce", []), ReproductionConfig)


@needs_reference
def test_a_published_release_is_judged_by_its_own_scores(tmp_path: Path) -> None:
    path = Path(str(REFERENCE)) / "t2vscore"
    found = run_metaeval(config(tmp_path, "protocol=t2vscore", f"protocol.path={path}", "protocol.by_skill=false"))
    accuracy = value(found, "CLIP Score", "pairwise_accuracy")
    assert round(accuracy.value, 3) == 0.599
    assert accuracy.interval.low < accuracy.value < accuracy.interval.high
    assert json.dumps(list(found.notes))
