"""Tables of a benchmark's released judgements, and functions with which readers build these tables."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, repeat
from statistics import fmean
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import require_object
from plumbline.pipelines.metaeval.releases.sheets import (
    CORRECT_NUMBER_REMEDY,
    Sheet,
    name_row,
    read_objects,
    require_list,
)

LIKERT, SIDE_BY_SIDE = "likert", "side_by_side"
"""Default templates for ratings and for choices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """People's judgements of images, and published scores; tables can be empty."""

    ratings: pa.Table = field(default_factory=schemas.RATINGS.empty_table)
    parts: pa.Table = field(default_factory=schemas.PART_RATINGS.empty_table)
    """Answers about individual words and questions, for templates that rate an image by the mean of these answers."""
    preferences: pa.Table = field(default_factory=schemas.PREFERENCES.empty_table)
    pairings: pa.Table = field(default_factory=schemas.PAIRINGS.empty_table)
    graph_nodes: pa.Table = field(default_factory=schemas.GRAPH_NODES.empty_table)
    words: pa.Table = field(default_factory=schemas.WORDS.empty_table)
    scores: pa.Table = field(default_factory=schemas.SCORES.empty_table)
    skills: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Skills by prompt_id; results are also computed for each skill."""
    notes: Sequence[str] = ()
    """Notes on rows that were dropped, repaired or averaged, to be shown with the results."""
    warnings: Sequence[str] = ()
    """Likely mistakes in the data, which should be checked before using the results."""


class Rating(NamedTuple):
    """A person's rating of an image (schema RATINGS); `where` names the file and row."""

    image_id: str
    prompt_id: str | None
    generator: str | None
    rater: str
    template: str
    rating: float | None
    where: str

    @property
    def duplicate_message(self) -> str:
        """Error message for a rating that occurs twice."""
        return f"rater {self.rater!r} rates image {self.image_id!r} twice as {self.template!r}"


class PartAnswer(NamedTuple):
    """A person's answer about a word or question for an image (schema PART_RATINGS); `where` names the file and row."""

    image_id: str
    prompt_id: str | None
    generator: str | None
    rater: str
    template: str
    part: str
    rating: float | None
    where: str

    @property
    def duplicate_message(self) -> str:
        """Error message for an answer that occurs twice."""
        about = f" about {self.part!r}" if self.part else ""
        return f"rater {self.rater!r} answers {self.template!r}{about} of image {self.image_id!r} twice"


class WordRating(NamedTuple):
    """A person's rating of a word in the prompt of an image (schema WORDS); `where` names the file and row."""

    image_id: str
    prompt_id: str | None
    generator: str | None
    rater: str
    word: str
    start: int
    end: int
    aligned: float | None
    where: str

    @property
    def duplicate_message(self) -> str:
        """Error message for a rating that occurs twice."""
        return f"rater {self.rater!r} rates the word {self.word!r} of image {self.image_id!r} twice"


class PairingSample(NamedTuple):
    """Two captions and two images; caption i matches image i."""

    sample_id: str
    skills: Sequence[str]  # skills of both captions, which are also the sample's tags
    where: str  # file and row


def released(
    *,
    ratings: Iterable[Rating] = (),
    parts: Iterable[PartAnswer] = (),
    preferences: Iterable[Mapping[str, Any]] = (),
    graph_nodes: Iterable[Mapping[str, Any]] = (),
    words: Iterable[WordRating] = (),
    scores: pa.Table | None = None,
    skills: Mapping[str, Sequence[str]] | None = None,
    notes: Sequence[str] = (),
) -> Release:
    """Return a release with the given rows, and notes on empty ratings and scores.

    The means of `parts` also become ratings. Raises SourceError naming a row with the same rater, template, image and
    part as an earlier row.
    """
    answers = list(parts)
    by_image: dict[tuple[str, str | None, str | None, str, str], tuple[str, list[float]]] = {}
    for part in answers:
        _, values = by_image.setdefault(part[:5], (part.where, []))
        values += [] if part.rating is None else [part.rating]
    means = (Rating(*key, fmean(values) if values else None, where) for key, (where, values) in by_image.items())
    rated = _make_table([*ratings, *means], schemas.RATINGS)
    scored = schemas.SCORES.empty_table() if scores is None else scores
    empty, gaps = rated.column("rating").null_count, scored.column("score").null_count
    unsure = [f"{empty} of {len(rated)} ratings are empty and count as unsure"] if empty else []
    unscored = [f"{gaps} of {len(scored)} published scores are empty"] if gaps else []
    return Release(
        ratings=rated,
        parts=_make_table(answers, schemas.PART_RATINGS),
        preferences=rows.table([{"template": SIDE_BY_SIDE, **row} for row in preferences], schemas.PREFERENCES),
        graph_nodes=rows.table([dict(row) for row in graph_nodes], schemas.GRAPH_NODES),
        words=_make_table(words, schemas.WORDS),
        scores=scored,
        skills=skills or {},
        notes=[*notes, *unsure, *unscored],
    )


