"""TIFA160: 800 images of 160 prompts by five generators, each rated twice, and what ten metrics score them.

Source: Yushi-Hu/tifa, human_annotations/human_annotations_with_scores.json, and human_annotations.json, which has the
ratings alone: `{image: {"text_id", "image_path", "text", "human_scores": [1-5, 1-5], "human_avg", <metric>: number}}`.
An image is named `<text_id>_<generator>`. What is no description is a metric.
"""

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, listed_ratings, released
from plumbline.pipelines.judging.releases.scores import wide_scores
from plumbline.pipelines.judging.releases.tables import read_objects, row_name, sheet_of

DESCRIPTIONS = ("text_id", "image_path", "text", "human_scores", "human_avg")


def read(location: Place) -> Release:
    """The file's ratings by raters 0 and 1, and its metrics' scores under their names in the file."""
    records = read_objects(location)
    names = list(dict.fromkeys(name for record in records.values() for name in record))
    metrics = [name for name in names if name not in DESCRIPTIONS]
    sheet = sheet_of(location.url, names, records.values(), ["text_id", *metrics])
    ids = {"image_id": list(records), "prompt_id": sheet.ids("text_id"), "generator": list[str]()}
    ratings = []
    for row, (image_id, prompt_id) in enumerate(zip(records, ids["prompt_id"], strict=True)):
        where = row_name(location.url, row, image_id)
        generator = image_id.removeprefix(f"{prompt_id}_")
        if generator in ("", image_id):
            raise SourceError(f"{where}: expected an image named {prompt_id}_<generator>; is this the released file?")
        ids["generator"].append(generator)
        ratings += listed_ratings(records[image_id].get("human_scores"), image_id, prompt_id, generator, where)
    return released(ratings=ratings, scores=wide_scores(ids, {name: sheet.numbers(name) for name in metrics}))
