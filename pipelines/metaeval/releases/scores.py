"""Reads scores (runs, users' long and wide tables, columns of releases) into schema SCORES.

All scores are finite, and every missing score has an error.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.metaeval.matching import ID_COLUMNS
from plumbline.operators.metrics.table import read_lower_is_better
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.sheets import (
    CORRECT_NUMBER_REMEDY,
    Sheet,
    exists,
    is_folder,
    list_files,
    read_sheet,
    read_text,
)
from plumbline.pipelines.store.runs import list_scores_cells, parse_manifest
from plumbline.pipelines.store.store import Store

NOT_SCORED_ERROR = ("not_scored", "the table has no score here; score the image, or leave it out")
NOT_FINITE_ERROR = ("not_finite", "the table's score is NaN or infinite; score the image again")
SCORES_FILE = "scores.parquet"
MANIFEST_FILE = "manifest.json"
NON_METRIC_COLUMNS = ("text", "prompt", "caption", "skills", "suite", "image", "", "Unnamed: 0", "__index_level_0__")
"""Columns of a wide table that are ignored, such as the index that pandas writes."""
NOT_A_SCORE_REMEDY = f"{CORRECT_NUMBER_REMEDY}, or list the columns that are metrics with metrics=[NAME,...]"
GIVE_SCORES_REMEDY = (
    "give a run of plumbline (its folder or scores.parquet), a long table (image_id, or prompt_id and generator; "
    "metric; score), or a wide one (the same ids, and a column of numbers for each metric)"
)


def read_scores(place: Place, metrics: Collection[str] = ()) -> pa.Table:
    """Read the scores of the given metrics (all if empty) row by row, or metric by metric from a wide table.

    A NaN or infinite score becomes null with the error `not_finite`, and an empty cell null with `not_scored`. Raises
    SourceError if the columns are not those of a score table, a score is not a number, or a metric scores an image
    twice, and ConfigError if the table or a metric is missing.
    """
    if not exists(place):
        raise ConfigError(
            f"scores {place.url}: not found; check the path, or select a run in a store with run=latest store=STORE"
        )
    sheet = _read_run_scores(place) if is_folder(place) else read_sheet(place)
    columns = [name for name in sheet.names if name not in (*ID_COLUMNS, *NON_METRIC_COLUMNS)]
    if set(schemas.SCORES.names) <= set(sheet.names):
        scores = _read_run(sheet)
    elif {"metric", "score"} <= set(sheet.names):
        names = pa.array(sheet.ids("metric"), pa.string())
        if metrics:  # scores of other metrics need not be numbers
            column = sheet.table.column("score").combine_chunks()
            selected = pc.if_else(pc.is_in(names, pa.array(list(metrics))), column, pa.scalar(None, column.type))
            table = sheet.table.set_column(sheet.table.column_names.index("score"), "score", selected)
            sheet = replace(sheet, table=table)
        scores = _make_long_scores(_read_ids(sheet), names, sheet.numbers("score"))
    elif columns and "metric" not in columns:
        ids = _read_ids(sheet)
        _require_metrics(metrics, columns)
        wanted = [name for name in columns if not metrics or name in metrics]
        scores = stack_scores(ids, {name: sheet.numbers(name, NOT_A_SCORE_REMEDY) for name in wanted})
    else:
        raise SourceError(
            f"{sheet.url}: expected scores, found the columns {', '.join(sheet.names)}; {GIVE_SCORES_REMEDY}"
        )
    return select_metrics(require_unique_scores(scores, sheet.url, len(sheet)), metrics)


def read_lower_is_better_metrics(place: Place) -> frozenset[str]:
    """Return the metrics for which lower scores are better, as a run's manifest says; none for other tables.

    Raises ConfigError if the manifest is damaged.
    """
    run = place.parent / MANIFEST_FILE if place.path.endswith(SCORES_FILE) else place / MANIFEST_FILE
    return read_lower_is_better(parse_manifest(read_text(run), run.url)) if exists(run) else frozenset()


def _read_run_scores(place: Place) -> Sheet:
    """Read a run's scores, given the run's folder or its subfolder with the score files."""
    run = place if place.path.endswith(SCORES_FILE) else place / SCORES_FILE
    if not is_folder(run):
        return read_sheet(run)
    sheets = [read_sheet(file) for file in list_files(run, ".parquet")]
    if not sheets:
        raise SourceError(f"{run.url}: contains no score files; {GIVE_SCORES_REMEDY}")
    try:
        table = pa.concat_tables([sheet.table for sheet in sheets])
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"{run.url}: the score files have different columns ({error}); {GIVE_SCORES_REMEDY}"
        ) from error
    return Sheet(url=run.url, names=sheets[0].names, table=table)


def _read_run(sheet: Sheet) -> pa.Table:
    """Return a run's scores with their recorded errors; add an error for any other score that is not finite."""
    try:
        table = sheet.table.select(schemas.SCORES.names).cast(schemas.SCORES).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        raise SourceError(
            f"{sheet.url}: expected the columns of a run's scores, found others ({error}); {GIVE_SCORES_REMEDY}"
        ) from error
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    score, reason = _replace_non_finite(columns["score"])
    columns |= {"score": score, "error": pc.if_else(columns["error"].is_valid(), columns["error"], reason)}
    return pa.table(columns, schema=schemas.SCORES)


