"""Scores are read from runs and from users' own tables, and every missing score has a reason."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.releases.scores import read_scores
from tests.pipelines.metaeval.releases.files import (
    PICK_A_PIC_ROWS,
    TS2_METADATA,
    TS2_SCORES,
    Rows,
    format_csv,
    format_parquet,
    read_with,
    write_file,
)

NAN, INFINITY = float("nan"), float("inf")
LONG_SCORES: Rows = [
    {"image_id": "0001", "prompt_id": "07", "generator": "atlas", "metric": "clip", "score": 0.1},
    {"image_id": "0001", "prompt_id": "07", "generator": "atlas", "metric": "tifa", "score": 1},
    {"image_id": "0002", "prompt_id": "07", "generator": "birch", "metric": "clip", "score": -3e-9},
]
WIDE_SCORES: Rows = [
    {"prompt_id": "07", "generator": "atlas", "prompt": "a dog", "clip": 0.1, "tifa": 1},
    {"prompt_id": "07", "generator": "birch", "prompt": "a dog", "clip": -3e-9, "tifa": None},
]
ROW_ERROR = {"kind": "corrupt_image", "message": "not an image", "retryable": False}


def read_score_table(path: Path | str) -> pa.Table:
    table = read_scores(StorageConfig().locate(str(path)))
    assert table.schema == schemas.SCORES
    for row in table.to_pylist():
        assert (row["score"] is None) == (row["error"] is not None)
        assert row["score"] is None or math.isfinite(row["score"])
    return table


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_long_table_keeps_its_ids_and_numbers(suffix: str, tmp_path: Path) -> None:
    content = (
        format_parquet(LONG_SCORES)
        if suffix == "parquet"
        else format_csv(LONG_SCORES, "\t" if suffix == "tsv" else ",")
    )
    found = read_score_table(write_file(tmp_path / f"s.{suffix}", content))
    assert found.select(list(LONG_SCORES[0])).to_pylist() == [
        {**row, "score": float(row["score"])} for row in LONG_SCORES
    ]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_wide_table_is_read_metric_by_metric(suffix: str, tmp_path: Path) -> None:
    found = read_score_table(
        write_file(
            tmp_path / f"s.{suffix}", format_csv(WIDE_SCORES) if suffix == "csv" else format_parquet(WIDE_SCORES)
        )
    )
    names = ("image_id", "prompt_id", "generator", "metric", "score")
    assert [tuple(row[name] for name in names) for row in found.to_pylist()] == [
        (None, "07", "atlas", "clip", 0.1),
        (None, "07", "birch", "clip", -3e-9),
        (None, "07", "atlas", "tifa", 1.0),
        (None, "07", "birch", "tifa", None),
    ]
    assert found.column("error")[3]["kind"].as_py() == "not_scored"


def test_the_metric_of_a_wide_table_can_be_called_score(tmp_path: Path) -> None:
    found = read_score_table(write_file(tmp_path / "s.csv", "image_id,score\n1,2\n"))
    assert found.to_pylist()[0]["metric"] == "score"


@pytest.mark.parametrize(
    "cell, kind", [("nan", "not_finite"), ("-inf", "not_finite"), ("", "not_scored"), (" ", "not_scored")]
)
def test_a_missing_score_has_a_reason(cell: str, kind: str, tmp_path: Path) -> None:
    found = read_score_table(write_file(tmp_path / "s.csv", f"image_id,metric,score\n1,clip,{cell}\n")).to_pylist()[0]
    assert (found["score"], found["error"]["kind"], found["error"]["retryable"]) == (None, kind, False)


def make_run_table(*changed: dict[str, object]) -> pa.Table:
    row = {**LONG_SCORES[0], "n_questions": 3, "truncated": False}
    failed = {"prompt_id": "09", "generator": "atlas", "metric": "clip", "error": ROW_ERROR}
    return rows.table([row, failed, failed, *changed], schemas.SCORES)


def test_a_runs_table_is_read_unchanged_from_its_file_or_folder(tmp_path: Path) -> None:
    pq.write_table(make_run_table(), tmp_path / "scores.parquet")
    for path in (tmp_path, tmp_path / "scores.parquet"):
        assert read_score_table(path).equals(make_run_table())


def test_a_runs_scores_may_be_a_folder_of_parts(tmp_path: Path) -> None:
    parts = tmp_path / "scores.parquet"
    parts.mkdir()
    for number in range(3):
        pq.write_table(make_run_table().slice(number, 1), parts / f"{number:05d}-0123.parquet")
    for path in (tmp_path, parts):
        assert read_score_table(path).combine_chunks().equals(make_run_table())
    pq.write_table(make_run_table().drop_columns(["metric"]), parts / "00003-0123.parquet")
    with pytest.raises(SourceError, match=r"scores\.parquet: the score files have different columns"):
        read_score_table(tmp_path)


def test_a_run_keeps_its_errors_and_scores_that_are_not_finite_get_one(tmp_path: Path) -> None:
    spoilt = {**LONG_SCORES[1], "score": NAN}
    pq.write_table(make_run_table(spoilt, {**LONG_SCORES[2], "score": None}), tmp_path / "scores.parquet")
    kinds = [row["error"] and row["error"]["kind"] for row in read_score_table(tmp_path).to_pylist()]
    assert kinds == [None, "corrupt_image", "corrupt_image", "not_finite", "not_scored"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.floats(), min_size=1, max_size=20))
def test_numbers_in_csv_are_read_exactly(values: list[float], tmp_path: Path) -> None:
    text = "image_id,clip\n" + "".join(f"{place:03},{value!r}\n" for place, value in enumerate(values))
    found = read_score_table(write_file(tmp_path / "s.csv", text))
    assert found.column("score").to_pylist() == [value if math.isfinite(value) else None for value in values]
    assert found.column("image_id").to_pylist() == [f"{place:03}" for place in range(len(values))]


@pytest.mark.parametrize(
    "content, complaint",
    [
        ("metric,score\nclip,1\n", r"expected image_id, or prompt_id and generator, found metric, score; give a run"),
        (
            "prompt_id,metric,score\n1,clip,1\n",
            "expected image_id, or prompt_id and generator, found prompt_id, metric",
        ),
        ("image_id,metric\n1,clip\n", "expected scores, found the columns image_id, metric; give a run of plumbline"),
        ("image_id,prompt\n1,a dog\n", "expected scores, found the columns image_id, prompt"),
        (
            "image_id,note,clip\n1,nice,0\n",
            r"row 0: expected a number for note, found 'nice'; .* list the columns that are metrics with metrics=\[",
        ),
        (
            "image_id,metric,score\n1,clip,2\n1,clip,high\n",
            "row 1: expected a number for score, found 'high'; correct it",
        ),
        ("image_id,metric,score\n1,,2\n", "row 0: expected a metric, found none"),
        (
            "image_id,metric,score\n,clip,2\n",
            "row 0: expected image_id, or both prompt_id and generator, found neither; fill",
        ),
        (
            "image_id,metric,score\n1,clip,2\n2,clip,1\n1,clip,3\n",
            "row 2: an earlier row also has image_id '1', metric",
        ),
        ("image_id,clip,tifa\n1,2,3\n1,2,3\n", "row 1: an earlier row also has image_id '1'"),
        ("image_id,metric,score\n", "expected rows, found none"),
        ("image_id,metric,score\n1,clip\n", r"row 0 \(line 2\): expected 3 fields, found 2"),
        ("", "the file is empty"),
    ],
)
def test_an_invalid_table_is_an_error_with_a_remedy(content: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=complaint) as caught:
        read_score_table(write_file(tmp_path / "s.csv", content))
    assert "\n" not in str(caught.value) and "s.csv" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "image_id,note,clip\n1,nice,0.5\n2,,0.25\n",
        "image_id,metric,score\n1,clip,0.5\n2,clip,0.25\n1,judge,good\n1,judge,bad\n",
    ],
    ids=["wide", "long"],
)
def test_columns_of_other_metrics_may_contain_text(content: str, tmp_path: Path) -> None:
    place = StorageConfig().locate(str(write_file(tmp_path / "s.csv", content)))
    found = read_scores(place, ["clip"])
    assert found.select(["image_id", "metric", "score"]).to_pylist() == [
        {"image_id": "1", "metric": "clip", "score": 0.5},
        {"image_id": "2", "metric": "clip", "score": 0.25},
    ]
    with pytest.raises(ConfigError, match=r"metrics: no scores by the metric 'clap'; there are scores by .*clip"):
        read_scores(place, ["clap"])


def test_parquet_without_scores_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"column 'vector': expected text or numbers, found list"):
        read_score_table(write_file(tmp_path / "s.parquet", format_parquet([{"image_id": "1", "vector": [1.0]}])))
    with pytest.raises(SourceError, match=r"not readable as Parquet"):
        read_score_table(write_file(tmp_path / "s.parquet", format_parquet(LONG_SCORES)[:-30]))
    wrong = [dict.fromkeys(schemas.SCORES.names, "x")]
    with pytest.raises(SourceError, match=r"expected the columns of a run's scores, found others .*; give a run"):
        read_score_table(write_file(tmp_path / "s.parquet", format_parquet(wrong)))


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^file .*scores\.parquet: not found; check the path"):
        read_score_table(tmp_path)
    with pytest.raises(ConfigError, match=r"^scores .*none\.csv: not found; check the path"):
        read_score_table(tmp_path / "none.csv")


def test_score_tables_of_every_layout_can_be_read_from_s3(bucket: str) -> None:
    files = {
        "run/scores.parquet": format_parquet(LONG_SCORES),
        "wide.csv": format_csv(WIDE_SCORES).encode(),
        "ts2/ts2_metadata.csv": format_csv(TS2_METADATA).encode(),
        "ts2/ts2_scores_per_image.csv": format_csv(TS2_SCORES).encode(),
        "pick/test-0.parquet": format_parquet(PICK_A_PIC_ROWS),
    }
    for name, content in files.items():
        place = StorageConfig().locate(f"{bucket}/{name}")
        place.write(content)
    assert (len(read_score_table(f"{bucket}/run")), len(read_score_table(f"{bucket}/wide.csv"))) == (3, 4)
    release = read_with("t2iscorescore", f"{bucket}/ts2")
    assert (len(release.graph_nodes), len(release.scores)) == (16, 32)
    assert len(read_with("pick_a_pic", f"{bucket}/pick").preferences) == 4
    with pytest.raises(ConfigError, match=r"s3://.*/none\.csv: not found"):
        read_with("long", f"{bucket}/none.csv")
