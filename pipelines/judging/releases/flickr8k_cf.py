"""Flickr8K-CF: how many people of CrowdFlower said that a caption describes a photo.

Sources, of which either is read:
- the Flickr8k release, CrowdFlowerAnnotations.txt, tab separated and without a header: the image's file, the caption's
  id (`<image file>#<number>`), the share of people who said yes, the number of yeses, the number of noes (3 or more
  in all);
- jmhessel/clipscore, crowdflower_flickr8k.json, which its download.py makes: `{image file: {"image_path",
  "ground_truth", "human_judgement": [{"image_path", "caption", "rating"}]}}`, where `rating` is that share. Here a
  caption has no id, so it is its own, and one whose text stands twice with an image counts as rated by a further
  person.
The photos have no generator.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import AGAIN, as_object
from plumbline.pipelines.judging.releases.release import Rating, Release, rating_value, released
from plumbline.pipelines.judging.releases.sheets import as_list, as_text, read_objects, read_text, row_name

TEMPLATE = "share_yes"
FIELDS = ("the image", "the caption's id", "the share of yeses", "the yeses", "the noes")
ROUNDING = 1e-3


def read(place: Place) -> Release:
    """One rating for each judged pair: the share of yeses, from 0 to 1."""
    ratings = _of_json(place) if place.path.lower().endswith(".json") else _of_text(place)
    again = sum(rating.rater != "0" for rating in ratings)
    notes = [f"{again} captions stand with the same image again: they count as further raters'"] if again else []
    return released(ratings=ratings, notes=notes)


def _of_text(place: Place) -> list[Rating]:
    lines = read_text(place).split("\n")
    return [_of_line(line, f"{place.url}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _of_line(line: str, where: str) -> Rating:
    cells = line.rstrip("\r").split("\t")
    if len(cells) != len(FIELDS):
        raise SourceError(f"{where}: expected {', '.join(FIELDS)} between tabs, found {len(cells)} fields; {AGAIN}")
    image, caption, *counts = cells
    share, *votes = (rating_value(cell, where) for cell in counts)
    yes, no = (math.nan if number is None else number for number in votes)
    if share is not None and abs(share * (yes + no) - yes) > ROUNDING * (yes + no):
        raise SourceError(f"{where}: {yes:g} yeses and {no:g} noes are not a share of {share:g}; correct one of them")
    return _rating(image, caption, 0, share, where)


def _of_json(place: Place) -> list[Rating]:
    return [
        rating
        for row, (image, record) in enumerate(read_objects(place).items())
        for rating in _of_image(image, record, row_name(place.url, row, image))
    ]


def _of_image(image: str, record: Mapping[str, Any], where: str) -> list[Rating]:
    raters: Counter[str] = Counter()
    ratings = []
    for number, given in enumerate(as_list(record.get("human_judgement"), "judgements (human_judgement)", where)):
        at = f"{where}, judgement {number}"
        judgement = as_object(given, at)
        caption = as_text(judgement, "caption", at)
        share = rating_value(judgement.get("rating"), at)
        ratings.append(_rating(image, caption, raters[caption], share, at))
        raters[caption] += 1
    return ratings


def _rating(image: str, caption: str, rater: int, share: float | None, where: str) -> Rating:
    if share is not None and not 0 <= share <= 1:
        raise SourceError(
            f"{where}: expected a share of yeses from 0 to 1, found {share:g}; is this the experts' file "
            "(ExpertAnnotations.txt, flickr8k.json)? Those ratings are 1 to 4: read them as a long table"
        )
    return Rating(image, caption, None, str(rater), TEMPLATE, share, where)
