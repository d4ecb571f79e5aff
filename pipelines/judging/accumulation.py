"""Released answers as scores: a row for every image and question in, one for every image and model out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError, RowError, SourceError
from plumbline.operators.metrics.questions.dsg import holding
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.judging.answers import FORMATS, Answer, AnswerColumns, Answered, read_table

Accumulation = Literal["none", "direct", "recursive"]
"""Whether a right answer counts by itself (TIFA), where those of its parents are right (the DSG release), or where
those of all its ancestors are (T2IScoreScore)."""
Missing = Literal["wrong", "left_out"]
"""What a question without an answer counts as: a wrong answer, or no question."""


def accumulate(
    right: Mapping[str, bool | None],
    parents: Mapping[str, Sequence[str]],
    accumulation: Accumulation,
    missing: Missing,
) -> float | None:
    """The share of an image's questions that count, by whether each was answered right; None where none is left.

    A parent that is no question of the image, or is left out, counts as holding.
    """
    answered = {name: bool(given) for name, given in right.items() if given is not None or missing == "wrong"}
    if not answered:
        return None
    counting = answered if accumulation == "none" else holding(answered, parents, accumulation)
    return sum(counting.values()) / len(answered)


NO_ANSWER = RowError("not_scored", "none of its questions has an answer; answer one, or set missing=wrong")


@dataclass(frozen=True, kw_only=True, slots=True)
class AccumulateConfig:
    """Which answers, and how they become scores."""

    answers: str
    """A table with a row for every image and question (CSV, JSON, Parquet); with `format`, the release's file or
    folder."""
    output: str
    """The Parquet file of scores to write."""
    format: str | None = None
    """Whose released files the answers are, such as dsg, tifa or t2iscorescore: one of pipelines/judging/answers; null
    for a table."""
    given: tuple[str, ...] = ()
    """The models, each a metric of its name: of a table the columns of answers, of released files those wanted (all
    where empty)."""
    accumulation: Accumulation = "none"
    """What must be right for a question to count: `none` but itself, its parents too (`direct`), or all of its
    ancestors (`recursive`)."""
    missing: Missing = "left_out"
    """What a question without an answer counts as."""
    columns: AnswerColumns = field(default_factory=AnswerColumns)
    """Of a table."""
    separator: str = ","
    """Between parents, in a table."""
    no_parent: str = ""
    """What stands for no parent in a table, besides an empty cell, such as -1."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(f"format: expected one of {', '.join(FORMATS)}, or null, got {self.format!r}")
        if self.format is None and not self.given:
            raise ConfigError("given: expected the columns of answers, got none; for example given=[mplug]")
        if not self.separator:
            raise ConfigError("separator: expected what stands between parents, got an empty string")
        for name, usual in (("columns", AnswerColumns()), ("separator", ","), ("no_parent", "")):
            if self.format is not None and getattr(self, name) != usual:
                raise ConfigError(f"{name}: how the files of format={self.format} are written is known; leave it out")


class Accumulated(NamedTuple):
    """What answers come to."""

    scores: pa.Table
    """Schema SCORES."""
    notes: tuple[str, ...]
    """What was read otherwise than it stands."""


def accumulated(config: AccumulateConfig) -> Accumulated:
    """Scores of every image by every model; raises SourceError naming file and row."""
    answered = _answered(config)
    if config.accumulation != "none" and not any(answer.parents for answer in answered.answers):
        raise SourceError(
            f"{config.answers}: accumulation={config.accumulation} needs the questions' parents, and none has any; "
            "set columns.parents, or accumulation=none"
        )
    images: dict[tuple[str, str], dict[str, Answer]] = {}
    for answer in answered.answers:
        asked = images.setdefault((answer.metric, answer.image_id), {})
        if answer.question_id in asked:
            raise SourceError(
                f"{answer.where}: image {answer.image_id!r} is asked question {answer.question_id!r} twice; remove "
                "one, or set columns.image_id to a column that tells images apart"
            )
        asked[answer.question_id] = answer
    return Accumulated(
        rows.table([_score(asked, config) for asked in images.values()], schemas.SCORES), tuple(answered.notes)
    )


def _answered(config: AccumulateConfig) -> Answered:
    place = config.storage.locate(config.answers)
    if config.format is not None:
        return FORMATS[config.format](place, config.given)
    return read_table(place, config.given, config.columns, separator=config.separator, no_parent=config.no_parent)


def _score(asked: Mapping[str, Answer], config: AccumulateConfig) -> dict[str, Any]:
    """The row of an image by a model."""
    score = accumulate(
        {name: answer.right for name, answer in asked.items()},
        {name: answer.parents for name, answer in asked.items()},
        config.accumulation,
        config.missing,
    )
    first = next(iter(asked.values()))
    counted = sum(answer.right is not None or config.missing == "wrong" for answer in asked.values())
    ids = {"image_id": first.image_id, "prompt_id": first.prompt_id, "generator": first.generator}
    error = rows.error_value(NO_ANSWER if score is None else None)
    return {**ids, "metric": first.metric, "score": score, "n_questions": counted, "error": error}


def write_accumulated(config: AccumulateConfig) -> Accumulated:
    """Writes the scores, which jobs.metaeval takes, and gives them."""
    found = accumulated(config)
    place = config.storage.locate(config.output, writable=True)
    place.write_table(found.scores)
    return found
