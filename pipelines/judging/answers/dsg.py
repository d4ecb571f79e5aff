"""DSG's answers: what mPLUG-large, InstructBLIP and PaLI-17B answered to the questions of DSG, TIFA and VQ2.

Source: j-min/DSG, a checkout or a folder with the same files in it:
- `vqa_answers_release/<model>_<questions>.csv` (dsg, tifa or vq2a): dsg_prompt_split, t2i_model, item_id, question,
  answer, and for dsg question_id and dependency_id;
- `dsg/data/dsg-1k-anns.csv`, the questions of DSG with their parents, by the reader of the question pack `dsg_1k`;
- for TIFA's questions their right answers: `tifa_ann/tifa_v1.0_question_answers.json` (Yushi-Hu/tifa), by the reader of
  `tifa_v1`, and `dsg/data/tifa160-likert-anns.csv`, which says how TIFA calls a prompt.

As in `dsg/data_utils.py`: an answer is right where it is the very text; to yes/no questions of TIFA that is yes,
whatever its file says. A question of DSG that the file has no answer to is one without an answer: all those of
tifa160_134 are, which the release counts 0 (`missing=wrong`). PaLI's cells of TIFA hold the question with its choices.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from plumbline.operators.errors import SourceError
from plumbline.operators.metrics import parsing
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.answers.answer_table import Answer, Answered, select_models
from plumbline.pipelines.judging.releases.image_ratings import LIKERT_FILE
from plumbline.pipelines.judging.releases.sheets import Sheet, files_in, one_that_exists, read_sheet
from plumbline.pipelines.sources.question_packs.dependent import read_dsg_1k
from plumbline.pipelines.sources.question_packs.independent import read_tifa_v1
from plumbline.pipelines.sources.question_packs.pack import PackRow, PackRows

ANSWERS = "vqa_answers_release"
COLUMNS = ("t2i_model", "item_id", "question", "answer")
QUESTIONS = ("dsg/data/dsg-1k-anns.csv", "dsg-1k-anns.csv")
TIFA = ("tifa_ann/tifa_v1.0_question_answers.json", "tifa_v1.0_question_answers.json")
LIKERT = (f"dsg/data/{LIKERT_FILE}", LIKERT_FILE)
WITH_CHOICES = re.compile(r"Question: (.*) Choices: .*\. Answer:", re.DOTALL)
RELEASED = "is this j-min/DSG's file?"
YES = "yes"


class _Row(NamedTuple):
    """A row of a file of answers."""

    generator: str
    item: str
    question: str
    answer: str | None
    where: str


def read(place: Place, given: Sequence[str]) -> Answered:
    """The answers of the files asked for, each a metric of its file's name, such as mplug_dsg."""
    files = {PurePosixPath(file.path).stem: file for file in _files(place)}
    answers: list[Answer] = []
    notes: list[str] = []
    for name, file in select_models(files, given, place.url).items():
        sheet = read_sheet(file).require(COLUMNS, RELEASED)
        answers += READERS[name.rpartition("_")[2]](name, sheet, place, notes)
    return Answered(answers, list(dict.fromkeys(notes)))


def _files(place: Place) -> Iterator[Place]:
    found = files_in(place / ANSWERS, ".csv") or files_in(place, ".csv")
    files = [file for file in found if PurePosixPath(file.path).stem.rpartition("_")[2] in READERS]
    if not files:
        raise SourceError(f"{place.url}: expected a folder with {ANSWERS}/*_dsg.csv, found none; check the path")
    yield from files


def _rows(sheet: Sheet) -> Iterator[_Row]:
    places = map(sheet.where, range(len(sheet)))
    names = (sheet.ids(name) for name in ("t2i_model", "item_id", "question"))
    yield from map(_Row, *names, sheet.texts("answer"), places)


def _answer(metric: str, row: _Row, question_id: str, wanted: str, parents: Sequence[str] = ()) -> Answer:
    right = None if row.answer is None else row.answer == wanted
    image = f"{row.item}/{row.generator}"
    return Answer(metric, image, row.item, row.generator, question_id, right, parents, row.where)


