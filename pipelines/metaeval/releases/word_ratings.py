"""Reads ratings of images and of the words in their prompts: Gecko2K."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.release import (
    LIKERT,
    PartAnswer,
    Rating,
    Release,
    WordRating,
    parse_rating,
    record_unique_key,
    released,
    split_words,
)
from plumbline.pipelines.metaeval.releases.sheets import Sheet, find_first_file, read_content, read_sheet
from plumbline.pipelines.sources.prompt_files import read_prompt_file

GECKO_UNSURE_ANSWERS = ("unsure", "i do not know the answer", "subjective")
GECKO_INVALID_ANSWER = "invalid"
GECKO_PART_ANSWERS = {"wl": ("word", "aligned", "not aligned"), "dsg_h": ("question_id", "yes", "no")}
"""For each template: the column of the word or question, and the answers that count as 1 and as 0."""
SIDE_BY_SIDE_TEMPLATE = "sxs"
GECKO_CHOICE_ANSWERS = ("a", "b", "unsure")
GECKO_PROMPTS_FILES = ("prompts.csv", "gecko_prompts.csv")
RELIABLE_COLUMNS = ("reliable", "max_disagreement_less_0.5")
GECKO_LAYOUT_REMEDY = "see the layout in the documentation of pipelines/metaeval/releases/word_ratings.py (read_gecko)"


def read_gecko(place: Place) -> Release:
    """Read Gecko2K's human ratings: Likert, word level, DSG(H) and side by side, from three people per image.

    A prompt has the skill `reliable` if its raters agree.

    google-deepmind/gecko_benchmark_t2i has released only prompts.csv; its DATABASE.md announces images and ratings. The
    format of the ratings is therefore our own, based on App. D.1 of the paper, for people who have these ratings. A
    folder with one or more of these tables, each .csv or .parquet, with a row per answer:
    - likert: prompt_id, generator, rater, answer: 1 to 5, or Unsure;
    - wl: prompt_id, generator, rater, word (its index in the prompt, from 0; spaces separate words), answer: Aligned,
      Not aligned or Unsure;
    - dsg_h: prompt_id, generator, rater, question_id, answer: Yes, No, Unsure (also "I do not know the answer" and
      "Subjective", which the paper treats as Unsure) or Invalid;
    - sxs: prompt_id, generator_a, generator_b, rater, answer: a, b or Unsure;
    - prompts (prompts.csv, or gecko_prompts.csv): dataset_id, prompt, prompt_type, prompt_id, and `reliable` or the
      released `max_disagreement_less_0.5`, which is the paper's threshold.

    An image is named `<prompt_id>/<generator>`.

    For each person, a wl rating is the fraction of words that are aligned, and a dsg_h rating the fraction of questions
    answered yes. Unsure answers do not count; a rating that has no other answers is null, like a Likert rating of
    Unsure. Invalid answers, which occur only in dsg_h, are ignored. If the texts of the prompts are known, the answers
    of wl also become ratings of words.
    """
    sheets: dict[str, Sheet | None] = {}
    for name in (LIKERT, *GECKO_PART_ANSWERS, SIDE_BY_SIDE_TEMPLATE):
        file = find_first_file(place, [f"{name}.csv", f"{name}.parquet"])
        sheets[name] = read_sheet(file) if file else None
    if not any(sheets.values()):
        raise SourceError(
            f"{place.url}: expected likert, wl, dsg_h or sxs as .csv or .parquet, found none; {GECKO_LAYOUT_REMEDY}"
        )
    likert, words, choices = sheets[LIKERT], sheets["wl"], sheets[SIDE_BY_SIDE_TEMPLATE]
    notes = [f"no table of {name}" for name, sheet in sheets.items() if sheet is None]
    texts: dict[str, str] = {}
    skills: dict[str, list[str]] = {}
    if file := find_first_file(place, GECKO_PROMPTS_FILES):
        columns = ("prompt_id", "dataset_id", "prompt", "prompt_type")
        for prompt in read_prompt_file(read_content(file), file.url, columns):
            reliable = next((str(prompt[name]) for name in RELIABLE_COLUMNS if name in prompt), "").lower() == "true"
            texts[str(prompt["prompt_id"])] = str(prompt["prompt"])
            skills[str(prompt["prompt_id"])] = [*prompt["skills"], *(["reliable"] if reliable else [])]
    if not texts:
        notes.append("prompts.csv is missing, so there are no skills and no ratings of words")
    return released(
        ratings=_read_likert(likert) if likert else (),
        parts=[part for name in GECKO_PART_ANSWERS if (sheet := sheets[name]) for part in _read_parts(name, sheet)],
        preferences=_read_choices(choices) if choices else (),
        words=_read_words(words, texts) if words and texts else (),
        skills=skills,
        notes=notes,
    )


def _read_answers(sheet: Sheet, *names: str) -> Iterator[tuple[str, ...]]:
    """Yield (location for messages, *values of the given columns, answer in lower case) for each row."""
    sheet.require([*names, "answer"], GECKO_LAYOUT_REMEDY)
    answers = [answer.strip().lower() for answer in sheet.ids("answer")]
    rows = map(sheet.where, range(len(sheet)))
    return zip(rows, *(sheet.ids(name) for name in names), answers, strict=True)


def _require_known_answer(answer: str, known: Sequence[str], expected: str, where: str) -> None:
    if answer not in known:
        raise SourceError(f"{where}: expected {expected}, found {answer!r}; correct the answer")


def _read_likert(sheet: Sheet) -> Iterator[Rating]:
    for where, prompt_id, generator, rater, answer in _read_answers(sheet, "prompt_id", "generator", "rater"):
        value = None if answer in GECKO_UNSURE_ANSWERS else parse_rating(answer, where)
        if value is not None and not 1 <= value <= 5:
            raise SourceError(f"{where}: expected 1 to 5 or Unsure, found {answer!r}; correct the answer")
        yield Rating(f"{prompt_id}/{generator}", prompt_id, generator, rater, LIKERT, value, where)


def _read_parts(template: str, sheet: Sheet) -> Iterator[PartAnswer]:
    """Yield each answer about a word or a valid question: 1 for Aligned or Yes, 0 for the opposite, None for Unsure."""
    about, yes, no = GECKO_PART_ANSWERS[template]
    for where, *key, subject, answer in _read_answers(sheet, "prompt_id", "generator", "rater", about):
        prompt_id, generator, rater = key
        if template == "dsg_h" and answer == GECKO_INVALID_ANSWER:
            continue
        _require_known_answer(answer, (yes, no, *GECKO_UNSURE_ANSWERS), f"{yes}, {no} or Unsure", where)
        value = None if answer in GECKO_UNSURE_ANSWERS else float(answer == yes)
        yield PartAnswer(f"{prompt_id}/{generator}", prompt_id, generator, rater, template, subject, value, where)


def _read_choices(sheet: Sheet) -> Iterator[dict[str, Any]]:
    columns = ("prompt_id", "generator_a", "generator_b", "rater")
    rows_by_choice: dict[tuple[str, ...], str] = {}
    for where, prompt_id, a, b, rater, answer in _read_answers(sheet, *columns):
        message = f"rater {rater!r} compares this pair for the second time"
        record_unique_key(rows_by_choice, (prompt_id, *sorted((a, b)), rater), where, message)
        _require_known_answer(answer, GECKO_CHOICE_ANSWERS, "a, b or Unsure", where)
        images = {"image_a": f"{prompt_id}/{a}", "image_b": f"{prompt_id}/{b}"}
        ids = dict(zip(columns, (prompt_id, a, b, rater), strict=True))
        yield {**ids, **images, "preferred": answer}


def _read_words(sheet: Sheet, texts: Mapping[str, str]) -> Iterator[WordRating]:
    """Yield the answers about words of known prompts; raise SourceError if the prompt has no such word."""
    words = {prompt_id: split_words(text) for prompt_id, text in texts.items()}
    columns = ("prompt_id", "generator", "rater", "word")
    for where, prompt_id, generator, rater, word, answer in _read_answers(sheet, *columns):
        known = words.get(prompt_id)
        if known is None:
            continue
        if word not in map(str, range(len(known))):
            raise SourceError(
                f"{where}: expected the index of a word in prompt {prompt_id!r}, 0 to {len(known) - 1}, found "
                f"{word!r}; {GECKO_LAYOUT_REMEDY}"
            )
        aligned = None if answer in GECKO_UNSURE_ANSWERS else float(answer == GECKO_PART_ANSWERS["wl"][1])
        yield WordRating(f"{prompt_id}/{generator}", prompt_id, generator, rater, *known[int(word)], aligned, where)
