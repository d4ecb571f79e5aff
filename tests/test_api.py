"""Tables of scores and ratings are judged as people have them: ids as numbers, rows in any order, in any container."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import plumbline

IDS = [*range(40), 1_000_000_007]


@pytest.fixture(scope="module")
def scores() -> pd.DataFrame:
    """Two metrics' scores of images with whole numbers as ids, shuffled."""
    random = np.random.default_rng(3)
    frames = [pd.DataFrame({"image_id": IDS, "metric": metric, "score": random.random(len(IDS))}) for metric in "ab"]
    return pd.concat(frames).sample(frac=1, random_state=4)


@pytest.fixture(scope="module")
def ratings() -> pd.DataFrame:
    """Ratings by up to three people an image, shuffled; some images have none."""
    random = np.random.default_rng(5)
    images = random.choice(IDS, 90)
    frame = pd.DataFrame({"image_id": images, "rater": np.arange(90), "rating": random.integers(1, 6, 90)})
    return frame.sample(frac=1, random_state=6)


def as_csv(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as pandas reads it from a CSV file."""
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)))


def as_csv_with_a_gap(frame: pd.DataFrame) -> pd.DataFrame:
    """The same if one row more has no id, which makes floats of all others."""
    gap = frame.iloc[:1].assign(image_id=None)
    read = as_csv(pd.concat([frame.astype({"image_id": object}), gap]))
    assert read["image_id"].dtype == float
    return read.iloc[:-1]


FORMS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "numbers": lambda frame: frame,
    "a CSV file": as_csv,
    "a CSV file with a gap": as_csv_with_a_gap,
    "nullable numbers": lambda frame: frame.astype({"image_id": "Int64"}),
    "an Arrow table": pa.Table.from_pandas,
    "dicts": lambda frame: frame.to_dict("records"),
    "an iterator of dicts": lambda frame: iter(frame.to_dict("records")),
    "text": lambda frame: frame.astype({"image_id": str}),
}


@pytest.mark.parametrize("form", FORMS)
def test_ids_are_compared_as_text_whatever_form_the_tables_have(
    form: str, scores: pd.DataFrame, ratings: pd.DataFrame
) -> None:
    expected = plumbline.judge(scores.astype({"image_id": str}), ratings.astype({"image_id": str, "rater": str}))
    assert expected["n"].min() > 20
    pd.testing.assert_frame_equal(plumbline.judge(FORMS[form](scores), FORMS[form](ratings)), expected)
    pd.testing.assert_frame_equal(plumbline.judge(scores.astype({"image_id": str}), FORMS[form](ratings)), expected)


def test_prompts_and_generators_may_be_numbers_too(scores: pd.DataFrame, ratings: pd.DataFrame) -> None:
    pairs = [
        frame.assign(prompt_id=frame["image_id"] // 2, generator=frame["image_id"] % 2).drop(columns="image_id")
        for frame in (scores, ratings)
    ]
    texts = [frame.astype({"prompt_id": str, "generator": str}) for frame in pairs]
    expected = plumbline.judge(*texts, statistics="kendall_b")
    pd.testing.assert_frame_equal(plumbline.judge(*pairs, statistics=iter(["kendall_b"])), expected)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda scores, ratings: (scores.drop(columns="metric"), ratings),
            r"^scores: expected column\(s\) metric, found",
        ),
        (
            lambda scores, ratings: (scores, ratings[["rating"]]),
            r"^ratings: expected column\(s\) image_id, found rating",
        ),
        (lambda scores, ratings: (scores, ratings.set_index("image_id")), r"^ratings: expected column\(s\) image_id"),
        (
            lambda scores, ratings: (scores, ratings.assign(rating="good")),
            "^ratings, row 0: expected a number, got 'good'",
        ),
        (lambda scores, ratings: (scores.assign(score="0,5"), ratings), "^scores, row 0: expected a number, got '0,5'"),
    ],
)
def test_a_table_that_cannot_be_judged_is_named_with_what_it_lacks(
    spoil: Any, message: str, scores: pd.DataFrame, ratings: pd.DataFrame
) -> None:
    with pytest.raises(plumbline.PlumblineError, match=message):
        plumbline.judge(*spoil(scores, ratings))
