"""EvalMuse-40K: ratings of images and of the elements of their prompts."""

from collections.abc import Iterator
from typing import Any

from plumbline.operators.metrics import parsing
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import require_object
from plumbline.pipelines.metaeval.releases.release import (
    LIKERT,
    Rating,
    Release,
    WordRating,
    group_skills,
    parse_rating,
    released,
    split_words,
)
from plumbline.pipelines.metaeval.releases.sheets import read_list, require_list, require_text


def read_evalmuse(place: Place) -> Release:
    """Read the ratings of images and of words in prompts. Raters are numbered by position; `type` is the skill.

    EvalMuse-40K: people rated generated images as a whole, and for each element (a group of words) of the prompt.

    Source: DY-Evalab/EvalMuse, train_list.json: a list of `{"prompt_id", "prompt", "type": "real" or "synth",
    "img_path", "total_score": [1-5, ...], "element_score": {"<words> (<kind>)": [1 or 0, ...]}, "promt_meaningless",
    "split_confidence", "attribute_confidence": [1 or 0, ...], "fidelity_label": [...]}`, with three or six raters per
    image. Upstream's process/process_train.py converts it to train.json, which has means in place of the lists and can
    be read too; test.json has no ratings. The last four fields record how confident the annotators were and are not
    read.

    An image is identified by its `img_path`, whose folder is the generator. The words of an element are looked up in
    the prompt, as in upstream's process/element2mask.py. An element that does not occur in the prompt has no word
    ratings.
    """
    ratings: list[Rating] = []
    words: list[WordRating] = []
    skills = []
    elements = lost = 0
    for where, record in read_list(place, "images"):
        prompt_id, image_id = require_text(record, "prompt_id", where), require_text(record, "img_path", where)
        generator = image_id.rpartition("/")[0].rpartition("/")[2] or None
        ids = (image_id, prompt_id, generator)
        skills.append((prompt_id, str(record["type"]) if record.get("type") else None))
        for rater, rating in enumerate(_read_rater_values(record.get("total_score"), where)):
            ratings.append(Rating(*ids, str(rater), LIKERT, parse_rating(rating, where), where))
        for name, given in require_object(record.get("element_score") or {}, f"{where}, element_score").items():
            found = list(
                _rate_element_words(ids, require_text(record, "prompt", where), name, given, f"{where}, {name!r}")
            )
            elements, lost, words = elements + 1, lost + (not found), words + found
    notes = [f"{lost} of {elements} elements do not occur in their prompt and have no word ratings"] if lost else []
    return released(ratings=ratings, words=_merge_repeated_words(words), skills=group_skills(skills), notes=notes)


def _read_rater_values(value: Any, where: str) -> list[Any]:
    """Return each rater's rating, or a single value if only their mean is given."""
    return [value] if isinstance(value, int | float) else require_list(value, "ratings", where)


def _rate_element_words(
    ids: tuple[str, str, str | None], prompt: str, name: str, given: Any, where: str
) -> Iterator[WordRating]:
    words = name.rpartition("(")[0].strip() or name
    span = parsing.find_words(words, prompt)
    if span is None:
        return
    for rater, value in enumerate(_read_rater_values(given, where)):
        for word, start, end in split_words(prompt[span.start : span.end]):
            yield WordRating(
                *ids, str(rater), word, span.start + start, span.start + end, parse_rating(value, where), where
            )


def _merge_repeated_words(words: list[WordRating]) -> Iterator[WordRating]:
    """Yield each word once per rater. A word in several elements gets the lowest of its ratings."""
    lowest: dict[tuple[Any, ...], WordRating] = {}
    for word in words:
        key = (*word[:4], word.start, word.end)
        known = lowest.get(key)
        if known is None or (
            word.aligned is not None and word.aligned < (1 if known.aligned is None else known.aligned)
        ):
            lowest[key] = word
    return iter(lowest.values())
