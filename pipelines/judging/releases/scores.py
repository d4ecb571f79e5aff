"""Scores from anywhere, as our long table: a run of ours, a long or wide table of one's own, a release's columns.

No score is left that is not finite, and each gap has a reason.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.judging.matching import IDS
from plumbline.operators.metrics.table import falling_metrics
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.cells.runs import parse_manifest, scores_cells
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.judging.releases.sheets import (
    NO_NUMBER,
    Sheet,
    exists,
    files_in,
    is_folder,
    read_sheet,
    read_text,
)

NOT_SCORED = ("not_scored", "the table has no score here; score the image, or leave it out")
NOT_FINITE = ("not_finite", "the table's score is NaN or infinite; score the image again")
SCORES_FILE = "scores.parquet"
MANIFEST = "manifest.json"
WORDS = ("text", "prompt", "caption", "skills", "suite", "image", "", "Unnamed: 0", "__index_level_0__")
"""Columns of a wide table that are no metric, and the index that pandas writes: they are not read."""
NO_SCORE = f"{NO_NUMBER}, or name the columns that are metrics by metrics=[NAME,...]"
REMEDY = (
    "give a run of plumbline (its folder or scores.parquet), a long table (image_id, or prompt_id and generator; "
    "metric; score), or a wide one (the same ids, and a column of numbers for each metric)"
)


def read_scores(place: Place, metrics: Collection[str] = ()) -> pa.Table:
    """The table's scores as schemas.SCORES, in its order; a wide one's metric after metric.

    Of these `metrics` alone where they are given: what is not asked for need be no number. A score that is NaN or
    infinite is null with the error `not_finite`, an empty one null with `not_scored`. Raises SourceError where the
    columns are not those of a score table, a score is no number, or one image is scored twice by one metric, and
    ConfigError where the table or a metric is not there.
    """
    if not exists(place):
        raise ConfigError(
            f"scores {place.url}: not found; check the path, or name a run of a store by run=latest store=STORE"
        )
    sheet = _read_parts(place) if is_folder(place) else read_sheet(place)
    names = set(sheet.names)
    if set(schemas.SCORES.names) <= names:
        scores = _of_run(sheet)
    elif {"metric", "score"} <= names:
        scores = _of_long(sheet, metrics)
    else:
        scores = _of_wide(sheet, metrics)
    return of_metrics(check_once(scores, sheet.url, len(sheet)), metrics)


def read_falling(place: Place) -> frozenset[str]:
    """Of a run of ours, the metrics by which a lower score is better, as its manifest says; of other tables none.

    Raises ConfigError where the manifest is damaged.
    """
    run = place.parent / MANIFEST if place.path.endswith(SCORES_FILE) else place / MANIFEST
    return falling_metrics(parse_manifest(read_text(run), run.url)) if exists(run) else frozenset()


def _read_parts(place: Place) -> Sheet:
    """A run's scores, of its folder or the folder of its scores' parts."""
    run = place if place.path.endswith(SCORES_FILE) else place / SCORES_FILE
    if not is_folder(run):
        return read_sheet(run)
    sheets = [read_sheet(file) for file in files_in(run, ".parquet")]
    if not sheets:
        raise SourceError(f"{run.url}: holds no parts; {REMEDY}")
    try:
        table = pa.concat_tables([sheet.table for sheet in sheets])
    except pa.ArrowInvalid as error:
        raise SourceError(f"{run.url}: its parts differ in their columns ({error}); {REMEDY}") from error
    return Sheet(url=run.url, names=sheets[0].names, table=table)


def _of_run(sheet: Sheet) -> pa.Table:
    """A run's table with its own errors, and ours where a score is not finite all the same."""
    try:
        given = sheet.table.select(schemas.SCORES.names).cast(schemas.SCORES).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        raise SourceError(
            f"{sheet.url}: expected the columns of a run's scores, found others ({error}); {REMEDY}"
        ) from error
    columns = {name: given.column(name).combine_chunks() for name in given.column_names}
    score, reason = _checked(columns["score"])
    columns |= {"score": score, "error": pc.if_else(columns["error"].is_valid(), columns["error"], reason)}
    return pa.table(columns, schema=schemas.SCORES)


def _ids(sheet: Sheet) -> Mapping[str, Sequence[str | None]]:
    """The ids of each row, which must name its image."""
    ids = {name: sheet.texts(name) for name in IDS}
    if "image_id" not in sheet.names and not {"prompt_id", "generator"} <= set(sheet.names):
        raise SourceError(
            f"{sheet.url}: expected image_id, or prompt_id and generator, found {', '.join(sheet.names)}; {REMEDY}"
        )
    for row, (image, prompt, generator) in enumerate(zip(*ids.values(), strict=True)):
        if image is None and (prompt is None or generator is None):
            raise SourceError(
                f"{sheet.where(row)}: no image_id, and not both a prompt_id and a generator; fill them in"
            )
    return ids


