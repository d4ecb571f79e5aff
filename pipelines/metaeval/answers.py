"""Readers of VQA models' answers about images, as released by papers or in users' own tables."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.metrics import parsing
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import as_object
from plumbline.pipelines.metaeval.releases.error_graphs import COLUMNS, METADATA, UPSTREAM
from plumbline.pipelines.metaeval.releases.image_ratings import LIKERT_FILE
from plumbline.pipelines.metaeval.releases.sheets import (
    Sheet,
    exists,
    files_in,
    is_folder,
    one_that_exists,
    read_json,
    read_sheet,
)
from plumbline.pipelines.sources.question_packs.pack import PackRow, PackRows
from plumbline.pipelines.sources.question_packs.papers import read_dsg_1k, read_tifa_v1


class Answer(NamedTuple):
    """An answer about an image."""

    metric: str
    """Name of the model, and of the metric of its scores."""
    image_id: str
    prompt_id: str | None
    generator: str | None
    question_id: str
    right: bool | None
    """None if the answer is missing."""
    parents: Sequence[str]
    """Questions that this question depends on."""
    where: str
    """File and row."""


class Answered(NamedTuple):
    """All answers of a release, in its order."""

    answers: Sequence[Answer]
    notes: Sequence[str] = ()
    """Notes on rows that were read differently from the files."""


Found = TypeVar("Found")


def select_models(found: Mapping[str, Found], given: Collection[str], where: str) -> dict[str, Found]:
    """Select the `given` models, or all if none are given; raise ConfigError if a model is missing."""
    for name in given:
        if name not in found:
            raise ConfigError(f"given: {where} has no answers of {name!r}; there are {', '.join(found) or 'none'}")
    return {name: found[name] for name in given} if given else dict(found)


TRUTH = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerColumns:
    """Names of the columns of a table of answers."""

    image_id: str = "image_id"
    """Column of the images' ids."""
    prompt_id: str = "prompt_id"
    """Column of the prompts that images were made from."""
    generator: str = "generator"
    """Column of the images' generators; may be absent."""
    question_id: str = "question_id"
    """Column of the questions' ids."""
    parents: str = "parents"
    """Column of the questions that a question depends on; may be absent."""
    answer: str | None = None
    """Column of the right answers; null if the models' columns contain 1 or 0, true or false, for right or wrong."""


def read_table(
    place: Place, given: Sequence[str], columns: AnswerColumns, *, separator: str, no_parent: str
) -> Answered:
    """Read the answers of the columns `given`; raise SourceError naming the file and the row."""
    sheet = read_sheet(place)
    needed = [columns.image_id, columns.question_id, *given, *([columns.answer] if columns.answer else [])]
    sheet.require(needed, "set columns and given to what the file calls them")
    ids = list(
        zip(
            sheet.ids(columns.image_id),
            sheet.texts(columns.prompt_id),
            sheet.texts(columns.generator),
            sheet.ids(columns.question_id),
            strict=True,
        )
    )
    parents = [_split_parents(text, separator, no_parent) for text in sheet.texts(columns.parents)]
    return Answered(
        [
            Answer(metric, *ids[row], right, parents[row], sheet.where(row))
            for metric in given
            for row, right in enumerate(_check_answers(sheet, metric, columns.answer))
        ]
    )


def _split_parents(text: str | None, separator: str, no_parent: str) -> list[str]:
    return [] if text is None or text == no_parent else [name.strip() for name in text.split(separator)]


def _parse_truth(sheet: Sheet, name: str, remedy: str) -> Iterator[bool | None]:
    """Yield each cell of a column as True or False; None if it is empty."""
    for row, given in enumerate(sheet.texts(name)):
        if given is not None and given.strip().casefold() not in TRUTH:
            raise SourceError(f"{sheet.where(row)}: expected 1 or 0 as {name}, found {given!r}; {remedy}")
        yield None if given is None else TRUTH[given.strip().casefold()]


def _check_answers(sheet: Sheet, metric: str, answer: str | None) -> Iterator[bool | None]:
    """Yield for each row True if the answer is right; None if it is missing."""
    if answer is None:
        yield from _parse_truth(sheet, metric, "name the column of right answers by columns.answer")
        return
    for given, right in zip(sheet.texts(metric), sheet.texts(answer), strict=True):
        yield None if given is None else right is not None and parsing.normalise(given) == parsing.normalise(right)


ANSWERS = "vqa_answers_release"
ANSWER_COLUMNS = ("t2i_model", "item_id", "question", "answer")
QUESTIONS = ("dsg/data/dsg-1k-anns.csv", "dsg-1k-anns.csv")
TIFA = ("tifa_ann/tifa_v1.0_question_answers.json", "tifa_v1.0_question_answers.json")
LIKERT = (f"dsg/data/{LIKERT_FILE}", LIKERT_FILE)
WITH_CHOICES = re.compile(r"Question: (.*) Choices: .*\. Answer:", re.DOTALL)
DSG_RELEASED = "is this j-min/DSG's file?"
YES = "yes"