def _read_ids(sheet: Sheet) -> Mapping[str, Sequence[str | None]]:
    ids = {name: sheet.texts(name) for name in ID_COLUMNS}
    if "image_id" not in sheet.names and not {"prompt_id", "generator"} <= set(sheet.names):
        raise SourceError(
            f"{sheet.url}: expected image_id, or prompt_id and generator, found {', '.join(sheet.names)}; "
            f"{GIVE_SCORES_REMEDY}"
        )
    for row, (image, prompt, generator) in enumerate(zip(*ids.values(), strict=True)):
        if image is None and (prompt is None or generator is None):
            raise SourceError(
                f"{sheet.where(row)}: expected image_id, or both prompt_id and generator, found neither; fill them in"
            )
    return ids


def stack_scores(ids: Mapping[str, Sequence[str | None]], metrics: Mapping[str, pa.Array]) -> pa.Table:
    """Convert columns of scores by metric to a table in schema SCORES, one metric after another."""
    parts = [
        _make_long_scores(ids, pa.array([metric] * len(score), pa.string()), score) for metric, score in metrics.items()
    ]
    return pa.concat_tables(parts) if parts else schemas.SCORES.empty_table()


class Score(NamedTuple):
    """A metric's score for an image."""

    metric: str
    image_id: str
    prompt_id: str | None
    generator: str | None
    score: float | None


def make_scores(scores: Iterable[Score]) -> pa.Table:
    """Return the scores as a table in schema SCORES."""
    listed = list(scores)
    ids = {name: [getattr(score, name) for score in listed] for name in ID_COLUMNS}
    metric = pa.array([score.metric for score in listed], pa.string())
    return _make_long_scores(ids, metric, pa.array([score.score for score in listed], pa.float64()))


def _make_long_scores(ids: Mapping[str, Sequence[str | None]], metric: pa.Array, score: pa.Array) -> pa.Table:
    checked, error = _replace_non_finite(score)
    columns = {name: pa.array(column, pa.string()) for name, column in ids.items()}
    table = pa.table(columns | {"metric": metric, "score": checked, "error": error})
    return rows.add_missing_columns(table, schemas.SCORES).select(schemas.SCORES.names)


def _replace_non_finite(score: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Replace scores that are not finite with null; return the scores, and an error for each score that is null."""
    finite, missing = pc.fill_null(pc.is_finite(score), False), pc.is_null(score)
    kind, message = (
        pc.if_else(missing, absent, wrong) for absent, wrong in zip(NOT_SCORED_ERROR, NOT_FINITE_ERROR, strict=True)
    )
    retryable = pa.array([False] * len(score), pa.bool_())
    error = pa.StructArray.from_arrays([kind, message, retryable], fields=list(schemas.ERROR), mask=finite)
    return pc.if_else(finite, score, pa.scalar(None, pa.float64())), error


def select_metrics(scores: pa.Table, metrics: Collection[str]) -> pa.Table:
    """Select the scores of the named metrics (all if empty); raise ConfigError if a metric is missing."""
    _require_metrics(metrics, scores.column("metric").unique().to_pylist())
    return scores.filter(pc.is_in(scores.column("metric"), pa.array(list(metrics)))) if metrics else scores


def _require_metrics(metrics: Collection[str], known: Sequence[str]) -> None:
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"metrics: no scores by the metric {metric!r}; there are scores by {', '.join(known)}")


def require_unique_scores(scores: pa.Table, url: str, n_rows: int) -> pa.Table:
    """Return the scores; raise SourceError if two rows have the same image and metric, naming the second row.

    `n_rows` is the number of rows in the file; a wide table has that many scores for each metric. Rows without a score
    are ignored, because a run has a row for every failure, and the ids in such a row may be unknown.
    """
    frame = scores.select([*ID_COLUMNS, "metric"]).to_pandas()[scores.column("score").is_valid().to_numpy()]
    again = frame[frame.duplicated()]
    if len(again):
        named = ", ".join(f"{name} {value!r}" for name, value in again.iloc[0].items() if isinstance(value, str))
        row = int(again.index[0]) % n_rows
        raise SourceError(f"{url}, row {row}: an earlier row also has {named}; remove one of the two rows")
    return scores


def read_elements(run: Place, metrics: Collection[str] = ()) -> Iterator[pa.Table]:
    """Yield a run's rows for the given metrics (all if empty), with the scores of individual questions, cell by cell.

    The rows have some of the columns of schema ELEMENT_SCORES. Raises ConfigError if `run` is not a run's folder in a
    store, and StoreError if a cell is missing or damaged.
    """
    folder = run.parent if run.name == SCORES_FILE else run
    runs = folder.parent
    if runs.name != "runs":
        raise ConfigError(
            f"scores: judging words requires a run in its store (STORE/runs/ID), whose cells contain every question's "
            f"score; got {run}"
        )
    store = Store(runs.parent)
    for cell in list_scores_cells(store, folder.name):
        table = store.read_cell(cell.stored, (*ID_COLUMNS, "metric", "elements")).table
        metric = table.column("metric")[0].as_py() if len(table) else ""
        if table.column("elements").null_count < len(table) and (not metrics or metric in metrics):
            yield table
