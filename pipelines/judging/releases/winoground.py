"""Winoground: 400 samples of two captions with the same words, and an image for each.

Source: facebook/winoground, examples.jsonl (`image_0` is a file's name) or the dataset's Parquet (`image_0` is the
image): id, image_0, image_1, caption_0, caption_1, tag, secondary_tag, num_main_preds, collapsed_tag; t2v_metrics'
metadata.csv with the same columns is read too. Read are the ids and tags alone; the captions' columns tell the file
from any other table with an id. Results are broken down by `collapsed_tag` (Object, Relation or Both) and, in the
released code, by the number of main predicates.
"""

from pipelines.judging.releases.pairings import Sample, pairings_table, prompt_ids
from pipelines.judging.releases.release import Release
from pipelines.judging.releases.tables import Sheet, read_sheet
from pipelines.storage import Location

COLUMNS = ("id", "caption_0", "caption_1")
TAGS = ("collapsed_tag", "tag", "secondary_tag")
PREDICATES = "num_main_preds"


def read(location: Location) -> Release:
    """The four pairings of each sample, tagged by `collapsed_tag`; all tags are the captions' skills."""
    sheet = read_sheet(location, ("id", *TAGS, PREDICATES)).require(COLUMNS, "is this facebook/winoground's file?")
    samples = sheet.ids("id")
    tags = [next(filter(None, named), None) for named in zip(*(sheet.texts(name) for name in TAGS[:2]), strict=True)]
    found = [Sample(sample, tag, sheet.where(row)) for row, (sample, tag) in enumerate(zip(samples, tags, strict=True))]
    skills = {
        prompt: names for sample, names in zip(samples, _skills(sheet), strict=True) for prompt in prompt_ids(sample)
    }
    return Release(pairings=pairings_table(found), skills={one: names for one, names in skills.items() if names})


def _skills(sheet: Sheet) -> list[list[str]]:
    predicates = [f"{number} Main Pred" if number else None for number in sheet.texts(PREDICATES)]
    columns = [*(sheet.texts(name) for name in TAGS), predicates]
    return [list(dict.fromkeys(filter(None, names))) for names in zip(*columns, strict=True)]
