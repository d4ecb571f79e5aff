"""The schemas of every table, declared once, and the few ways of building rows that fit them."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from plumbline.operators.errors import RowError, SourceError
from plumbline.operators.models.calls import Usage

USAGE = b"usage"
KEPT = b"kept"

ERROR = pa.struct([("kind", pa.string()), ("message", pa.string()), ("retryable", pa.bool_())])

PROMPTS = pa.schema(
    [("prompt_id", pa.string()), ("text", pa.string()), ("skills", pa.list_(pa.string())), ("suite", pa.string())]
)
"""The benchmark's prompts; `skills` and `suite` may be absent from a source."""

BUILT_PROMPTS = pa.schema([*PROMPTS, ("origin", pa.string())])
"""The prompts of a benchmark that was made (jobs.build_benchmark); `origin` is `read`, or `written` by a model."""

LEFT_OUT = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("text", pa.string()),
        ("skills", pa.list_(pa.string())),
        ("origin", pa.string()),
        ("reason", pa.string()),
        ("repeats", pa.string()),
        ("error", ERROR),
    ]
)
"""The prompts that such a benchmark does not have, each with its `reason`: it is a `near_duplicate`, of the prompt
`repeats`; it was `not_drawn`, or could not be as it has `no_skill`; or it `failed`, with its error: it has no tags, or
was not written and has no text."""

TAGS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("skill", pa.string()),
        ("sub_skill", pa.string()),
        ("words", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("error", ERROR),
    ]
)
"""What prompts were tagged with: of each tag the words of the prompt, at its characters `start` to `end` (null where
they were not found). A prompt without a tag has one row without a skill, and one that could not be tagged its error."""

QUESTIONS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("prompt", pa.string()),
        ("question_id", pa.string()),
        ("text", pa.string()),
        ("choices", pa.list_(pa.string())),
        ("answer", pa.string()),
        ("kind", pa.string()),
        ("span", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("parents", pa.list_(pa.string())),
        ("keep", pa.bool_()),
        ("error", ERROR),
    ]
)
"""What is asked of every image of a prompt, in the order written; `prompt` is its text.

`question_id` is a hash of text, choices and answer, so that no answer can be taken for that to another question; of a
prompt's second question that is alike it ends in -2. `answer` is the one of `choices` that a faithful image gets.
`kind` is what is asked about (entity, color, ...), `span` the words of the prompt that the question is about, which
stand at its characters `start` to `end` (null where they were not found). `parents` are the question_ids that must hold
for this one to make sense. `keep` is false where the metric's own filter dropped the question, null where it has none.
A prompt whose questions could not be made has one row, with the error and no question_id.
"""

ENTAILMENTS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("question_id", pa.string()),
        ("hypothesis", pa.string()),
        ("p_entail", pa.float32()),
        ("error", ERROR),
    ]
)
"""One row per question: whether the prompt entails it with its answer, put as the statement `hypothesis`."""

ANSWER = pa.struct(
    [
        ("question_id", pa.string()),
        ("token_logprobs", pa.list_(pa.list_(pa.float32()))),
        ("reply", pa.string()),
        ("chosen", pa.string()),
    ]
)
"""One question's answer: natural-log probabilities, one list per choice, one number per answer token with its EOS.

Where a metric wants the model's own words instead, `reply` has them and `chosen` the choice that they mean.
"""

_IMAGE_COLUMNS = [("image_id", pa.string()), ("prompt_id", pa.string()), ("generator", pa.string())]

_BASIS = ("basis", pa.string())
"""The digest of what a row stands on besides its image: the questions put about it, or its text. A row whose basis or
image is no more what it was has to be computed anew."""
_STANDS_ON = [("image_digest", pa.string()), _BASIS]


