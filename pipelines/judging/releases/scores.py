"""Scores of images as files give them, as our long table: no score that is not finite, and a reason for each gap."""

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from operators import rows
from operators.errors import ConfigError, SourceError

IDS = ("image_id", "prompt_id", "generator")
NOT_SCORED = ("not_scored", "the table has no score here; score the image, or leave it out")
NOT_FINITE = ("not_finite", "the table's score is NaN or infinite; score the image again")


def long_scores(ids: Mapping[str, pa.Array], metric: pa.Array, score: pa.Array) -> pa.Table:
    """One row per score as rows.SCORES; `score` is float64, null where there is none. Ids that are absent are null."""
    finite = pc.fill_null(pc.is_finite(score), False)
    absent = pa.nulls(len(score), pa.string())
    columns = {name: ids.get(name, absent) for name in IDS} | {
        "metric": metric,
        "score": pc.if_else(finite, score, pa.scalar(None, pa.float64())),
        "error": _errors(pc.is_null(score), finite),
    }
    return pa.table(
        [columns.get(field.name, pa.nulls(len(score), field.type)).cast(field.type) for field in rows.SCORES],
        schema=rows.SCORES,
    )


def _errors(missing: pa.Array, finite: pa.Array) -> pa.Array:
    kind, message = (pc.if_else(missing, absent, wrong) for absent, wrong in zip(NOT_SCORED, NOT_FINITE, strict=True))
    retryable = pa.array([False] * len(missing))
    return pa.StructArray.from_arrays([kind, message, retryable], fields=list(rows.ERROR), mask=finite)


def wide_scores(ids: Mapping[str, Sequence[str | None]], metrics: Mapping[str, pa.Array]) -> pa.Table:
    """Columns of scores by metric as rows.SCORES, metric after metric."""
    columns = {name: pa.array(column, pa.string()) for name, column in ids.items()}
    parts = [
        long_scores(columns, pa.array([metric] * len(score), pa.string()), score) for metric, score in metrics.items()
    ]
    return pa.concat_tables(parts) if parts else rows.SCORES.empty_table()


def of_metrics(scores: pa.Table, metrics: Collection[str]) -> pa.Table:
    """The scores of the metrics asked for, of all where none are; raises ConfigError for one that is not there."""
    require_metrics(metrics, scores.column("metric").unique().to_pylist())
    return scores.filter(pc.is_in(scores.column("metric"), pa.array(list(metrics)))) if metrics else scores


def require_metrics(metrics: Collection[str], known: Sequence[str]) -> None:
    """Raises ConfigError for a metric that is not among those known."""
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"metrics: no scores of {metric!r}; there are {', '.join(known)}")


def gaps(scores: pa.Table) -> list[str]:
    """What to say of the scores that are not there."""
    empty = scores.column("score").null_count
    return [f"{empty} of {len(scores)} published scores are empty"] if empty else []


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
