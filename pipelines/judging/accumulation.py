"""Released answers as scores: a table with a row for every image and question, to one with a row for every image."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from operators import rows
from operators.errors import ConfigError, RowError, SourceError
from operators.judging.accumulation import Accumulation, Missing, accumulate
from operators.metrics import reading
from pipelines.judging.releases.tables import Sheet, read_sheet
from pipelines.storage import StorageConfig, locate, write_table

TRUTH = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
NO_ANSWER = RowError("not_scored", "none of its questions has an answer; answer one, or set missing=wrong")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerColumns:
    """What the columns of the answers are called."""

    image_id: str = "image_id"
    prompt_id: str = "prompt_id"
    generator: str = "generator"
    """May be absent."""
    question_id: str = "question_id"
    parents: str = "parents"
    """The questions that must hold for this one; may be absent."""
    answer: str | None = None
    """The right answers, that those given are compared with; null where these say themselves whether they are right
    (1 or 0, true or false)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccumulateConfig:
    """Which answers, and how they become scores."""

    answers: str
    """A table with a row for every image and question."""
    given: tuple[str, ...]
    """The columns of answers, one for each model that gave some; each becomes a metric of its name."""
    output: str
    """The Parquet file of scores to write."""
    accumulation: Accumulation = "none"
    missing: Missing = "left_out"
    columns: AnswerColumns = field(default_factory=AnswerColumns)
    separator: str = ","
    """Between parents."""
    no_parent: str = ""
    """What stands for no parent, besides an empty cell."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if not self.given:
            raise ConfigError("given: expected the columns of answers, got none; for example given=[mplug]")
        if not self.separator:
            raise ConfigError("separator: expected what stands between parents, got an empty string")


class _Image(NamedTuple):
    """An image's rows."""

    prompt_id: str | None
    generator: str | None
    rows: list[int]


def accumulated(config: AccumulateConfig) -> pa.Table:
    """Scores (schema SCORES) of every image by every column of answers; raises SourceError naming file and row."""
    wanted = config.columns
    sheet = read_sheet(locate(config.answers, config.storage))
    needed = [wanted.image_id, wanted.question_id, *config.given, *([wanted.answer] if wanted.answer else [])]
    sheet.require(needed, "set columns and given to what the file calls them")
    questions, parents = sheet.ids(wanted.question_id), _parents(sheet, config)
    images = _images(sheet, config, questions)
    records = []
    for metric in config.given:
        right = list(_right(sheet, metric, wanted.answer))
        for image_id, image in images.items():
            score = accumulate(
                {questions[row]: right[row] for row in image.rows},
                {questions[row]: parents[row] for row in image.rows},
                config.accumulation,
                config.missing,
            )
            asked = [row for row in image.rows if right[row] is not None or config.missing == "wrong"]
            ids = {"image_id": image_id, "prompt_id": image.prompt_id, "generator": image.generator}
            error = rows.error_value(NO_ANSWER if score is None else None)
            records.append({**ids, "metric": metric, "score": score, "n_questions": len(asked), "error": error})
    return rows.table(records, rows.SCORES)


def _images(sheet: Sheet, config: AccumulateConfig, questions: Sequence[str]) -> dict[str, _Image]:
    """The rows of every image; raises SourceError for one that is asked the same question twice."""
    wanted = config.columns
    prompts, generators = sheet.texts(wanted.prompt_id), sheet.texts(wanted.generator)
    images: dict[str, _Image] = {}
    asked: dict[str, set[str]] = defaultdict(set)
    for row, image_id in enumerate(sheet.ids(wanted.image_id)):
        if questions[row] in asked[image_id]:
            raise SourceError(
                f"{sheet.where(row)}: image {image_id!r} is asked question {questions[row]!r} twice; remove one, or "
                "set columns.image_id to a column that tells images apart"
            )
        asked[image_id].add(questions[row])
        images.setdefault(image_id, _Image(prompts[row], generators[row], [])).rows.append(row)
    return images


def _parents(sheet: Sheet, config: AccumulateConfig) -> list[list[str]]:
    said = sheet.texts(config.columns.parents)
    if config.accumulation != "none":
        sheet.require([config.columns.parents], f"accumulation={config.accumulation} needs it; set columns.parents")
    return [
        [] if text is None or text == config.no_parent else [name.strip() for name in text.split(config.separator)]
        for text in said
    ]


def _right(sheet: Sheet, metric: str, answer: str | None) -> Iterator[bool | None]:
    """Of every row whether the answer is right; None where there is none."""
    wanted = sheet.texts(answer) if answer else [None] * len(sheet)
    for row, (given, right) in enumerate(zip(sheet.texts(metric), wanted, strict=True)):
        if given is None:
            yield None
        elif answer is not None:
            yield right is not None and reading.key(given) == reading.key(right)
        elif given.strip().casefold() in TRUTH:
            yield TRUTH[given.strip().casefold()]
        else:
            raise SourceError(
                f"{sheet.where(row)}: expected 1 or 0 as {metric}, found {given!r}; name the column of right answers "
                "by columns.answer"
            )


def write_accumulated(config: AccumulateConfig) -> pa.Table:
    """Writes the scores, which jobs.metaeval takes, and gives them."""
    scores = accumulated(config)
    location = locate(config.output, config.storage)
    write_table(location, location.path, scores)
    return scores