def over_images(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    """The schema of a stage's table with a row for each image; the columns are those that the stage measures."""
    return pa.schema([*_IMAGE_COLUMNS, *columns, ("error", ERROR), *_STANDS_ON])


ANSWERS = pa.schema(
    [*_IMAGE_COLUMNS, ("answers", pa.list_(ANSWER)), ("error", ERROR), *_STANDS_ON, ("images", pa.int32())]
)
"""`images` is null for a row of one image; of a row of several it is their number, and `answers` are those about the
first image, then those about the second."""

PRIORS = pa.schema([("prompt_id", pa.string()), ("answers", pa.list_(ANSWER)), ("error", ERROR), _BASIS])
"""As ANSWERS, about a grey image in place of any: one row for each prompt."""

BOX = pa.struct([("label", pa.string()), *((name, pa.float32()) for name in ("score", "x1", "y1", "x2", "y2"))])
"""Something found in an image: its label, how sure that is, and its box in pixels from the upper left corner."""

SEEN = pa.struct([("question_id", pa.string()), ("boxes", pa.list_(pa.list_(BOX))), ("texts", pa.list_(pa.string()))])
"""What was seen of an image for one question: of each of its looks (operators/metrics/modules.py), in their order, the
boxes, null where none were looked for, and the text that was read or answered, null where none was asked for."""

MODULES = pa.schema(
    [*_IMAGE_COLUMNS, ("answers", pa.list_(SEEN)), ("error", ERROR), *_STANDS_ON, ("images", pa.int32())]
)
"""As ANSWERS, of questions that modules answer."""

SIMILARITIES = pa.schema(
    [
        *_IMAGE_COLUMNS,
        ("similarity", pa.float32()),
        ("truncated", pa.bool_()),
        ("error", ERROR),
        *_STANDS_ON,
        ("images", pa.list_(pa.float32())),
    ]
)
"""`similarity` is as the model gives it, a cosine or a reward; `truncated` tells that the text was longer than the
model's context. `images` is null for a row of one image; of a row of several it is the similarity of each, and
`similarity` their mean."""

CAPTIONS = over_images(
    ("captions", pa.list_(pa.struct([("text", pa.string()), ("width", pa.int32()), ("height", pa.int32())]))),
)
"""What a captioner says of an image as a whole, with its size in pixels: one for each image of the row."""

REGION = pa.struct([("label", pa.string()), *((side, pa.int32()) for side in ("x1", "y1", "x2", "y2"))])
"""What is seen at a place: its words, and its box in pixels of the image, from its upper left corner."""

REGIONS = over_images(("regions", pa.list_(pa.list_(REGION))))
"""What a captioner says of an image's parts: one list for each image of the row."""

DESCRIPTIONS = over_images(("descriptions", pa.list_(pa.string())))
"""What a language model makes of captions and regions: one for each image of the row."""

RATINGS_GIVEN = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))
"""The numbers of a judge's verdict, by what they rate."""

VERDICTS = over_images(
    ("verdicts", pa.list_(pa.struct([("ratings", RATINGS_GIVEN), ("rationale", pa.string())]))),
)
"""How well a judge finds an image, or its description, to fit the prompt, and why: one for each image of the row."""

IMAGE_STATISTICS = over_images(
    (
        "statistics",
        pa.list_(pa.struct([(name, pa.float32()) for name in ("edge_density", "entropy", "saturation")])),
    ),
)
"""What an image is like whatever its prompt (operators/statistics/pixels.py): one for each image of the row."""

SCORES = pa.schema(
    [
        *_IMAGE_COLUMNS,
        ("metric", pa.string()),
        ("score", pa.float64()),
        ("n_questions", pa.int32()),
        ("truncated", pa.bool_()),
        ("error", ERROR),
    ]
)
"""One row per image and metric; `score` is null exactly where `error` is not.

`n_questions` counts those that entered the score."""

ELEMENT = pa.struct(
    [
        ("question_id", pa.string()),
        ("text", pa.string()),
        ("span", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("wanted", pa.string()),
        ("given", pa.string()),
        ("score", pa.float64()),
    ]
)
"""One question's part in a score: the answer wanted and given, and its score in [0, 1], null where it was left out."""

ELEMENT_SCORES = pa.schema(
    [*SCORES, ("elements", pa.list_(ELEMENT)), _BASIS, ("ratings", RATINGS_GIVEN), ("rationale", pa.string())]
)
"""Scores as the cells keep them: with the score of every element of the prompt (null for metrics that ask only once),
and with the ratings and the reasons of a judge (null for metrics that have none)."""

ERRORS = pa.schema(
    [
        *_IMAGE_COLUMNS,
        ("metric", pa.string()),
        ("kind", pa.string()),
        ("message", pa.string()),
        ("retryable", pa.bool_()),
        ("file", pa.string()),
        ("row", pa.int64()),
    ]
)
"""The view of a run's failures that a person opens first; `image_id` is null where no image could be read.

`file` and `row` (counted from the file's first, 0) tell where the image stands; null where there is none."""

SUMMARY = pa.schema(
    [
        ("generator", pa.string()),
        ("metric", pa.string()),
        ("skill", pa.string()),
        ("mean", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("sem", pa.float64()),
        ("n", pa.int64()),
        ("n_null", pa.int64()),
        ("coverage", pa.float64()),
    ]
)
"""`n` counts scored rows, `n_null` rows without a score; `low` to `high` is the mean's 95% interval, bootstrapped over
prompts (null where there are fewer than two), `sem` its standard error with all rows taken as independent."""

RATINGS = pa.schema(
    [
        *_IMAGE_COLUMNS,
        ("rater", pa.string()),
        ("template", pa.string()),
        ("rating", pa.float64()),
    ]
)
"""One person's rating of one image; null where the person was unsure. `template` is what was asked (likert, wl,
...)."""

PREFERENCES = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("image_a", pa.string()),
        ("image_b", pa.string()),
        ("generator_a", pa.string()),
        ("generator_b", pa.string()),
        ("rater", pa.string()),
        ("preferred", pa.string()),
    ]
)
"""One person's choice between two images of a prompt: `a`, `b`, or `unsure`; null where nothing was said."""