class _Row(NamedTuple):
    """A row of a file of answers."""

    generator: str
    item: str
    question: str
    answer: str | None
    where: str


def read_dsg(place: Place, given: Sequence[str]) -> Answered:
    """Read DSG's answers: those of mPLUG-large, InstructBLIP and PaLI-17B to the questions of DSG, TIFA and VQ2.

    Each file is a metric with the file's name, such as mplug_dsg.

    Source: j-min/DSG, a checkout or a folder with the same files in it:
    - `vqa_answers_release/<model>_<questions>.csv` (dsg, tifa or vq2a): dsg_prompt_split, t2i_model, item_id, question,
      answer, and for dsg question_id and dependency_id;
    - `dsg/data/dsg-1k-anns.csv`, the questions of DSG with their parents, by the reader of the question pack `dsg_1k`;
    - for TIFA's questions their right answers: `tifa_ann/tifa_v1.0_question_answers.json` (Yushi-Hu/tifa), by the
      reader of `tifa_v1`, and `dsg/data/tifa160-likert-anns.csv`, which maps DSG's names of prompts to TIFA's.

    As in `dsg/data_utils.py`, an answer is right if it is exactly the right text; for yes/no questions of TIFA this is
    yes, whatever TIFA's file contains. All answers about tifa160_134 to DSG's questions are missing; the release counts
    them as 0 (`missing=wrong`). PaLI's cells for TIFA contain the question with its choices.
    """
    files = {PurePosixPath(file.path).stem: file for file in _files(place)}
    answers: list[Answer] = []
    notes: list[str] = []
    for name, file in select_models(files, given, place.url).items():
        sheet = read_sheet(file).require(ANSWER_COLUMNS, DSG_RELEASED)
        answers += QUESTION_READERS[name.rpartition("_")[2]](name, sheet, place, notes)
    return Answered(answers, list(dict.fromkeys(notes)))


def _files(place: Place) -> Iterator[Place]:
    found = files_in(place / ANSWERS, ".csv") or files_in(place, ".csv")
    files = [file for file in found if PurePosixPath(file.path).stem.rpartition("_")[2] in QUESTION_READERS]
    if not files:
        raise SourceError(f"{place.url}: expected a folder with {ANSWERS}/*_dsg.csv, found none; check the path")
    yield from files


def _rows(sheet: Sheet) -> Iterator[_Row]:
    places = map(sheet.where, range(len(sheet)))
    names = (sheet.ids(name) for name in ("t2i_model", "item_id", "question"))
    yield from map(_Row, *names, sheet.texts("answer"), places)


def _answer(metric: str, row: _Row, question_id: str, right_answer: str, parents: Sequence[str] = ()) -> Answer:
    right = None if row.answer is None else row.answer == right_answer
    image = f"{row.item}/{row.generator}"
    return Answer(metric, image, row.item, row.generator, question_id, right, parents, row.where)


def _read_dsg_questions(metric: str, sheet: Sheet, place: Place, notes: list[str]) -> Iterator[Answer]:
    """Yield the answers to DSG's questions, with missing answers for the other images of the same splits."""
    sheet.require(("question_id",), DSG_RELEASED)
    file = one_that_exists(place, QUESTIONS)
    asked: dict[str, dict[str, Sequence[str]]] = {}
    for found in _pack_rows(read_dsg_1k(file, "released"), notes):
        if found.question is not None:
            asked.setdefault(found.prompt_id, {})[found.question.question_id] = found.question.parents
    by_image: dict[tuple[str, str], dict[str, _Row]] = {}
    for row, question in zip(_rows(sheet), sheet.ids("question_id"), strict=True):
        if question not in asked.get(row.item, ()):
            raise SourceError(f"{row.where}: {file.url} has no question {question} about {row.item}; {DSG_RELEASED}")
        answered = by_image.setdefault((row.item, row.generator), {})
        if question in answered:
            raise SourceError(f"{row.where}: question {question} about {row.item} is answered twice; remove one")
        answered[question] = row
    for item, generator in _images(by_image, asked):
        answered = by_image.get((item, generator), {})
        for question, parents in asked[item].items():
            none = _Row(generator, item, question, None, sheet.url)
            yield _answer(metric, answered.get(question, none), question, YES, parents)