def _make_table(rated: Iterable[Rating | PartAnswer | WordRating], schema: pa.Schema) -> pa.Table:
    rows_by_key: dict[Any, str] = {}
    columns: list[list[Any]] = [[] for _ in schema]
    for rating in rated:
        *key, _, where = rating
        record_unique_key(rows_by_key, tuple(key), where, rating.duplicate_message)
        for column, value in zip(columns, rating, strict=False):
            column.append(value)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def split_words(text: str, separators: str = r"\s+") -> list[tuple[str, int, int]]:
    """Return the words of a prompt, each with its start and end (character offsets)."""
    edges = [0, *(edge for gap in re.finditer(separators, text) for edge in gap.span()), len(text)]
    return [(text[a:b], a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def record_unique_key(rows_by_key: dict[Any, str], key: object, where: str, message: str) -> None:
    """Record the row of a key; raise SourceError with the message if the key already has a row."""
    if key in rows_by_key:
        raise SourceError(f"{where}: {message} (first in {rows_by_key[key]}); remove one")
    rows_by_key[key] = where


def make_pairing_release(samples: Iterable[PairingSample]) -> Release:
    """Return a release with four pairings per sample; raise SourceError naming a sample that occurs twice.

    Captions are named `<sample>_c0` and `_c1`, and images `<sample>_i0` and `_i1`, after `c0_i0` in Winoground's code.
    """
    rows_by_sample: dict[str, str] = {}
    pairings: list[dict[str, Any]] = []
    skills: dict[str, Sequence[str]] = {}
    for sample_id, names, where in samples:
        record_unique_key(rows_by_sample, sample_id, where, f"sample {sample_id!r} occurs twice")
        for caption, image in product((0, 1), (0, 1)):
            ids = {"prompt_id": f"{sample_id}_c{caption}", "image_id": f"{sample_id}_i{image}"}
            pairings.append({"sample_id": sample_id, "tags": names, "caption": caption, "image": image, **ids})
            if names:
                skills[ids["prompt_id"]] = names
    return Release(pairings=rows.table(pairings, schemas.PAIRINGS), skills=skills)


def make_column_ratings(
    sheet: Sheet,
    images: Iterable[str],
    prompts: Iterable[str | None],
    values: Iterable[Any],
    *,
    generators: Iterable[str | None] = repeat(None),
    raters: Iterable[str] = repeat("0"),
    templates: Iterable[str] = repeat(LIKERT),
) -> list[Rating]:
    """Return a rating for each row of a table, given the table's columns."""
    rows = [sheet.where(row) for row in range(len(sheet))]
    checked = (parse_rating(value, where) for value, where in zip(values, rows, strict=True))
    return list(map(Rating, images, prompts, generators, raters, templates, checked, rows))


def parse_rating(value: Any, where: str) -> float | None:
    """Return a rating as a finite number, or None if it is null, empty or NaN; raise SourceError for other values."""
    try:
        number = float("nan") if value is None or value == "" else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SourceError(
            f"{where}: expected a number as the rating, found {value!r}; {CORRECT_NUMBER_REMEDY}"
        ) from error
    if math.isinf(number) or isinstance(value, bool):
        raise SourceError(f"{where}: expected a finite number as the rating, found {value!r}; {CORRECT_NUMBER_REMEDY}")
    return None if math.isnan(number) else number


def read_ratings_by_generator(place: Place) -> list[Rating]:
    """Read a t2v_metrics file: `{prompt_id: {"prompt": text, "models": {generator: [rating, ...]}}}`.

    Images are named `<prompt_id>/<generator>`, and raters by their index in the list.
    """
    ratings = []
    for row, (prompt_id, record) in enumerate(read_objects(place).items()):
        where = name_row(place.url, row, prompt_id)
        if "models" not in record:
            fields = ", ".join(record) or "nothing"
            raise SourceError(f"{where}: expected models, found {fields}; check that this is the file with the ratings")
        for name, values in require_object(record["models"], where).items():
            ratings += parse_ratings(values, f"{prompt_id}/{name}", prompt_id, name, f"{where}, {name}")
    return ratings


def parse_ratings(values: Any, image_id: str, prompt_id: str, generator: str, where: str) -> list[Rating]:
    """Return an image's ratings; raters are named 0, 1, ... in the order of the list."""
    return [
        Rating(image_id, prompt_id, generator, str(rater), LIKERT, parse_rating(value, where), where)
        for rater, value in enumerate(require_list(values, "ratings", where))
    ]


def group_skills(pairs: Iterable[tuple[str | None, str | None]]) -> dict[str, list[str]]:
    """Group (prompt, skill) pairs into distinct skills by prompt; a skill of None only adds the prompt."""
    skills: dict[str, list[str]] = {}
    for prompt_id, skill in pairs:
        if prompt_id is not None:
            known = skills.setdefault(prompt_id, [])
            if skill and skill not in known:
                known.append(skill)
    return skills