PAIRINGS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("tag", pa.string()),
        ("caption", pa.int32()),
        ("image", pa.int32()),
        ("prompt_id", pa.string()),
        ("image_id", pa.string()),
    ]
)
"""Winoground's four pairings of a sample's two captions (0, 1) with its two images (0, 1); caption i fits image i."""

GRAPH_NODES = pa.schema(
    [
        ("graph_id", pa.string()),
        ("subset", pa.string()),
        ("image_id", pa.string()),
        ("node", pa.string()),
        ("level", pa.int32()),
    ]
)
"""The images of semantic error graphs (T2IScoreScore): `node` is the set of errors that the image has, `level` their
number; several images may stand on one node. Edges are not kept: the released walks do not use them."""

WORDS = pa.schema(
    [
        *_IMAGE_COLUMNS,
        ("rater", pa.string()),
        ("word", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("aligned", pa.float64()),
    ]
)
"""Whether one person finds a word of the prompt in the image: 1 or 0, null where the person was unsure.

`start` to `end` are its characters in the prompt."""

WORD_MATCHES = pa.schema(
    [
        ("metric", pa.string()),
        *_IMAGE_COLUMNS,
        ("word", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("rated", pa.float64()),
        ("score", pa.float64()),
        ("n_questions", pa.int32()),
    ]
)
"""A rated word beside what a metric makes of it: `rated` is the mean over the raters who were sure, `score` the lowest
of the questions about it, null where none is."""

GRAPHS = pa.schema(
    [
        *((name, pa.string()) for name in ("metric", "convention", "graph_id", "subset")),
        *(
            (name, pa.float64())
            for name in ("spearman", "kendall", "ordering", "kendall_ordering", "separation", "delta")
        ),
    ]
)
"""What a metric makes of each semantic error graph (operators/judging/graphs.py)."""

JUDGEMENTS = pa.schema(
    [
        ("template", pa.string()),
        ("subset", pa.string()),
        ("metric", pa.string()),
        ("statistic", pa.string()),
        ("value", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("n", pa.int64()),
        ("n_unscored", pa.int64()),
        ("n_unrated", pa.int64()),
        ("convention", pa.string()),
    ]
)
"""How well a metric agrees with people: `value` with its 95% interval, null where undefined (`convention` says why)."""

COMPARISONS = pa.schema(
    [
        ("template", pa.string()),
        ("statistic", pa.string()),
        ("metric_a", pa.string()),
        ("metric_b", pa.string()),
        ("difference", pa.float64()),
        ("p_value", pa.float64()),
        ("p_holm", pa.float64()),
        ("n", pa.int64()),
        ("test", pa.string()),
    ]
)
"""Whether two metrics agree with people equally well."""

ORDERS = pa.schema(
    [
        ("template", pa.string()),
        ("judge", pa.string()),
        ("generator_a", pa.string()),
        ("generator_b", pa.string()),
        ("better", pa.string()),
        ("difference", pa.float64()),
        ("p_value", pa.float64()),
        ("p_holm", pa.float64()),
        ("n", pa.int64()),
        ("convention", pa.string()),
    ]
)
"""Which of two generators is better, by a metric or by people; `better` is null where the test is not significant, or
where its ranks and the means do not favour the same one.
"""

CORRELATIONS = pa.schema(
    [
        *((name, pa.string()) for name in ("metric", "other", "kind", "generator")),
        *((name, pa.float64()) for name in ("rho", "low", "high")),
        ("n", pa.int64()),
    ]
)
"""Spearman's rank correlation of a generator's scores with another metric's, or with a property of its prompts."""

QUESTION_STATISTICS = pa.schema(
    [
        ("metric", pa.string()),
        *((name, pa.int64()) for name in ("prompts", "questions")),
        *((name, pa.float64()) for name in ("yes_no", "yes", "first", "repeated", "majority", "chance")),
    ]
)
"""What a metric asks, in shares (operators/diagnosis/questions.py)."""

QUESTION_KINDS = pa.schema(
    [("metric", pa.string()), ("kind", pa.string()), ("questions", pa.int64()), ("share", pa.float64())]
)
"""How often a metric asks about each kind of thing."""

ANSWER_STATISTICS = pa.schema(
    [
        *((name, pa.string()) for name in ("metric", "denied")),
        ("answers", pa.int64()),
        ("right", pa.float64()),
        ("yes_no", pa.int64()),
        *((name, pa.float64()) for name in ("yes", "wanted")),
        ("choices", pa.int64()),
        ("first", pa.float64()),
    ]
)
"""What was answered to a metric's questions, in shares, with and without what it is denied."""

ABLATION_EFFECTS = pa.schema(
    [
        *((name, pa.string()) for name in ("metric", "denied")),
        *((name, pa.float64()) for name in ("whole", "left", "difference", "low", "high", "rho", "order")),
        *((name, pa.int64()) for name in ("n", "n_null")),
    ]
)
"""A metric's scores with and without what it is denied."""

DECISIONS = pa.schema(
    [
        *((name, pa.string()) for name in ("metric", "generator_a", "generator_b", "verdict")),
        ("difference", pa.float64()),
        *((name, pa.int64()) for name in ("n", "n_missing", "decided_after")),
    ]
)
"""What an adaptive sweep decided of two generators: `verdict` is a or b, the better one; alike, where they differ by no
more than the indifference; or undecided. `difference` is of their means a - b over the n prompts seen that both have
scores of; `decided_after` so many prompts, null where undecided."""


def table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """The rows as a table of exactly this schema; absent columns are null."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def basis_of(*parts: str) -> str:
    """The digest that stands in a row's `basis`."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns that it lacks, null: cells may be older than a column."""
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table


def per_image(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A row of ANSWERS, SIMILARITIES, VERDICTS or IMAGE_STATISTICS as one row for each of its images."""
    for column in ("verdicts", "statistics"):
        if column in row:
            return [{**row, **of_image} for of_image in row[column]]
    images = row.get("images")
    if images is None:
        return [row]
    if isinstance(images, list):
        return [{**row, "similarity": similarity} for similarity in images]
    answers = row["answers"]
    size = len(answers) // images
    if size == 0:
        return [row]
    return [{**row, "answers": answers[first : first + size]} for first in range(0, len(answers), size)]


def error_value(error: RowError | None) -> dict[str, Any] | None:
    """The error as the value of an `error` column."""
    return error._asdict() if error is not None else None


def row_error(value: Mapping[str, Any] | None) -> RowError | None:
    """The error stored in a row's `error` column, or None where all went well."""
    return RowError(**value) if value is not None else None


def with_usage(table: pa.Table, usage: Usage) -> pa.Table:
    """The table with what its model calls took in its metadata, which a cell's file keeps."""
    return table.replace_schema_metadata({USAGE: json.dumps(usage._asdict())})


def usage_of(table: pa.Table) -> Usage | None:
    """What a table's model calls took, where it says so."""
    found = (table.schema.metadata or {}).get(USAGE)
    return Usage(**json.loads(found)) if found is not None else None


def with_kept(table: pa.Table, kept: int) -> pa.Table:
    """The table with the number of its rows that earlier cells had, in its metadata beside what stands there."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), KEPT: str(kept)})


def kept_of(table: pa.Table) -> int:
    """How many rows of a table earlier cells had, where it says so."""
    return int((table.schema.metadata or {}).get(KEPT, 0))


def error_kinds(cell: pa.Table) -> dict[str, int]:
    """How many rows of a cell carry an error, by its kind."""
    errors = cell.column("error").to_pylist()
    return dict(Counter(error["kind"] for error in errors if error is not None))


def count_errors(cell: pa.Table, *, retryable_only: bool = False) -> int:
    """How many rows of a cell carry an error."""
    errors = cell.column("error").to_pylist()
    return sum(1 for error in errors if error is not None and (error["retryable"] or not retryable_only))


def is_missing(value: Any) -> bool:
    """Whether a value is null, or NaN, as pandas writes a missing number."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def require_once(found: Sequence[str], read: Iterable[str], where: str) -> None:
    """Raises SourceError naming the file and the first column that is read and stands in it more than once."""
    twice = [name for name in read if found.count(name) > 1]
    if twice:
        raise SourceError(
            f"{where}: {found.count(twice[0])} columns are called {twice[0]!r}; rename or remove all but one"
        )


def require_columns(found: Iterable[str], required: Iterable[str], where: str, *, key: str = "") -> None:
    """Raises SourceError naming the file, the columns it lacks and the config key that says how they are called."""
    have = list(found)
    missing = [name for name in required if name not in have]
    if missing:
        raise SourceError(
            f"{where}: expected column(s) {', '.join(missing)}, found {', '.join(have) or 'none'}; "
            f"rename or add them{f', or correct {key}' if key else ''} (docs/images.md)"
        )
