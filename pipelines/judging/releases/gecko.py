"""Gecko2K's human ratings: Likert, word level, DSG(H) and side by side, three people for each image.

google-deepmind/gecko_benchmark_t2i has released the prompts alone: of the images and the human annotation its
DATABASE.md says "Working on". Whatever form they will have, THIS LAYOUT OF THE RATINGS IS OURS, after App. D.1 of the
paper, for whoever has such ratings; only prompts.csv is the released one. A folder with one or more of these tables,
each .csv or .parquet, of one row per answer:
- likert: prompt_id, generator, rater, answer: 1 to 5, or Unsure;
- wl: prompt_id, generator, rater, word (its place in the prompt), answer: Aligned, Not aligned or Unsure;
- dsg_h: prompt_id, generator, rater, question_id, answer: Yes, No, Unsure (also "I do not know the answer" and
  "Subjective", which the paper counts so) or Invalid;
- sxs: prompt_id, generator_a, generator_b, rater, answer: a, b or Unsure;
- prompts (prompts.csv, or gecko_prompts.csv): dataset_id, prompt, prompt_type, prompt_id, and `reliable` or the
  released `max_disagreement_less_0.5`, which is the paper's threshold.
An image is named `<prompt_id>/<generator>`.

A rating of wl is the share of words aligned, of dsg_h the share of questions answered yes, for each person; Unsure and
Invalid answers are left out of both sides, and a rating without any other is null, as a Likert rating of Unsure is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from operators import rows
from operators.errors import SourceError
from pipelines.judging.releases.ratings import LIKERT, Rating, empty_notes, rating_value, ratings_table
from pipelines.judging.releases.release import Release
from pipelines.judging.releases.tables import Sheet, first_that_exists, read_content, read_sheet
from pipelines.sources.prompt_files import read_prompt_file
from pipelines.storage import Location

UNSURE = ("unsure", "invalid", "i do not know the answer", "subjective")
SHARES = {"wl": ("word", "aligned", "not aligned"), "dsg_h": ("question_id", "yes", "no")}
"""By template: what one answer is about, and the answers that count as 1 and 0."""
SIDES = ("a", "b", "unsure")
PROMPTS = ("prompts.csv", "gecko_prompts.csv")
RELIABLE = ("reliable", "max_disagreement_less_0.5")
LAYOUT = "see the layout in the documentation of pipelines/judging/releases/gecko.py"
IMAGE = ("prompt_id", "generator", "rater", "answer")


class _Answer(NamedTuple):
    image: tuple[str, str, str]
    """Prompt, generator and rater."""
    about: str
    answer: str
    where: str


def read(location: Location) -> Release:
    """The folder's ratings by template, its side-by-side choices, and the prompts' skills with `reliable` as one."""
    sheets = {name: _sheet(location, name) for name in (LIKERT, *SHARES, "sxs")}
    if not any(sheets.values()):
        raise SourceError(
            f"{location.url}: expected likert, wl, dsg_h or sxs as .csv or .parquet, found none; {LAYOUT}"
        )
    ratings = [rating for name, sheet in sheets.items() if sheet and name != "sxs" for rating in _ratings(name, sheet)]
    table = ratings_table(ratings) if ratings else rows.RATINGS.empty_table()
    skills = _skills(location)
    notes = [f"no table of {name}" for name, sheet in sheets.items() if sheet is None]
    return Release(
        ratings=table,
        preferences=_preferences(sheets["sxs"]),
        skills=skills,
        notes=[*notes, *([] if skills else ["no prompts.csv: no skills"]), *empty_notes(table)],
    )


def _sheet(folder: Location, name: str) -> Sheet | None:
    file = first_that_exists(folder, [f"{name}.csv", f"{name}.parquet"])
    return read_sheet(file) if file else None


def _ratings(template: str, sheet: Sheet) -> Iterable[Rating]:
    return _likert(sheet) if template == LIKERT else _shares(template, sheet)


def _answers(sheet: Sheet, about: str | None) -> list[_Answer]:
    sheet.require([*IMAGE, about] if about else IMAGE, LAYOUT)
    images = zip(sheet.ids("prompt_id"), sheet.ids("generator"), sheet.ids("rater"), strict=True)
    abouts = sheet.ids(about) if about else [""] * len(sheet)
    given = [answer.strip().lower() for answer in sheet.ids("answer")]
    found = zip(images, abouts, given, strict=True)
    return [_Answer(*fields, sheet.where(row)) for row, fields in enumerate(found)]


def _likert(sheet: Sheet) -> list[Rating]:
    return [_rating(LIKERT, answer, _likert_value(answer)) for answer in _answers(sheet, None)]


def _likert_value(answer: _Answer) -> float | None:
    if answer.answer in UNSURE:
        return None
    value = rating_value(answer.answer, answer.where)
    if value is not None and not 1 <= value <= 5:
        raise SourceError(f"{answer.where}: expected 1 to 5 or Unsure, found {answer.answer!r}; correct it")
    return value


def _rating(template: str, answer: _Answer, rating: float | None) -> Rating:
    prompt_id, generator, rater = answer.image
    return Rating(f"{prompt_id}/{generator}", prompt_id, generator, rater, template, rating, answer.where)


def _shares(template: str, sheet: Sheet) -> list[Rating]:
    about, yes, no = SHARES[template]
    given: dict[tuple[str, str, str], dict[str, _Answer]] = {}
    for answer in _answers(sheet, about):
        _check_known(answer, (yes, no))
        first = given.setdefault(answer.image, {}).setdefault(answer.about, answer)
        if first is not answer:
            raise SourceError(
                f"{answer.where}: {about} {answer.about!r} answered twice (first {first.where}); remove one"
            )
    return [_rating(template, next(iter(one.values())), _share(one, yes, no)) for one in given.values()]


def _check_known(answer: _Answer, known: Sequence[str]) -> None:
    if answer.answer not in (*known, *UNSURE):
        raise SourceError(f"{answer.where}: expected {', '.join(known)} or Unsure, found {answer.answer!r}; correct it")


def _share(answers: Mapping[str, _Answer], yes: str, no: str) -> float | None:
    said = [answer.answer for answer in answers.values()]
    sure = said.count(yes) + said.count(no)
    return said.count(yes) / sure if sure else None


def _preferences(sheet: Sheet | None) -> pa.Table:
    if sheet is None:
        return rows.PREFERENCES.empty_table()
    sheet.require(("prompt_id", "generator_a", "generator_b", "rater", "answer"), LAYOUT)
    columns = [sheet.ids(name) for name in ("prompt_id", "generator_a", "generator_b", "rater", "answer")]
    seen: dict[tuple[str, ...], dict[str, Any]] = {}
    for row, (prompt_id, one, other, rater, answer) in enumerate(zip(*columns, strict=True)):
        key = (prompt_id, *sorted((one, other)), rater)
        if key in seen:
            raise SourceError(f"{sheet.where(row)}: rater {rater!r} compares this pair for the second time; remove one")
        seen[key] = _preference(prompt_id, one, other, rater, answer.strip().lower(), sheet.where(row))
    return rows.table(list(seen.values()), rows.PREFERENCES)


def _preference(prompt_id: str, one: str, other: str, rater: str, answer: str, where: str) -> dict[str, Any]:
    if answer not in SIDES:
        raise SourceError(f"{where}: expected a, b or Unsure, found {answer!r}; correct it")
    return {
        "prompt_id": prompt_id,
        "image_a": f"{prompt_id}/{one}",
        "image_b": f"{prompt_id}/{other}",
        "generator_a": one,
        "generator_b": other,
        "rater": rater,
        "preferred": answer,
    }


def _skills(folder: Location) -> dict[str, list[str]]:
    file = first_that_exists(folder, PROMPTS)
    if file is None:
        return {}
    found = read_prompt_file(read_content(file), file.url, ("prompt_id", "dataset_id", "prompt", "prompt_type"))
    return {str(record["prompt_id"]): [*record["skills"], *_reliable(record)] for record in found}


def _reliable(record: Mapping[str, Any]) -> list[str]:
    said = next((str(record[name]) for name in RELIABLE if name in record), "")
    return ["reliable"] if said.lower() == "true" else []
