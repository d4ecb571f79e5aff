"""Winoground: 400 samples of two captions with the same words, and an image for each.

Source: facebook/winoground, examples.jsonl (`image_0` is a file's name) or the dataset's Parquet (`image_0` is the
image): id, image_0, image_1, caption_0, caption_1, tag, secondary_tag, num_main_preds, collapsed_tag; t2v_metrics'
metadata.csv with the same columns is read too. Read are the ids and tags alone; the captions' columns tell the file
from any other table with an id. Results are broken down by `collapsed_tag` (Object, Relation or Both) and, in the
released code, by the number of main predicates.
"""

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, Sample, paired
from plumbline.pipelines.judging.releases.tables import read_sheet

COLUMNS = ("id", "caption_0", "caption_1")
TAGS = ("collapsed_tag", "tag", "secondary_tag")
PREDICATES = "num_main_preds"


def read(location: Place) -> Release:
    """The four pairings of each sample, tagged by `collapsed_tag`; all tags are the captions' skills."""
    sheet = read_sheet(location, ("id", *TAGS, PREDICATES)).require(COLUMNS, "is this facebook/winoground's file?")
    predicates = [f"{number} Main Pred" if number else None for number in sheet.texts(PREDICATES)]
    tags = zip(*(sheet.texts(name) for name in TAGS), predicates, strict=True)
    named = zip(sheet.ids("id"), tags, strict=True)
    return paired(
        Sample(sample_id, list(dict.fromkeys(filter(None, names))), sheet.where(row))
        for row, (sample_id, names) in enumerate(named)
    )