def _of_long(sheet: Sheet, metrics: Collection[str]) -> pa.Table:
    names = pa.array(sheet.ids("metric"), pa.string())
    if metrics:
        given = sheet.table.column("score").combine_chunks()
        asked = pc.if_else(pc.is_in(names, pa.array(list(metrics))), given, pa.scalar(None, given.type))
        sheet = replace(sheet, table=sheet.table.set_column(sheet.table.column_names.index("score"), "score", asked))
    return _long_scores(_ids(sheet), names, sheet.numbers("score"))


def _of_wide(sheet: Sheet, metrics: Collection[str]) -> pa.Table:
    ids = _ids(sheet)
    columns = [name for name in sheet.names if name not in (*IDS, *WORDS)]
    if not columns or "metric" in columns:
        raise SourceError(f"{sheet.url}: expected scores, found the columns {', '.join(sheet.names)}; {REMEDY}")
    _require_metrics(metrics, columns)
    scores = {name: sheet.numbers(name, NO_SCORE) for name in columns if not metrics or name in metrics}
    return wide_scores(ids, scores)


def wide_scores(ids: Mapping[str, Sequence[str | None]], metrics: Mapping[str, pa.Array]) -> pa.Table:
    """Columns of scores by metric as schemas.SCORES, metric after metric."""
    parts = [
        _long_scores(ids, pa.array([metric] * len(score), pa.string()), score) for metric, score in metrics.items()
    ]
    return pa.concat_tables(parts) if parts else schemas.SCORES.empty_table()


class Score(NamedTuple):
    """What one metric says of one image."""

    metric: str
    image_id: str
    prompt_id: str | None
    generator: str | None
    score: float | None


def listed_scores(scores: Iterable[Score]) -> pa.Table:
    """Scores as schemas.SCORES, in their order."""
    listed = list(scores)
    ids = {name: [getattr(score, name) for score in listed] for name in IDS}
    metric = pa.array([score.metric for score in listed], pa.string())
    return _long_scores(ids, metric, pa.array([score.score for score in listed], pa.float64()))


def _long_scores(ids: Mapping[str, Sequence[str | None]], metric: pa.Array, score: pa.Array) -> pa.Table:
    """One row per score as schemas.SCORES; `score` is float64, null where there is none."""
    checked, error = _checked(score)
    columns = {name: pa.array(column, pa.string()) for name, column in ids.items()}
    table = pa.table(columns | {"metric": metric, "score": checked, "error": error})
    return rows.add_missing_columns(table, schemas.SCORES).select(schemas.SCORES.names)


def _checked(score: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The finite scores, and the errors of the others."""
    finite, missing = pc.fill_null(pc.is_finite(score), False), pc.is_null(score)
    kind, message = (pc.if_else(missing, absent, wrong) for absent, wrong in zip(NOT_SCORED, NOT_FINITE, strict=True))
    retryable = pa.array([False] * len(score))
    error = pa.StructArray.from_arrays([kind, message, retryable], fields=list(schemas.ERROR), mask=finite)
    return pc.if_else(finite, score, pa.scalar(None, pa.float64())), error


def of_metrics(scores: pa.Table, metrics: Collection[str]) -> pa.Table:
    """The scores of the metrics asked for, of all where none are; raises ConfigError for one that is not there."""
    _require_metrics(metrics, scores.column("metric").unique().to_pylist())
    return scores.filter(pc.is_in(scores.column("metric"), pa.array(list(metrics)))) if metrics else scores


def _require_metrics(metrics: Collection[str], known: Sequence[str]) -> None:
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"metrics: no scores of {metric!r}; there are {', '.join(known)}")


def check_once(scores: pa.Table, url: str, n_rows: int) -> pa.Table:
    """The scores; raises SourceError naming the row that scores for the second time the same image by the same metric.

    `n_rows` is how many rows the file has: a wide one gives as many for each metric. Rows without a score are let be:
    a run has one for each thing that failed, of which the ids may be unknown.
    """
    frame = scores.select([*IDS, "metric"]).to_pandas()[scores.column("score").is_valid().to_numpy()]
    again = frame[frame.duplicated()]
    if len(again):
        named = ", ".join(f"{name} {value!r}" for name, value in again.iloc[0].items() if isinstance(value, str))
        row = int(again.index[0]) % n_rows
        raise SourceError(f"{url}, row {row}: scored for the second time ({named}); remove one of the two rows")
    return scores


ELEMENT_COLUMNS = (*IDS, "metric", "elements")


def read_elements(run: Place, metrics: Collection[str] = ()) -> Iterator[pa.Table]:
    """The rows with elements of a run of ours, cell by cell (some columns of schemas.ELEMENT_SCORES).

    Of these `metrics` alone where they are given. Raises ConfigError where `run` is no run in its store, and StoreError
    where a cell is gone or damaged.
    """
    folder = run.parent if run.name == "scores.parquet" else run
    runs = folder.parent
    if runs.name != "runs":
        raise ConfigError(
            f"scores: to judge words, expected a run in its store (STORE/runs/ID), whose cells have the score of every "
            f"question; got {run}"
        )
    store = Store(runs.parent)
    for cell in scores_cells(store, folder.name):
        table = store.read_cell(cell.stored, ELEMENT_COLUMNS).table
        metric = table.column("metric")[0].as_py() if len(table) else ""
        if table.column("elements").null_count < len(table) and (not metrics or metric in metrics):
            yield table
