"""TIFA160: 800 images of 160 prompts by five generators, each rated twice, and what ten metrics score them.

Source: Yushi-Hu/tifa, human_annotations/human_annotations_with_scores.json, and human_annotations.json, which has the
ratings alone: `{image: {"text_id", "image_path", "text", "human_scores": [1-5, 1-5], "human_avg", <metric>: number}}`.
An image is named `<text_id>_<generator>`. What is no description is a metric.
"""

from typing import Any

import pyarrow as pa

from operators.errors import SourceError
from pipelines.judging.releases.release import Release, listed_ratings, released
from pipelines.judging.releases.scores import wide_scores
from pipelines.judging.releases.tables import NO_NUMBER, as_text, read_objects, row_name
from pipelines.storage import Location

DESCRIPTIONS = ("text_id", "image_path", "text", "human_scores", "human_avg")


def read(location: Location) -> Release:
    """The file's ratings by raters 0 and 1, and its metrics' scores under their names in the file."""
    records = read_objects(location)
    metrics = {name: list[float | None]() for record in records.values() for name in record if name not in DESCRIPTIONS}
    ids: dict[str, list[str | None]] = {"image_id": [], "prompt_id": [], "generator": []}
    ratings = []
    for row, (image_id, record) in enumerate(records.items()):
        where = row_name(location.url, row, image_id)
        prompt_id = as_text(record, "text_id", where)
        generator = image_id.removeprefix(f"{prompt_id}_")
        if generator in ("", image_id):
            raise SourceError(f"{where}: expected an image named {prompt_id}_<generator>; is this the released file?")
        ratings += listed_ratings(record.get("human_scores"), image_id, prompt_id, generator, where)
        for name, value in zip(ids, (image_id, prompt_id, generator), strict=True):
            ids[name].append(value)
        for metric, scores in metrics.items():
            scores.append(_number(record.get(metric), metric, where))
    columns = {metric: pa.array(scores, pa.float64()) for metric, scores in metrics.items()}
    return released(ratings=ratings, scores=wide_scores(ids, columns))


def _number(value: Any, metric: str, where: str) -> float | None:
    try:
        if isinstance(value, bool | str):
            raise TypeError(value)
        return None if value is None else float(value)
    except (TypeError, OverflowError) as error:
        raise SourceError(f"{where}: expected a number as {metric}, found {value!r}; {NO_NUMBER}") from error