def _images(answered: Iterable[tuple[str, str]], items: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield every prompt of each split with every generator that has an image of the split."""
    splits = dict.fromkeys((_split(item), generator) for item, generator in answered)
    items_by_split: dict[str, list[str]] = {}
    for item in items:
        items_by_split.setdefault(_split(item), []).append(item)
    return ((item, generator) for split, generator in splits for item in items_by_split[split])


def _split(item: str) -> str:
    return item.rpartition("_")[0]


def _read_tifa_questions(metric: str, sheet: Sheet, place: Place, notes: list[str]) -> Iterator[Answer]:
    file = one_that_exists(place, TIFA)
    right_answers = {
        (row.prompt_id, row.question.text): YES
        if tuple(row.question.choices) == parsing.YES_NO
        else row.question.answer or ""
        for row in _pack_rows(read_tifa_v1(file, "released"), notes)
        if row.question is not None
    }
    names = read_sheet(one_that_exists(place, LIKERT)).require(("item_id", "source_id"), DSG_RELEASED)
    source = dict(zip(names.ids("item_id"), names.ids("source_id"), strict=True))
    for row in _rows(sheet):
        with_choices = WITH_CHOICES.fullmatch(row.question)
        question = with_choices[1] if with_choices else row.question
        right = right_answers.get((source.get(row.item, ""), question))
        if right is None:
            raise SourceError(f"{row.where}: {file.url} has no question {question!r} about {row.item}; {DSG_RELEASED}")
        yield _answer(metric, row, question, right)


def _read_vq2_questions(metric: str, sheet: Sheet, place: Place, notes: list[str]) -> Iterator[Answer]:
    return (_answer(metric, row, row.question, YES) for row in _rows(sheet))


def _pack_rows(found: PackRows, notes: list[str]) -> Iterator[PackRow]:
    """Yield the rows of a question pack; messages about bad rows become one note."""
    lines = []
    for row in found:
        if isinstance(row, PackRow):
            yield row
        else:
            lines.append(row)
    if lines:
        notes.append(f"{len(lines)} rows are not as they should be, first {lines[0]}")


QUESTION_READERS: Mapping[str, Callable[[str, Sheet, Place, list[str]], Iterator[Answer]]] = {
    "dsg": _read_dsg_questions,
    "tifa": _read_tifa_questions,
    "vq2a": _read_vq2_questions,
}
"""Readers by the end of the file's name, which names the questions."""


FOLDERS = ("output/score_per_question/DSG", "output/score_per_question/TIFA", "")
OF_ONE = "_mc.csv"
WIDE = "ts2_dsg_correct.csv"
KEYS = ("id", "image_row", "question_id", "parents")


def read_t2iscorescore(place: Place, given: Sequence[str]) -> Answered:
    """Read T2IScoreScore's answers: whether six VQA models were right about 2,840 images.

    The questions are DSG's and TIFA's. Models have the names of their scores, such as mplug_dsg, and images those of
    their files.

    Source: michaelsaxon/T2IScoreScore. A folder with metadata.csv (in upstream's data/), as the protocol t2iscorescore
    has it, and one or both of
    - upstream's output/score_per_question/{DSG,TIFA}/<model>_mc.csv: id (the graph), question_id (from 0 for every
      image), vqa_answer, mc_answer, correct, and for DSG parent_question_id;
    - ts2_dsg_correct.csv: id, image_row (an image's row in the metadata), question_id, parents, and a column of 1 or 0
      per model.
    The rows of the first are in the order of the metadata's images; parents are joined by `-`, and `-1` means none.
    """
    metadata = read_sheet(one_that_exists(place, METADATA)).require(COLUMNS, UPSTREAM)
    found: dict[str, Callable[[str], Iterator[Answer]]] = {}
    for file in (file for name in FOLDERS for file in files_in(place / name if name else place, OF_ONE)):
        sheet = read_sheet(file).require(("id", "question_id", "correct"), UPSTREAM)
        found[PurePosixPath(file.path).name.removesuffix(OF_ONE)] = partial(
            _graph_answers, metadata=metadata, sheet=sheet, column="correct"
        )
    if exists(place / WIDE):
        sheet = read_sheet(place / WIDE).require(KEYS, UPSTREAM)
        for name in (name for name in sheet.names if name not in KEYS):
            found[f"{name}_dsg"] = partial(_graph_answers, metadata=metadata, sheet=sheet, column=name)
    if not found:
        raise SourceError(f"{place.url}: expected {FOLDERS[0]}/*{OF_ONE} or {WIDE}, found none; check the path")
    models = select_models(found, given, place.url)
    return Answered([answer for name, answers in models.items() for answer in answers(name)])


def _graph_answers(metric: str, metadata: Sheet, sheet: Sheet, column: str) -> Iterator[Answer]:
    files, graphs = metadata.ids("file_name"), metadata.ids("id")
    sources, questions = metadata.texts("image_source"), sheet.ids("question_id")
    parents = sheet.texts("parents" if "parents" in sheet.names else "parent_question_id")
    right = _parse_truth(sheet, column, UPSTREAM)
    for row, (image, graph, correct) in enumerate(zip(_image_rows(sheet), sheet.ids("id"), right, strict=True)):
        if image >= len(metadata) or graphs[image] != graph:
            raise SourceError(
                f"{sheet.where(row)}: expected an answer about image {image} of {metadata.url} and its graph, found "
                f"graph {graph}; the rows are joined by their order, so both files must be whole"
            )
        above = _split_parents(parents[row], "-", "-1")
        yield Answer(
            metric, files[image], graph, sources[image], questions[row], correct, above, sheet.where(row)
        )  # fmt: skip


def _image_rows(sheet: Sheet) -> Iterator[int]:
    """Yield for each row the row of its image in the metadata; images begin at the first question."""
    if "image_row" in sheet.names:
        yield from _whole(sheet, "image_row")
        return
    image, last = -1, -1
    for question in _whole(sheet, "question_id"):
        image += question <= last or image < 0
        yield image
        last = question


def _whole(sheet: Sheet, name: str) -> Iterator[int]:
    sheet.ids(name)  # raises if a cell is empty
    yield from (number for number in sheet.whole(name, UPSTREAM) if number is not None)


METRIC = "tifa"
TIFA_RESULT = "is this a result of tifa_score_benchmark?"


def read_tifa(place: Place, given: Sequence[str]) -> Answered:
    """Read TIFA's answers: those of a VQA model about the images of one generator or several.

    They are a metric with the name `given`, or tifa. Raises ConfigError if several names are given.

    Source: Yushi-Hu/tifa, the result of `tifa_score_benchmark` (sample/sample_evaluation_result.json):
    `{"question_details": {prompt_id: {question: {"id", "caption", "question", "choices", "answer", "element_type",
    "free_form_vqa", "multiple_choice_vqa", "scores": 1 or 0}}}, "caption_scores": {prompt_id: number}, ...}`. The file
    names neither the generator nor the model: the generator has the name of its file.

    A question that occurs twice counts twice in `caption_scores`, but only once in `question_details`, which is read.
    """
    if len(given) > 1:
        raise ConfigError(f"given: TIFA's results are of one model, got {', '.join(given)}; name one")
    metric = given[0] if given else METRIC
    files = files_in(place, ".json") if is_folder(place) else [place]
    if not files:
        raise SourceError(f"{place.url}: expected a result of TIFA, or a folder of them, found none; check the path")
    answers: list[Answer] = []
    notes: list[str] = []
    for file in files:
        result = as_object(read_json(file), file.url)
        own = list(_tifa_answers(metric, result, PurePosixPath(file.path).stem, file.url))
        notes += _compare_with_released(result, own, file.url)
        answers += own
    return Answered(answers, notes)


def _tifa_answers(metric: str, result: Mapping[str, Any], generator: str, url: str) -> Iterator[Answer]:
    if "question_details" not in result:
        found = ", ".join(result) or "nothing"
        raise SourceError(f"{url}: expected question_details, found {found}; {TIFA_RESULT}")
    for prompt_id, asked in as_object(result["question_details"], f"{url}, question_details").items():
        for question, value in as_object(asked, f"{url}, {prompt_id!r}").items():
            where = f"{url}, {prompt_id!r}, {question!r}"
            score = as_object(value, where).get("scores")
            if score not in (None, 0, 1):
                raise SourceError(f"{where}: expected scores of 1 or 0, found {score!r}; {TIFA_RESULT}")
            right = None if score is None else bool(score)
            yield Answer(metric, f"{prompt_id}/{generator}", prompt_id, generator, question, right, (), where)


def _compare_with_released(result: Mapping[str, Any], answers: Sequence[Answer], url: str) -> Iterator[str]:
    """Yield a note if released scores of prompts differ from the means of their answers."""
    right: dict[str, list[bool]] = {}
    for answer in answers:
        right.setdefault(str(answer.prompt_id), []).append(bool(answer.right))
    released = as_object(result.get("caption_scores") or {}, f"{url}, caption_scores")
    other = [
        name
        for name, values in right.items()
        if isinstance(score := released.get(name), int | float)
        and not math.isclose(score, sum(values) / len(values), abs_tol=1e-9)
    ]
    if other:
        yield (
            f"{url}: caption_scores of {len(other)} prompts, first {other[0]!r}, differ from the means of the answers "
            "in question_details: a question that occurs twice counts twice in caption_scores"
        )


FORMATS = Extensions[Callable[[Place, Sequence[str]], Answered]](
    "answers", {name: f"{__name__}:read_{name}" for name in ("dsg", "t2iscorescore", "tifa")}
)
"""Readers of the answers of the named models, or of all; they raise SourceError naming the file and the row."""
