"""TIFA160: 800 images of 160 prompts by five generators, each rated twice, and what ten metrics score them.

Source: Yushi-Hu/tifa, human_annotations/human_annotations_with_scores.json, and human_annotations.json, which has the
ratings alone: `{image: {"text_id", "image_path", "text", "human_scores": [1-5, 1-5], "human_avg", <metric>: number}}`.
An image is named `<text_id>_<generator>`. What is no description is a metric.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from operators.errors import SourceError
from pipelines.judging.releases.ratings import Rating, empty_notes, likert_ratings, ratings_table
from pipelines.judging.releases.release import Release
from pipelines.judging.releases.scores import gaps, wide_scores
from pipelines.judging.releases.tables import NO_NUMBER, as_text, read_objects, row_name
from pipelines.storage import Location

DESCRIPTIONS = ("text_id", "image_path", "text", "human_scores", "human_avg")


def read(location: Location) -> Release:
    """The file's ratings by raters 0 and 1, and its metrics' scores under their names in the file."""
    records = read_objects(location)
    found = [
        rating
        for row, (image_id, record) in enumerate(records.items())
        for rating in _ratings(image_id, record, row_name(location.url, row, image_id))
    ]
    ratings, scores = ratings_table(found), _scores(records, location.url)
    return Release(ratings=ratings, scores=scores, notes=[*empty_notes(ratings), *gaps(scores)])


def _ratings(image_id: str, record: Mapping[str, Any], where: str) -> list[Rating]:
    prompt_id = as_text(record, "text_id", where)
    generator = _generator(image_id, prompt_id, where)
    return list(likert_ratings(record.get("human_scores"), image_id, prompt_id, generator, where))


def _generator(image_id: str, prompt_id: str, where: str) -> str:
    name = image_id.removeprefix(f"{prompt_id}_")
    if not name or name == image_id:
        raise SourceError(f"{where}: expected an image named {prompt_id}_<generator>; is this the released file?")
    return name


def _scores(records: Mapping[str, Mapping[str, Any]], url: str) -> pa.Table:
    metrics = dict.fromkeys(name for record in records.values() for name in record if name not in DESCRIPTIONS)
    prompts = [str(record["text_id"]) for record in records.values()]
    ids = {
        "image_id": list(records),
        "prompt_id": prompts,
        "generator": [image.removeprefix(f"{prompt}_") for image, prompt in zip(records, prompts, strict=True)],
    }
    return wide_scores(ids, {name: _numbers(records, name, url) for name in metrics})


def _numbers(records: Mapping[str, Mapping[str, Any]], metric: str, url: str) -> pa.Array:
    found = [
        _number(record.get(metric), metric, row_name(url, row, image_id))
        for row, (image_id, record) in enumerate(records.items())
    ]
    return pa.array(found, pa.float64())


def _number(value: Any, metric: str, where: str) -> float | None:
    try:
        if isinstance(value, bool | str):
            raise TypeError(value)
        return None if value is None else float(value)
    except (TypeError, OverflowError) as error:
        raise SourceError(f"{where}: expected a number as {metric}, found {value!r}; {NO_NUMBER}") from error
