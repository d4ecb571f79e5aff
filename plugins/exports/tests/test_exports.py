"""A table contains each of a run's rows once, even after interrupted exports, and only changes are written again."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.store.store import Store
from plumbline.plugins.exports import exports
from plumbline.plugins.exports.exported_rows import KEY_COLUMNS
from plumbline.plugins.exports.exports import ExportConfig, ExportedScores, export_scores
from plumbline.plugins.exports.formats import FORMATS
from plumbline.plugins.exports.score_table import ExportError
from tests.commands import open_store_at
from tests.operators.report.made import MadeRun, draw_noisy_score, make_run
from tests.s3 import S3Server

MISSING_IMAGE_ERROR = {
    "kind": "missing_image",
    "message": "generator cobalt has no image for this prompt",
    "retryable": True,
}


def read_iceberg(output: str, catalog: str | None = None, **storage: str) -> pd.DataFrame:
    from pyiceberg.catalog import load_catalog

    properties = {f"s3.{name}": value for name, value in storage.items()}
    found = load_catalog("plumbline", type="sql", uri=catalog or f"sqlite:///{output}/catalog.db", **properties)
    return found.load_table("plumbline.scores").scan().to_pandas()


def read_lance(output: str, catalog: str | None = None, **storage: str) -> pd.DataFrame:
    import lance

    options = {"allow_http": "true", **{f"aws_{name}": value for name, value in storage.items()}}
    return lance.dataset(f"{output}/scores.lance", storage_options=options).to_table().to_pandas()


READ_FUNCTIONS = {"iceberg": read_iceberg, "lance": read_lance}


@pytest.fixture(params=FORMATS)
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def export(store: Store, table_format: str, output: str | Path, **options: Any) -> ExportedScores:
    return export_scores(
        read_config({"store": store.place.url, "format": table_format, "output": str(output), **options}, ExportConfig)
    )


def read_table(table_format: str, output: str | Path, *catalog: str) -> pd.DataFrame:
    table = READ_FUNCTIONS[table_format](str(output), *catalog)
    assert not table.duplicated(list(KEY_COLUMNS)).any()
    return table.sort_values(list(KEY_COLUMNS), ignore_index=True)


def score_with_failures(generator: str, metric: str, prompt: int) -> float | None:
    return None if (generator, prompt) == ("cobalt", 7) else draw_noisy_score(generator, metric, prompt)


def score_atlas_better(generator: str, metric: str, prompt: int) -> float:
    return draw_noisy_score(generator, metric, prompt) + (generator == "atlas")


def replace_scores(run: MadeRun, *parts: pa.Table) -> None:
    path = f"runs/{run.run_id}/scores.parquet"
    for file in run.store.files(path):
        run.store.remove(file)
    for number, part in enumerate(parts):
        run.store.write_table(f"{path}/{number:05d}.parquet", part)


def read_scores(run: MadeRun) -> pa.Table:
    return run.store.read_table(f"runs/{run.run_id}/scores.parquet")


def make_row(image_id: str | None, prompt_id: str | None, score: float | None, **more: Any) -> dict[str, Any]:
    ids = {"image_id": image_id, "prompt_id": prompt_id, "generator": "cobalt", "metric": "gecko"}
    return {**ids, "score": score, "error": MISSING_IMAGE_ERROR if score is None else None, **more}


def make_table(*records: dict[str, Any]) -> pa.Table:
    return rows.table(records, schemas.SCORES)


def test_a_table_has_every_row_of_the_run_and_the_errors_of_failed_rows(table_format: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, score=score_with_failures)
    assert export(run.store, table_format, tmp_path / "out")[2:] == (72, 72, 0)
    found = read_table(table_format, tmp_path / "out")
    expected = read_scores(run).to_pandas().sort_values(["generator", "metric", "image_id"], ignore_index=True)
    for column in ("generator", "metric", "image_id", "prompt_id", "n_questions", "truncated"):
        assert found[column].tolist() == expected[column].tolist()
    pd.testing.assert_series_equal(found.score, expected.score)
    failed = found[found.score.isna()]
    assert set(failed.image_id) == {"cobalt-p0007"} and set(failed.error_kind) == {"corrupt_image"}
    assert not failed.error_retryable.any() and set(failed.error_message) == {"bytes <b>unreadable</b>"}
    assert found[found.score.notna()].error_kind.isna().all()
    assert set(found.benchmark) == {"made"} and set(found.run_id) == {run.run_id}
    assert (found.row_id == found.image_id).all()


def test_exporting_a_run_again_writes_nothing_and_exporting_another_writes_only_changes(
    table_format: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path, run_id="1")
    parts = [read_scores(run).slice(12 * number, 12) for number in range(6)]  # one part per metric and generator
    replace_scores(run, *parts)
    export(run.store, table_format, tmp_path / "out")
    before = read_table(table_format, tmp_path / "out")
    assert export(run.store, table_format, tmp_path / "out").written == 0
    again = make_run(tmp_path, run_id="2", score=score_atlas_better)
    replace_scores(again, *(read_scores(again).slice(12 * number, 12) for number in range(6)))
    ended = export(again.store, table_format, tmp_path / "out")
    assert (ended.run_id, ended.rows, ended.written) == ("2", 72, 24)
    after = read_table(table_format, tmp_path / "out")
    of_atlas = after.generator == "atlas"
    assert len(after) == 72 and set(after[of_atlas].run_id) == {"2"} and set(after[~of_atlas].run_id) == {"1"}
    assert ((after.score - before.score)[of_atlas] > 0.99).all()
    pd.testing.assert_frame_equal(after[~of_atlas], before[~of_atlas])
    assert export(run.store, table_format, tmp_path / "out", run="1").written == 24
    pd.testing.assert_frame_equal(read_table(table_format, tmp_path / "out"), before)


def test_rows_are_replaced_even_if_they_are_in_different_parts(table_format: str, tmp_path: Path) -> None:
    first, second = make_run(tmp_path, run_id="1"), make_run(tmp_path, run_id="2", score=score_atlas_better)
    replace_scores(first, read_scores(first).slice(0, 12))
    replace_scores(second, read_scores(second).slice(3, 4), read_scores(second).slice(9, 9))
    export(first.store, table_format, tmp_path / "out", run="1")
    assert export(first.store, table_format, tmp_path / "out", run="2").written == 13
    found = read_table(table_format, tmp_path / "out")
    of_atlas = found[found.generator == "atlas"]
    assert of_atlas.run_id.tolist() == ["1"] * 3 + ["2"] * 4 + ["1"] * 2 + ["2"] * 3
    assert ((of_atlas.score > 1) == (of_atlas.run_id == "2")).all() and len(found) == 12 + 6


def test_an_interrupted_export_can_be_continued(
    table_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, score=score_with_failures)
    replace_scores(run, *(read_scores(run).slice(9 * number, 9) for number in range(8)))
    monkeypatch.setattr(exports, "ROWS_PER_COMMIT", 18)
    commits: list[int] = []

    def stop_after_two(written: int) -> None:
        commits.append(written)
        if len(commits) == 2:
            raise KeyboardInterrupt

    config = {"store": run.store.place.url, "format": table_format, "output": str(tmp_path / "out")}
    with pytest.raises(KeyboardInterrupt):
        export_scores(read_config(config, ExportConfig), stop_after_two)
    assert commits == [18, 36] and len(read_table(table_format, tmp_path / "out")) == 36
    assert export(run.store, table_format, tmp_path / "out").written == 36
    export(run.store, table_format, tmp_path / "undisturbed")
    pd.testing.assert_frame_equal(
        read_table(table_format, tmp_path / "out"), read_table(table_format, tmp_path / "undisturbed")
    )


def test_missing_images_and_repeated_ids_get_unique_row_ids(table_format: str, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    nameless = [
        make_row(None, "p1", None),
        make_row(None, "p1", None),
        make_row(None, None, None),
        make_row(None, None, None),
    ]
    replace_scores(
        run,
        make_table(make_row("a", "p0", 0.1), make_row("a", "p0", 0.2), make_row("a#2", "p2", 0.3)),
        make_table(*nameless),
    )
    assert export(run.store, table_format, tmp_path / "out").written == 7
    found = read_table(table_format, tmp_path / "out")
    assert found.row_id.tolist() == ["a", "a#2", "a#3", "missing/", "missing/#2", "missing/p1", "missing/p1#2"]
    assert (
        found.score.dropna().tolist() == [0.1, 0.3, 0.2]
        and export(run.store, table_format, tmp_path / "out").written == 0
    )


def test_a_row_about_a_missing_image_is_removed_when_a_run_has_the_image(table_format: str, tmp_path: Path) -> None:
    first, second = make_run(tmp_path, run_id="1"), make_run(tmp_path, run_id="2")
    replace_scores(
        first,
        make_table(
            make_row("a", "p0", 0.1), make_row(None, "p1", None), {**make_row(None, "p1", None), "generator": "drift"}
        ),
    )
    replace_scores(second, make_table(make_row("a", "p0", 0.1), make_row("b", "p1", 0.2)))
    export(first.store, table_format, tmp_path / "out", run="1")
    ended = export(second.store, table_format, tmp_path / "out", run="2")
    assert (ended.written, ended.removed) == (2, 1)
    found = read_table(table_format, tmp_path / "out")
    kept = [("cobalt", "a", "2"), ("cobalt", "b", "2"), ("drift", "missing/p1", "1")]
    assert list(zip(found.generator, found.row_id, found.run_id, strict=True)) == kept


def test_extra_columns_are_exported_and_are_null_in_older_rows(table_format: str, tmp_path: Path) -> None:
    first, second = make_run(tmp_path, run_id="1"), make_run(tmp_path, run_id="2")
    replace_scores(first, make_table(make_row("a", "p0", 0.1)))
    seeds = pa.array([7, 8], pa.int64())
    replace_scores(
        second,
        make_table(make_row("b", "p0", 0.2), make_row("c", "p0", 0.3))
        .append_column("seed", seeds)
        .append_column("x", seeds),
    )
    export(first.store, table_format, tmp_path / "out", run="1")
    export(second.store, table_format, tmp_path / "out", run="2", columns=["seed"])
    found = read_table(table_format, tmp_path / "out")
    assert found.seed.fillna(-1).tolist() == [-1, 7, 8] and "x" not in found
    assert export(first.store, table_format, tmp_path / "out", run="1").written == 0
    with pytest.raises(ConfigError, match="columns: the run has no extra column 'cfg'; its extra columns are seed, x"):
        export(second.store, table_format, tmp_path / "out", run="2", columns=["cfg"])


def add_seeds(run: MadeRun, seeds: pa.Array) -> None:
    replace_scores(run, read_scores(run).append_column("seed", seeds))


SEED_COLUMNS = {
    "null": pa.nulls(72),
    "empty lists": pa.array([[]] * 72),
    "int32": pa.array(range(72), pa.int32()),
    "int64": pa.array([*range(71), None], pa.int64()),
    "double": pa.array([float(seed) for seed in range(72)]),
    "text": pa.array(map(str, range(72))),
    "labels": pa.array(map(str, range(72))).dictionary_encode(),
}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("null", "int64"),
        ("int64", "null"),
        ("empty lists", "text"),
        ("int32", "int64"),
        ("int64", "int32"),
        ("double", "int64"),
        ("int64", "double"),
        ("text", "int64"),
        ("text", "labels"),
        ("labels", "text"),
    ],
)
def test_an_extra_column_may_have_another_type_or_no_values_in_another_run(
    table_format: str, earlier: str, later: str, tmp_path: Path
) -> None:
    for run_id, name in (("1", earlier), ("2", later)):
        run = make_run(tmp_path, run_id=run_id, score=draw_noisy_score if run_id == "1" else score_atlas_better)
        add_seeds(run, SEED_COLUMNS[name])
        assert export(run.store, table_format, tmp_path / "out", run=run_id).written == 72
    found = read_table(table_format, tmp_path / "out")
    if later in ("null", "empty lists"):
        assert "seed" not in found or found.seed.isna().all()
    else:
        expected = read_scores(run).to_pandas()[["generator", "metric", "image_id", "seed"]]
        joined = found.merge(expected, on=["generator", "metric", "image_id"], suffixes=("", "_wanted"))
        assert [None if pd.isna(one) else float(one) for one in joined.seed] == [
            None if pd.isna(one) else float(one) for one in joined.seed_wanted
        ]


def test_values_that_do_not_fit_a_columns_type_are_an_error_with_a_remedy(table_format: str, tmp_path: Path) -> None:
    for run_id, seeds in (("1", SEED_COLUMNS["int64"]), ("2", pa.array([f"seed {seed}" for seed in range(72)]))):
        run = make_run(tmp_path, run_id=run_id, score=draw_noisy_score if run_id == "1" else score_atlas_better)
        add_seeds(run, seeds)
        if run_id == "1":
            export(run.store, table_format, tmp_path / "out")
    with pytest.raises(
        ExportError, match=r"'seed' has type int64 in the table and string in this run .*columns=\[...\]"
    ):
        export(run.store, table_format, tmp_path / "out", run="2")
    before = read_table(table_format, tmp_path / "out")
    assert set(before.run_id) == {"1"} and before.seed.notna().sum() == 71
    assert export(run.store, table_format, tmp_path / "out", run="2", columns=[]).written == 72
    assert read_table(table_format, tmp_path / "out").seed.isna().all()
    assert export(run.store, table_format, tmp_path / "out", run="2", table="texts").written == 72


def test_names_are_quoted_in_queries(table_format: str, tmp_path: Path) -> None:
    hostile = "o'hara') OR 1=1 --"
    run, other = (make_run(tmp_path, generators=[hostile], run_id=run_id) for run_id in ("1", "2"))
    replace_scores(
        run,
        make_table(
            make_row("a", "p0", 0.1) | {"generator": hostile}, make_row(None, "p1", None) | {"generator": hostile}
        ),
    )
    replace_scores(other, make_table(make_row("a", "p0", 0.2) | {"generator": hostile}))
    export(run.store, table_format, tmp_path / "out", run="1")
    assert export(run.store, table_format, tmp_path / "out", run="2").removed == 1
    assert read_table(table_format, tmp_path / "out")[["generator", "score"]].values.tolist() == [[hostile, 0.2]]


def test_a_table_on_s3_only_needs_the_aws_variables(
    table_format: str, tmp_path: Path, bucket: str, s3_server: S3Server
) -> None:
    run = make_run(tmp_path, score=score_with_failures)
    s3_server.filesystem().put(run.store.place.url, f"{bucket}/store", recursive=True)
    store = open_store_at(f"{bucket}/store")
    catalog = {"catalog": f"sqlite:///{tmp_path}/catalog.db"} if table_format == "iceberg" else {}
    for written in (72, 0):
        assert export(store, table_format, f"{bucket}/lake", **catalog).written == written
    found = READ_FUNCTIONS[table_format](f"{bucket}/lake", **catalog, endpoint=s3_server.endpoint)
    assert len(found) == 72 and found.score.isna().sum() == 2
    stored = s3_server.filesystem().find(f"{bucket}/lake")
    assert stored and all(s3_server.secret.encode() not in s3_server.filesystem().cat_file(path) for path in stored)


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"format": "icberg"}, "format: expected one of iceberg, lance, got 'icberg'; did you mean iceberg?"),
        (
            {"format": "lance", "catalog": "sqlite:///x"},
            "catalog: format=lance has no catalog; leave out catalog=sqlite:///x",
        ),
        ({"format": "lance", "table": "a/b"}, "table: expected a name of letters, digits and _, got 'a/b'"),
        ({"format": "lance", "run": "yesterday"}, "run=yesterday: no such run"),
    ],
    ids=str,
)
def test_invalid_options_are_refused_before_anything_is_written(
    options: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path)
    with pytest.raises(ConfigError) as error:
        export(run.store, options.pop("format"), tmp_path / "out", **options)
    assert complaint in str(error.value) and not (tmp_path / "out").exists()


def test_an_output_with_other_files_is_an_error_that_names_the_folder(table_format: str, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for name in ("catalog.db", "scores.lance"):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / name).write_text("no table")
    with pytest.raises(ExportError, match=str(tmp_path / "out")):
        export(run.store, table_format, tmp_path / "out")
