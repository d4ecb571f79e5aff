"""The released files are read completely: counts equal those stated in the papers and releases."""

from collections import Counter
from itertools import groupby
from math import prod

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import spearmanr

from plumbline.operators.base import schemas
from tests.pipelines.metaeval.releases.files import NEEDS_REFERENCE_DATA, REFERENCE_FOLDER, ROOT, read_with

ImageId = str


def compute_means_by(table: pa.Table, key: str) -> dict[str, float]:
    found = table.group_by(key).aggregate([("rating", "mean")])
    return dict(zip(found.column(key).to_pylist(), found.column("rating_mean").to_pylist(), strict=True))


@NEEDS_REFERENCE_DATA
@pytest.mark.parametrize(
    ("name", "path", "ratings", "generators"),
    [
        ("tifa160", "tifa160/tifa160_human_and_scores.json", 1600, 5),
        ("genai_bench", "genai_bench/genai_bench_527_image_ratings.json", 527 * 6 * 3, 6),
    ],
)
def test_every_generator_has_its_ratings(name: str, path: str, ratings: int, generators: int) -> None:
    """The test only counts ratings; docs/reproduction.md has the results for the metrics."""
    release = read_with(name, REFERENCE_FOLDER / path)
    counts = Counter(release.ratings.column("generator").to_pylist())
    assert len(counts) == generators and set(counts.values()) == {ratings // generators}


@NEEDS_REFERENCE_DATA
def test_t2vscore_has_every_video() -> None:
    release = read_with("t2vscore", REFERENCE_FOLDER / "t2vscore")
    assert release.notes == ["a video has one rating, a mean over its raters"]
    assert len(release.ratings) == 2543
    counts = Counter(release.scores.column("metric").to_pylist())
    assert counts == dict.fromkeys(("CLIP Score", "X-CLIP Score", "BLIP-BLEU", "T2VScore-A (GPT-4V)"), 2543)
    assert set(release.scores.column("image_id").to_pylist()) == set(release.ratings.column("image_id").to_pylist())


@NEEDS_REFERENCE_DATA
def test_t2iscorescore_has_the_stated_walks() -> None:
    release = read_with("t2iscorescore", REFERENCE_FOLDER / "ts2")
    nodes = release.graph_nodes.to_pylist()
    assert len({row["image_id"] for row in nodes}) == len(nodes) == 2840
    assert {
        name: len({row["graph_id"] for row in nodes if row["subset"] == name})
        for name in ("synth", "nat", "real", "other")
    } == {"synth": 111, "nat": 25, "real": 29, "other": 0}
    walks = 0
    for graph, images in groupby(nodes, key=lambda row: str(row["graph_id"])):
        levels = Counter(level for level, _ in {(row["level"], row["node"]) for row in images})
        walks += levels.pop(0) ** 2 * prod(levels.values())
        assert graph.isdecimal()
    assert walks == 2121


@NEEDS_REFERENCE_DATA
def test_t2iscorescore_has_a_score_or_a_reason_for_every_image() -> None:
    release = read_with("t2iscorescore", REFERENCE_FOLDER / "ts2")
    assert release.scores.schema == schemas.SCORES and len(release.scores) == 19 * 2840
    missing = [row for row in release.scores.to_pylist() if row["score"] is None]
    assert Counter(row["metric"] for row in missing) == dict.fromkeys(
        ("fuyu_tifa", "llava-alt_tifa", "llava_tifa", "mplug_tifa"), 1
    )
    assert {row["error"]["kind"] for row in missing} == {"not_scored"}
    stray = [row for row in release.scores.to_pylist() if row["metric"] == "llmscore_over"][163]
    assert (stray["image_id"], stray["score"]) == ("images/008-12.jpg", 3.0)
    assert release.notes == [
        "6 cells of llmscore_over contained a stray quote, which was removed",
        "4 of 53960 published scores are empty",
    ]


def test_the_embedded_benchmark_is_a_release() -> None:
    release = read_with("shapes", ROOT / "assets/shapes")
    assert (len(release.ratings), len(release.graph_nodes), len(release.skills)) == (5376, 1792, 256)
    assert release.ratings.schema == schemas.RATINGS and release.graph_nodes.schema == schemas.GRAPH_NODES
    rated = compute_means_by(release.ratings, "image_id")
    levels = {row["image_id"]: row["level"] for row in release.graph_nodes.to_pylist()}
    assert spearmanr([levels[image] for image in rated], list(rated.values())).statistic < -0.5
    for row in release.graph_nodes.to_pylist():
        assert row["level"] == len([name for name in row["node"].split("+") if name])
        assert row["subset"] == release.skills[row["graph_id"]][-1]
    assert np.isfinite(release.ratings.column("rating").to_numpy()).all()
