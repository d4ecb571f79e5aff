"""The Python API accepts scores and ratings in any kind of table, with integer ids and rows in any order."""

import io
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import plumbline

IMAGE_IDS = [*range(40), 1_000_000_007]


@pytest.fixture(scope="module")
def scores() -> pd.DataFrame:
    """Return two metrics' scores for images with integer ids, in random order."""
    random = np.random.default_rng(3)
    frames = [
        pd.DataFrame({"image_id": IMAGE_IDS, "metric": metric, "score": random.random(len(IMAGE_IDS))})
        for metric in "ab"
    ]
    return pd.concat(frames).sample(frac=1, random_state=4)


@pytest.fixture(scope="module")
def ratings() -> pd.DataFrame:
    """Return shuffled ratings of some images by different people."""
    random = np.random.default_rng(5)
    images = random.choice(IMAGE_IDS, 90)
    frame = pd.DataFrame({"image_id": images, "rater": np.arange(90), "rating": random.integers(1, 6, 90)})
    return frame.sample(frac=1, random_state=6)


def convert_through_csv(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame as pandas would read it from a CSV file."""
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)))


def convert_through_csv_with_gap(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame as read from a CSV file that had one more row without an id, so that all ids are floats."""
    gap = frame.iloc[:1].assign(image_id=None)
    read = convert_through_csv(pd.concat([frame.astype({"image_id": object}), gap]))
    assert read["image_id"].dtype == float
    return read.iloc[:-1]


TABLE_FORMS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "numbers": lambda frame: frame,
    "a CSV file": convert_through_csv,
    "a CSV file with a gap": convert_through_csv_with_gap,
    "nullable numbers": lambda frame: frame.astype({"image_id": "Int64"}),
    "an Arrow table": pa.Table.from_pandas,
    "dicts": lambda frame: frame.to_dict("records"),
    "an iterator of dicts": lambda frame: iter(frame.to_dict("records")),
    "text": lambda frame: frame.astype({"image_id": str}),
}


@pytest.fixture(scope="module")
def judged_as_text(scores: pd.DataFrame, ratings: pd.DataFrame) -> pd.DataFrame:
    """Return the agreement of the scores with the ratings, as `plumbline.judge` computes it if all ids are strings."""
    judged = plumbline.judge(
        scores.astype({"image_id": str}), ratings.astype({"image_id": str, "rater": str}), statistics="pearson"
    )
    assert judged["n"].min() > 20
    return judged


@pytest.mark.parametrize("form", TABLE_FORMS)
def test_ids_are_compared_as_text_in_every_form_of_the_tables(
    form: str, scores: pd.DataFrame, ratings: pd.DataFrame, judged_as_text: pd.DataFrame
) -> None:
    texts = scores.astype({"image_id": str})
    judge = partial(plumbline.judge, statistics="pearson")
    pd.testing.assert_frame_equal(judge(TABLE_FORMS[form](scores), TABLE_FORMS[form](ratings)), judged_as_text)
    pd.testing.assert_frame_equal(judge(texts, TABLE_FORMS[form](ratings)), judged_as_text)


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
        (
            lambda scores, ratings: ("scores.csv", ratings),
            "^scores: expected a pandas DataFrame, .* got a value of type s",
        ),
        (
            lambda scores, ratings: (scores["score"], ratings),
            "^scores: expected a pandas .* got a value of type Series",
        ),
        (lambda scores, ratings: (scores, [[1, 2]]), "^ratings: expected a pandas .* got a value of type list"),
        (lambda scores, ratings: (None, ratings), "^scores: expected a pandas .* got a value of type NoneType"),
        (lambda scores, ratings: (scores.iloc[:0], ratings), "^scores: expected rows, found none"),
        (lambda scores, ratings: (scores, ratings.iloc[:0]), "^ratings: expected rows, found none"),
        (
            lambda scores, ratings: (pd.concat([scores, scores[["score"]]], axis=1), ratings),
            "expected each column once",
        ),
        (
            lambda scores, ratings: (scores.assign(metric=None), ratings),
            "^scores, row 0: expected the name of a metric",
        ),
    ],
)
def test_a_table_that_cannot_be_judged_is_refused_by_name_with_the_reason(
    spoil: Any, message: str, scores: pd.DataFrame, ratings: pd.DataFrame
) -> None:
    with pytest.raises(plumbline.PlumblineError, match=message):
        plumbline.judge(*spoil(scores, ratings))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"statistics": "spaerman"}, "'statistics.0': expected 'pearson', .* got 'spaerman'"),
        ({"match": "prompt"}, "'match': expected 'image'"),
        ({"falling": "c"}, "falling: the scores have no 'c'"),
    ],
)
def test_an_unknown_choice_is_refused_by_name(
    options: dict[str, Any], message: str, scores: pd.DataFrame, ratings: pd.DataFrame
) -> None:
    with pytest.raises(plumbline.ConfigError, match=message):
        plumbline.judge(scores, ratings, **options)


