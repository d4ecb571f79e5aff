"""Scores from anywhere, as our long table: a run of ours, or a long or wide table of one's own."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from operators import rows
from operators.errors import ConfigError, SourceError
from pipelines.judging.releases.scores import IDS, check_once, long_scores, of_metrics, require_metrics, wide_scores
from pipelines.judging.releases.tables import NO_NUMBER, Sheet, below, exists, is_folder, read_sheet
from pipelines.storage import Location

RUN = "scores.parquet"
WORDS = ("text", "prompt", "caption", "skills", "suite", "image", "", "Unnamed: 0", "__index_level_0__")
"""Columns of a wide table that are no metric, and the index that pandas writes: they are not read."""
NO_SCORE = f"{NO_NUMBER}, or name the columns that are metrics by metrics=[NAME,...]"
REMEDY = (
    "give a run of plumbline (its folder or scores.parquet), a long table (image_id, or prompt_id and generator; "
    "metric; score), or a wide one (the same ids, and a column of numbers for each metric)"
)


def read_scores(location: Location, metrics: Collection[str] = ()) -> pa.Table:
    """The table's scores as rows.SCORES, in its order; a wide one's metric after metric.

    Of these `metrics` alone where they are given: what is not asked for need be no number. A score that is NaN or
    infinite is null with the error `not_finite`, an empty one null with `not_scored`. Raises SourceError where the
    columns are not those of a score table, a score is no number, or one image is scored twice by one metric, and
    ConfigError where the table or a metric is not there.
    """
    if not exists(location):
        raise ConfigError(f"scores {location.url}: not found; check the path")
    sheet = read_sheet(below(location, RUN) if is_folder(location) else location)
    names = set(sheet.names)
    if set(rows.SCORES.names) <= names:
        scores = _of_run(sheet)
    elif {"metric", "score"} <= names:
        scores = _of_long(sheet, metrics)
    else:
        scores = _of_wide(sheet, metrics)
    return of_metrics(check_once(scores, sheet.url, len(sheet)), metrics)


def _of_run(sheet: Sheet) -> pa.Table:
    """A run's table with its own errors, and ours where a score is not finite all the same."""
    try:
        given = sheet.table.select(rows.SCORES.names).cast(rows.SCORES).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        raise SourceError(
            f"{sheet.url}: expected the columns of a run's scores, found others ({error}); {REMEDY}"
        ) from error
    ids = {name: given.column(name).combine_chunks() for name in IDS}
    checked = long_scores(ids, given.column("metric").combine_chunks(), given.column("score").combine_chunks())
    own = given.column("error").combine_chunks()
    reasons = pc.if_else(own.is_valid(), own, checked.column("error").combine_chunks())
    replaced = {"score": checked.column("score"), "error": reasons}
    return pa.table([replaced.get(name, given.column(name)) for name in rows.SCORES.names], schema=rows.SCORES)


def _ids(sheet: Sheet) -> Mapping[str, pa.Array]:
    """The ids of each row, which must name its image."""
    ids = {name: sheet.texts(name) for name in IDS if name in sheet.names}
    if "image_id" not in ids and not {"prompt_id", "generator"} <= ids.keys():
        raise SourceError(
            f"{sheet.url}: expected image_id, or prompt_id and generator, found {', '.join(sheet.names)}; {REMEDY}"
        )
    for row, (image, prompt, generator) in enumerate(zip(*(sheet.texts(name) for name in IDS), strict=True)):
        if image is None and (prompt is None or generator is None):
            raise SourceError(
                f"{sheet.where(row)}: no image_id, and not both a prompt_id and a generator; fill them in"
            )
    return {name: pa.array(column, pa.string()) for name, column in ids.items()}


def _of_long(sheet: Sheet, metrics: Collection[str]) -> pa.Table:
    names = pa.array(sheet.ids("metric"), pa.string())
    if metrics:
        given = sheet.table.column("score").combine_chunks()
        asked = pc.if_else(pc.is_in(names, pa.array(list(metrics))), given, pa.scalar(None, given.type))
        sheet = replace(sheet, table=sheet.table.set_column(sheet.table.column_names.index("score"), "score", asked))
    return long_scores(_ids(sheet), names, sheet.numbers("score"))


def _of_wide(sheet: Sheet, metrics: Collection[str]) -> pa.Table:
    ids = _ids(sheet)
    columns = [name for name in sheet.names if name not in (*IDS, *WORDS)]
    if not columns or "metric" in columns:
        raise SourceError(f"{sheet.url}: expected scores, found the columns {', '.join(sheet.names)}; {REMEDY}")
    require_metrics(metrics, columns)
    scores = {name: sheet.numbers(name, NO_SCORE) for name in columns if not metrics or name in metrics}
    return wide_scores({name: column.to_pylist() for name, column in ids.items()}, scores)
