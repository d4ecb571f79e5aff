"""Gecko2K's human ratings: Likert, word level, DSG(H) and side by side, three people for each image.

google-deepmind/gecko_benchmark_t2i has released the prompts alone: of the images and the human annotation its
DATABASE.md says "Working on". Whatever form they will have, THIS LAYOUT OF THE RATINGS IS OURS, after App. D.1 of the
paper, for whoever has such ratings; only prompts.csv is the released one. A folder with one or more of these tables,
each .csv or .parquet, of one row per answer:
- likert: prompt_id, generator, rater, answer: 1 to 5, or Unsure;
- wl: prompt_id, generator, rater, word (its place in the prompt, from 0; spaces part words), answer: Aligned, Not
  aligned or Unsure;
- dsg_h: prompt_id, generator, rater, question_id, answer: Yes, No, Unsure (also "I do not know the answer" and
  "Subjective", which the paper counts so) or Invalid;
- sxs: prompt_id, generator_a, generator_b, rater, answer: a, b or Unsure;
- prompts (prompts.csv, or gecko_prompts.csv): dataset_id, prompt, prompt_type, prompt_id, and `reliable` or the
  released `max_disagreement_less_0.5`, which is the paper's threshold.
An image is named `<prompt_id>/<generator>`.

A rating of wl is the share of words aligned, of dsg_h the share of questions answered yes, for each person; Unsure and
Invalid answers are left out of both sides, and a rating without any other is null, as a Likert rating of Unsure is.
With the prompts' texts the words of wl are ratings of words too.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import (
    LIKERT,
    Rating,
    Release,
    Word,
    rating_value,
    released,
    remember,
    words_in,
)
from plumbline.pipelines.judging.releases.sheets import Sheet, first_that_exists, read_content, read_sheet
from plumbline.pipelines.sources.prompt_files import read_prompt_file

UNSURE = ("unsure", "invalid", "i do not know the answer", "subjective")
SHARES = {"wl": ("word", "aligned", "not aligned"), "dsg_h": ("question_id", "yes", "no")}
"""By template: what one answer is about, and the answers that count as 1 and 0."""
SIDE_BY_SIDE = "sxs"
SIDES = ("a", "b", "unsure")
PROMPTS = ("prompts.csv", "gecko_prompts.csv")
RELIABLE = ("reliable", "max_disagreement_less_0.5")
LAYOUT = "see the layout in the documentation of pipelines/judging/releases/gecko.py"


def read(place: Place) -> Release:
    """The folder's ratings by template, its side-by-side choices, and the prompts' skills with `reliable` as one."""
    sheets = {name: _sheet(place, name) for name in (LIKERT, *SHARES, SIDE_BY_SIDE)}
    if not any(sheets.values()):
        raise SourceError(f"{place.url}: expected likert, wl, dsg_h or sxs as .csv or .parquet, found none; {LAYOUT}")
    likert, votes = sheets[LIKERT], sheets[SIDE_BY_SIDE]
    ratings = _likert(likert) if likert else []
    ratings += [rating for name in SHARES if (sheet := sheets[name]) for rating in _shares(name, sheet)]
    prompts = _prompts(place)
    skills = {str(prompt["prompt_id"]): _skills(prompt) for prompt in prompts}
    texts = {str(prompt["prompt_id"]): str(prompt["prompt"]) for prompt in prompts}
    rated_words = sheets["wl"]
    notes = [f"no table of {name}" for name, sheet in sheets.items() if sheet is None]
    return released(
        ratings=ratings,
        preferences=list(_preferences(votes)) if votes else [],
        words=_words(rated_words, texts) if rated_words and texts else (),
        skills=skills,
        notes=[*notes, *([] if prompts else ["no prompts.csv: no skills and no words"])],
    )


def _sheet(folder: Place, name: str) -> Sheet | None:
    file = first_that_exists(folder, [f"{name}.csv", f"{name}.parquet"])
    return read_sheet(file) if file else None


def _answers(sheet: Sheet, *names: str) -> Iterator[tuple[str, ...]]:
    """Of each row its place, the columns named, and the answer in lower case."""
    sheet.require([*names, "answer"], LAYOUT)
    answers = [answer.strip().lower() for answer in sheet.ids("answer")]
    places = map(sheet.where, range(len(sheet)))
    return zip(places, *(sheet.ids(name) for name in names), answers, strict=True)


def _require_known(answer: str, known: Sequence[str], said: str, where: str) -> None:
    if answer not in known:
        raise SourceError(f"{where}: expected {said}, found {answer!r}; correct it")


def _rating(template: str, prompt_id: str, generator: str, rater: str, value: float | None, where: str) -> Rating:
    return Rating(f"{prompt_id}/{generator}", prompt_id, generator, rater, template, value, where)


def _likert(sheet: Sheet) -> list[Rating]:
    ratings = []
    for where, prompt_id, generator, rater, answer in _answers(sheet, "prompt_id", "generator", "rater"):
        value = None if answer in UNSURE else rating_value(answer, where)
        if value is not None and not 1 <= value <= 5:
            raise SourceError(f"{where}: expected 1 to 5 or Unsure, found {answer!r}; correct it")
        ratings.append(_rating(LIKERT, prompt_id, generator, rater, value, where))
    return ratings


def _shares(template: str, sheet: Sheet) -> list[Rating]:
    """By image and rater, the share of the words or questions with the first of the two sure answers."""
    about, yes, no = SHARES[template]
    places: dict[tuple[str, ...], str] = {}
    given: dict[tuple[str, str, str], Counter[str]] = {}
    firsts: dict[tuple[str, str, str], str] = {}
    for where, *key, subject, answer in _answers(sheet, "prompt_id", "generator", "rater", about):
        prompt_id, generator, rater = key
        _require_known(answer, (yes, no, *UNSURE), f"{yes}, {no} or Unsure", where)
        remember(places, (*key, subject), where, f"{about} {subject!r} answered twice")
        given.setdefault((prompt_id, generator, rater), Counter())[answer] += 1
        firsts.setdefault((prompt_id, generator, rater), where)
    return [
        _rating(template, *image, answers[yes] / sure if (sure := answers[yes] + answers[no]) else None, firsts[image])
        for image, answers in given.items()
    ]


def _preferences(sheet: Sheet) -> Iterator[dict[str, Any]]:
    columns = ("prompt_id", "generator_a", "generator_b", "rater")
    places: dict[tuple[str, ...], str] = {}
    for where, prompt_id, a, b, rater, answer in _answers(sheet, *columns):
        said = f"rater {rater!r} compares this pair for the second time"
        remember(places, (prompt_id, *sorted((a, b)), rater), where, said)
        _require_known(answer, SIDES, "a, b or Unsure", where)
        images = {"image_a": f"{prompt_id}/{a}", "image_b": f"{prompt_id}/{b}"}
        ids = dict(zip(columns, (prompt_id, a, b, rater), strict=True))
        yield {**ids, **images, "preferred": answer}


def _words(sheet: Sheet, texts: Mapping[str, str]) -> Iterator[Word]:
    """The answers about words whose prompt is known; raises SourceError for a place that it does not have."""
    words = {prompt_id: words_in(text) for prompt_id, text in texts.items()}
    for where, prompt_id, generator, rater, word, answer in _answers(sheet, "prompt_id", "generator", "rater", "word"):
        known = words.get(prompt_id)
        if known is None:
            continue
        if word not in map(str, range(len(known))):
            raise SourceError(
                f"{where}: expected a word from 0 to {len(known) - 1} of prompt {prompt_id!r}, found {word!r}; {LAYOUT}"
            )
        aligned = None if answer in UNSURE else float(answer == SHARES["wl"][1])
        yield Word(f"{prompt_id}/{generator}", prompt_id, generator, rater, *known[int(word)], aligned, where)


def _prompts(folder: Place) -> Sequence[Mapping[str, Any]]:
    file = first_that_exists(folder, PROMPTS)
    if file is None:
        return ()
    return read_prompt_file(read_content(file), file.url, ("prompt_id", "dataset_id", "prompt", "prompt_type"))


def _skills(prompt: Mapping[str, Any]) -> list[str]:
    said = next((str(prompt[name]) for name in RELIABLE if name in prompt), "")
    return [*prompt["skills"], *(["reliable"] if said.lower() == "true" else [])]
