"""Percentile ranks among many scores are correct when computed from small sketches."""

import numpy as np
import pyarrow as pa
import pytest

from plumbline.operators.results.percentile_ranks import (
    SketchKey,
    UsualScores,
    make_sketch,
    merge_sketches,
    select_largest_sketches,
)

NO_LOWER_IS_BETTER = frozenset[str]()


def make_usual_scores(
    *given: tuple[str, str, list[float | None]], falling: frozenset[str] = NO_LOWER_IS_BETTER
) -> UsualScores:
    """Return the scores of earlier runs, from which the percentile rank of a new score is computed.

    Each run is given as (metric, generator, scores), the newest first; lower is better for the metrics in `falling`.
    """
    runs = [
        merge_sketches([(SketchKey(metric, name), make_sketch(pa.chunked_array([scores])))])
        for metric, name, scores in given
    ]
    return UsualScores("pets", select_largest_sketches(runs), falling)


def test_a_score_is_described_by_its_percentile_rank() -> None:
    scores = [0.1, 0.2, 0.2, 0.9, None] * 5
    of_pets = make_usual_scores(("m", "a", scores))
    assert of_pets.locate("m", 0.2) == (0.5, 20), "ties count half, and a row without a score does not count"
    assert of_pets.describe("m", 0.9) == "0.900 has percentile rank 88% among the 20 images scored so far on pets"
    assert make_usual_scores(("m", "a", scores), falling=frozenset({"m"})).locate("m", 0.1) == (0.875, 20)
    assert (
        of_pets.describe("other", 0.9) == "" and make_usual_scores(("m", "a", scores[:-6])).describe("m", 0.9) == ""
    ), "too few images"


def test_a_generator_that_several_runs_scored_counts_once_with_the_most_images() -> None:
    few, many = [0.0] * 20, [1.0] * 30
    assert make_usual_scores(("m", "a", few), ("m", "a", many), ("m", "b", few)).locate("m", 0.5) == (20 / 50, 50)
    assert make_usual_scores(("m", "a", few), ("m", "a", [1.0] * 20)).locate("m", 0.5) == (1, 20), (
        "the newest wins a tie"
    )


def test_two_hundred_values_represent_many_scores_however_they_are_split() -> None:
    draws = np.random.default_rng(0)
    scores = draws.beta(2, 5, size=20_000)
    parts = [
        (SketchKey("m", "a"), make_sketch(pa.chunked_array([part]))) for part in np.split(np.sort(scores), [50, 9_000])
    ]
    table = merge_sketches(parts)
    assert table.column("n").to_pylist() == [20_000] and len(table.column("values")[0]) == 200
    of_all = UsualScores("pets", select_largest_sketches([table]), NO_LOWER_IS_BETTER)
    for score in (0.01, 0.1, 0.3, 0.6, 0.9):
        place = of_all.locate("m", score)
        assert place is not None and place.rank == pytest.approx((scores < score).mean(), abs=0.01)
