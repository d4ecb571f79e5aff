"""Ratings as the readers find them, each with its place in the file, and the checked table that they become."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from operators import rows
from operators.errors import SourceError
from pipelines.judging.releases.tables import NO_NUMBER, as_list, read_objects, row_name
from pipelines.storage import Location
from pipelines.tables import as_object

LIKERT = "likert"


class Rating(NamedTuple):
    """One person's rating of one image; the fields are rows.RATINGS', and `where` the file and row."""

    image_id: str
    prompt_id: str | None
    generator: str | None
    rater: str
    template: str
    rating: float | None
    where: str


def ratings_table(found: Iterable[Rating]) -> pa.Table:
    """The ratings as rows.RATINGS; raises SourceError naming the row that rates for the second time.

    That is one with the image, prompt, generator, rater and template of an earlier row.
    """
    seen: dict[tuple[str | None, ...], Rating] = {}
    for rating in found:
        key = rating[:5]
        if key in seen:
            raise SourceError(_twice(rating, seen[key]))
        seen[key] = rating
    columns = list(zip(*(rating[:-1] for rating in seen.values()), strict=True)) or [()] * len(rows.RATINGS)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, rows.RATINGS, strict=True)],
                    schema=rows.RATINGS)  # fmt: skip


def _twice(rating: Rating, first: Rating) -> str:
    return (
        f"{rating.where}: rater {rating.rater!r} rates image {rating.image_id!r} twice as {rating.template!r} (the "
        f"first stands in {first.where}); remove one, or give the raters different names"
    )


def rating_value(value: Any, where: str) -> float | None:
    """A rating as a finite number, None where nothing was said (null, empty or NaN); raises SourceError otherwise."""
    try:
        number = float("nan") if value is None or value == "" else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SourceError(f"{where}: expected a rating as a number, found {value!r}; {NO_NUMBER}") from error
    if math.isinf(number) or isinstance(value, bool):
        raise SourceError(f"{where}: expected a rating as a finite number, found {value!r}; {NO_NUMBER}")
    return None if math.isnan(number) else number


def empty_notes(table: pa.Table) -> list[str]:
    """What to say of the ratings that are not there."""
    empty = table.column("rating").null_count
    return [f"{empty} of {len(table)} ratings are empty and count as unsure"] if empty else []


def ratings_by_generator(location: Location) -> list[Rating]:
    """The ratings of a t2v_metrics file: `{prompt_id: {"prompt": text, "models": {generator: [rating, ...]}}}`.

    An image is named `<prompt_id>/<generator>`, its raters by their place in the list.
    """
    return [
        rating
        for row, (prompt_id, record) in enumerate(read_objects(location).items())
        for rating in _ratings_of_prompt(prompt_id, record, row_name(location.url, row, prompt_id))
    ]


def _ratings_of_prompt(prompt_id: str, record: Mapping[str, Any], where: str) -> list[Rating]:
    if "models" not in record:
        raise SourceError(f"{where}: expected models, found {', '.join(record) or 'nothing'}; is this the rated file?")
    return [
        rating
        for generator, values in as_object(record["models"], where).items()
        for rating in likert_ratings(values, f"{prompt_id}/{generator}", prompt_id, generator, f"{where}, {generator}")
    ]


def likert_ratings(values: Any, image_id: str, prompt_id: str, generator: str, where: str) -> Sequence[Rating]:
    """An image's ratings, by raters 0, 1, ... in the list's order."""
    return [
        Rating(image_id, prompt_id, generator, str(rater), LIKERT, rating_value(value, where), where)
        for rater, value in enumerate(as_list(values, "ratings", where))
    ]