def _of_dsg(metric: str, sheet: Sheet, place: Place, notes: list[str]) -> Iterator[Answer]:
    """All questions about the prompts of every split that a generator was asked about, with those not answered."""
    sheet.require(("question_id",), RELEASED)
    file = one_that_exists(place, QUESTIONS)
    asked: dict[str, dict[str, Sequence[str]]] = {}
    for found in _packed(read_dsg_1k(file, "released"), notes):
        if found.question is not None:
            asked.setdefault(found.prompt_id, {})[found.question.question_id] = found.question.parents
    of_images: dict[tuple[str, str], dict[str, _Row]] = {}
    for row, question in zip(_rows(sheet), sheet.ids("question_id"), strict=True):
        if question not in asked.get(row.item, ()):
            raise SourceError(f"{row.where}: {file.url} has no question {question} about {row.item}; {RELEASED}")
        answered = of_images.setdefault((row.item, row.generator), {})
        if question in answered:
            raise SourceError(f"{row.where}: question {question} about {row.item} is answered twice; remove one")
        answered[question] = row
    for item, generator in _images(of_images, asked):
        answered = of_images.get((item, generator), {})
        for question, parents in asked[item].items():
            none = _Row(generator, item, question, None, sheet.url)
            yield _answer(metric, answered.get(question, none), question, YES, parents)


def _images(answered: Iterable[tuple[str, str]], items: Collection[str]) -> Iterator[tuple[str, str]]:
    """Every prompt of each split by every generator that has any image of it."""
    splits = dict.fromkeys((_split(item), generator) for item, generator in answered)
    of_split: dict[str, list[str]] = {}
    for item in items:
        of_split.setdefault(_split(item), []).append(item)
    return ((item, generator) for split, generator in splits for item in of_split[split])


def _split(item: str) -> str:
    return item.rpartition("_")[0]


def _of_tifa(metric: str, sheet: Sheet, place: Place, notes: list[str]) -> Iterator[Answer]:
    file = one_that_exists(place, TIFA)
    wanted = {(row.prompt_id, row.question.text): _wanted(row.question.choices, row.question.answer)
              for row in _packed(read_tifa_v1(file, "released"), notes) if row.question is not None}  # fmt: skip
    names = read_sheet(one_that_exists(place, LIKERT)).require(("item_id", "source_id"), RELEASED)
    source = dict(zip(names.ids("item_id"), names.ids("source_id"), strict=True))
    for row in _rows(sheet):
        with_choices = WITH_CHOICES.fullmatch(row.question)
        question = with_choices[1] if with_choices else row.question
        right = wanted.get((source.get(row.item, ""), question))
        if right is None:
            raise SourceError(f"{row.where}: {file.url} has no question {question!r} about {row.item}; {RELEASED}")
        yield _answer(metric, row, question, right)


def _wanted(choices: Sequence[str], answer: str | None) -> str:
    return YES if tuple(choices) == parsing.YES_NO else answer or ""


def _of_vq2(metric: str, sheet: Sheet, place: Place, notes: list[str]) -> Iterator[Answer]:
    return (_answer(metric, row, row.question, YES) for row in _rows(sheet))


def _packed(found: PackRows, notes: list[str]) -> Iterator[PackRow]:
    """The rows of a question pack; what it says of others becomes one note."""
    lines = []
    for row in found:
        if isinstance(row, PackRow):
            yield row
        else:
            lines.append(row)
    if lines:
        notes.append(f"{len(lines)} rows are not as they should be, first {lines[0]}")


READERS: Mapping[str, Callable[[str, Sheet, Place, list[str]], Iterator[Answer]]] = {
    "dsg": _of_dsg,
    "tifa": _of_tifa,
    "vq2a": _of_vq2,
}
"""By whose questions they are, as the end of the file's name says."""
