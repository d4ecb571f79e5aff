"""Converts released answers (a row per image and question) to scores (a row per image and model)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError, RowError, SourceError
from plumbline.operators.metrics.questions.dsg import apply_zeroing
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.answers import FORMATS, Answer, AnswerColumns, read_table

Accumulation = Literal["none", "direct", "recursive"]
"""Condition under which a right answer counts: always (`none`, as in TIFA), if the answers to the question's parents
are right too (`direct`, as in the DSG release), or if the answers to all of its ancestors are right too (`recursive`,
as in T2IScoreScore).
"""
MissingAnswers = Literal["wrong", "left_out"]
"""Treatment of a question without an answer: count it as wrong, or ignore it."""
NO_ANSWER_ERROR = RowError(
    "not_scored", "none of the image's questions has an answer; answer at least one, or set missing=wrong"
)


def accumulate(
    right: Mapping[str, bool | None],
    parents: Mapping[str, Sequence[str]],
    accumulation: Accumulation,
    missing: MissingAnswers,
) -> float | None:
    """Return the fraction of an image's questions that count as right; None if all questions are ignored.

    `right` maps questions to True or False, or to None if the answer is missing. Parents that are ignored, or that are
    not questions about the image, count as right.
    """
    answered = {name: bool(given) for name, given in right.items() if given is not None or missing == "wrong"}
    if not answered:
        return None
    counting = answered if accumulation == "none" else apply_zeroing(answered, parents, accumulation)
    return sum(counting.values()) / len(answered)


@dataclass(frozen=True, kw_only=True, slots=True)
class AccumulateConfig:
    answers: str
    """A table with a row for every image and question (CSV, JSON, Parquet); if `format` is set, the file or folder of
    the release.
    """
    output: str
    """Parquet file for the scores."""
    format: str | None = None
    """Release that the answers come from, such as dsg, tifa or t2iscorescore (docs/metaeval.md); null for a table."""
    given: tuple[str, ...] = ()
    """Models whose answers are converted; each becomes a metric with the model's name. For a table, list the columns
    with answers; for a release, an empty list means all models.
    """
    accumulation: Accumulation = "none"
    """Answers that must be right for a question to count: only the answer to the question (`none`), the answers to its
    parents as well (`direct`), or the answers to all of its ancestors as well (`recursive`).
    """
    missing: MissingAnswers = "left_out"
    """Treatment of a question without an answer: `wrong` or `left_out`."""
    columns: AnswerColumns = field(default_factory=AnswerColumns)
    """Column names of the table of answers."""
    separator: str = ","
    """Separator between parents in a cell of a table."""
    no_parent: str = ""
    """Cell text that means "no parent", such as -1; empty cells mean the same."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(f"format: expected one of {', '.join(FORMATS)}, or null, got {self.format!r}")
        if self.format is None and not self.given:
            raise ConfigError("given: expected the columns of answers, got none; name them, as in given=[mplug]")
        if not self.separator:
            raise ConfigError("separator: expected the text between parents, got an empty string")
        for name, usual in (("columns", AnswerColumns()), ("separator", ","), ("no_parent", "")):
            if self.format is not None and getattr(self, name) != usual:
                raise ConfigError(
                    f"{name}: cannot be set for format={self.format}, whose file format is known; leave it out"
                )


class AccumulatedScores(NamedTuple):
    scores: pa.Table  # scores of every image by every model (schema SCORES)
    notes: tuple[str, ...]  # notes on rows whose values differ from those in the files


def accumulate_answers(config: AccumulateConfig) -> AccumulatedScores:
    """Read answers and convert them to scores; raise SourceError with the file and row of an invalid answer."""
    file = config.storage.locate(config.answers)
    if config.format is not None:
        answered = FORMATS[config.format](file, config.given)
    else:
        columns, separator, no_parent = config.columns, config.separator, config.no_parent
        answered = read_table(file, config.given, columns, separator=separator, no_parent=no_parent)
    if config.accumulation != "none" and not any(answer.parents for answer in answered.answers):
        raise SourceError(
            f"{config.answers}: accumulation={config.accumulation} needs the questions' parents, but there are none; "
            "set columns.parents, or accumulation=none"
        )
    images: dict[tuple[str, str], dict[str, Answer]] = {}
    for answer in answered.answers:
        asked = images.setdefault((answer.metric, answer.image_id), {})
        if answer.question_id in asked:
            raise SourceError(
                f"{answer.where}: question {answer.question_id!r} about image {answer.image_id!r} is answered twice; "
                "remove one answer, or set columns.image_id to a column of image ids"
            )
        asked[answer.question_id] = answer
    records = []
    for asked in images.values():
        right = {name: answer.right for name, answer in asked.items()}
        parents = {name: answer.parents for name, answer in asked.items()}
        score = accumulate(right, parents, config.accumulation, config.missing)
        first = next(iter(asked.values()))
        ids = {name: getattr(first, name) for name in ("image_id", "prompt_id", "generator", "metric")}
        n_questions = sum(each is not None or config.missing == "wrong" for each in right.values())
        error = rows.error_to_dict(NO_ANSWER_ERROR if score is None else None)
        records.append({**ids, "score": score, "n_questions": n_questions, "error": error})
    return AccumulatedScores(rows.table(records, schemas.SCORES), tuple(answered.notes))


def write_accumulated_scores(config: AccumulateConfig) -> AccumulatedScores:
    """Convert answers to scores and write them to a file that jobs.metaeval can read."""
    result = accumulate_answers(config)
    config.storage.locate(config.output, writable=True).write_table(result.scores)
    return result