def make_objects(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return a table with columns of Python objects, as pandas reads texts with half an emoji."""
    return pd.DataFrame({name: pd.Series([row[name] for row in records], dtype=object) for name in records[0]})


@pytest.mark.parametrize("form", [list, iter, make_objects])
@pytest.mark.parametrize("value", ["half \ud83d", 7, b"seven"])
@pytest.mark.parametrize("column", ["image_id", "prompt_id", "generator", "metric", "rater", "template"])
def test_an_id_of_any_kind_matches_itself_and_costs_no_other_row(column: str, value: Any, form: Any) -> None:
    named = {"image_id": "own", "prompt_id": "p", "generator": "g", "metric": "m", column: value}
    records = [named | {"score": number, "rating": number} for number in range(9)]
    records = [row | {"image_id": f"i{row['score']}"} for row in records[1:]] + records[:1]
    judged = plumbline.judge(form(records), form(records), falling=[named["metric"]], statistics="pearson")
    assert set(judged["n"]) == {9} and judged["value"].iloc[0] == pytest.approx(-1)


def test_score_and_open_scorer_choose_metrics_alike_and_return_the_same_columns() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    metric = ["edge_density", "entropy"]
    scorers = [
        plumbline.open_scorer(metric=metric, models="shapes"),
        plumbline.open_scorer(metrics=metric, models="shapes"),
        plumbline.open_scorer("metrics=[edge_density,entropy]", models="shapes"),
        plumbline.open_scorer("metric=[edge_density,entropy]", "models=shapes"),
    ]
    tables = [plumbline.score([picture, None], ["a", "b"], metric=metric)]
    tables += [plumbline.score([picture, None], iter(["a", "b"]), metric)]
    tables += [scorer.score([picture, None], ("a", "b")) for scorer in scorers]
    assert tables[0]["prompt"].tolist() == ["a", "b"] * 2 and tables[0]["metric"].tolist()[::2] == metric
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])
    assert list(scorers[0].score([], []).columns) == list(tables[0].columns)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plumbline.score([], [], "entropy", metric="entropy"), "both names mean the same option"),
        (lambda: plumbline.open_scorer(metrics=["entropy", 3]), "expected names and functions, .* of type int"),
        (lambda: plumbline.open_scorer(metrics="entropi", models="shapes"), "no such choice; did you mean entropy"),
        (lambda: plumbline.open_scorer(metrics=lambda image, prompt: 1.0, models="shapes"), "define it with def"),
        (lambda: plumbline.open_run("store", endpoint="x"), "unknown config key 'endpoint'"),
        (lambda: plumbline.open_run(7), "store: expected a folder or an address, got a value of type int"),
        (lambda: plumbline.open_run("a \ud800 store"), "expected a path or an address, found a lone surrogate"),
        (lambda: plumbline.open_scorer(7), "options: expected text, got a value of type int"),
        (lambda: plumbline.score([], [], "entropy", options=[None]), "options: expected text, .* type NoneType"),
        (lambda: plumbline.score([], [], "entropy", models=pd.NA), "models: expected text, .* type NAType"),
    ],
)
def test_an_invalid_argument_is_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(plumbline.ConfigError, match=message):
        call()


CALLER_SCRIPT = """
import gc, logging, os, signal, sys, threading, warnings
import numpy, pandas, PIL.Image, pyarrow

def state():
    known = logging.root.manager.loggerDict
    loggers = {name: one for name, one in known.items() if isinstance(one, logging.Logger) and "." not in name}
    return {
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "collector": gc.get_threshold(),
        "streams": (sys.stdout, sys.stderr, sys.argv[:], sys.path[:], os.getcwd()),
        "root": (logging.root.level, logging.root.handlers[:], logging.root.manager.disable),
        "levels": {name: (one.level, one.handlers[:], one.filters[:]) for name, one in loggers.items()},
    }

sys.excepthook = lambda *args: None
signal.signal(signal.SIGTERM, lambda number, frame: None)
warnings.simplefilter("error", ResourceWarning)
before = state()
import plumbline
scorer = plumbline.open_scorer(metrics=["edge_density", "entropy"], models="shapes")
assert plumbline.score(numpy.zeros((8, 8, 3), "uint8"), "a", metrics="entropy")["score"].tolist() == [0]
plumbline.judge([{"image_id": 1, "metric": "m", "score": 1}], [{"image_id": 1, "rating": 1}])
try:
    plumbline.open_scorer(metrics="nothing")
except plumbline.ConfigError:
    pass
after = state()
after["levels"] = {name: after["levels"][name] for name in before["levels"]}
assert after == before, [(name, before[name], after[name]) for name in before if before[name] != after[name]]
assert plumbline.__version__.count(".") == 2
"""


def test_scoring_and_judging_leave_the_callers_process_unchanged() -> None:
    done = subprocess.run([sys.executable, "-c", CALLER_SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_warning_says_that_the_default_models_only_know_shapes() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    with pytest.warns(UserWarning, match="models='shapes', the default, only knows coloured shapes"):
        unchosen = plumbline.score(picture, "an astronaut", "clipscore")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = plumbline.score(picture, "an astronaut", "clipscore", models="shapes")
        plumbline.score(picture, "an astronaut", "edge_density")
    assert chosen.score.tolist() == unchosen.score.tolist()
