"""Reads answers of VQA models about images, from data released with papers or from users' own tables."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.metrics import parsing
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import require_object
from plumbline.pipelines.metaeval.releases.error_graphs import (
    CHECK_T2ISCORESCORE_REMEDY,
    METADATA_COLUMNS,
    METADATA_FILES,
)
from plumbline.pipelines.metaeval.releases.image_ratings import LIKERT_FILE
from plumbline.pipelines.metaeval.releases.sheets import (
    Sheet,
    exists,
    find_required_file,
    is_folder,
    list_files,
    read_json,
    read_sheet,
)
from plumbline.pipelines.sources.question_packs.pack import PackRow, PackRows
from plumbline.pipelines.sources.question_packs.papers import read_dsg_1k, read_tifa_v1


class Answer(NamedTuple):
    """A model's answer to a question about an image, with the questions that the question depends on."""

    metric: str  # name of the model, and of the metric of its scores
    image_id: str
    prompt_id: str | None
    generator: str | None
    question_id: str
    right: bool | None  # None if the answer is missing
    parents: Sequence[str]  # questions that this question depends on
    where: str  # file and row


class Answered(NamedTuple):
    """All answers in a release, in their original order."""

    answers: Sequence[Answer]
    notes: Sequence[str] = ()  # notes on rows whose values differ from those in the files


Found = TypeVar("Found")


def select_models(found: Mapping[str, Found], given: Collection[str], where: str) -> dict[str, Found]:
    """Select the `given` models, or all models if none are given; raise ConfigError if a model is missing."""
    for name in given:
        if name not in found:
            raise ConfigError(
                f"given: {where} has no answers from {name!r}; it has answers from {', '.join(found) or 'none'}"
            )
    return {name: found[name] for name in given} if given else dict(found)


TRUTH_VALUES = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerColumns:
    """Column names of a table of answers."""

    image_id: str = "image_id"
    """Column with the ids of the images."""
    prompt_id: str = "prompt_id"
    """Column with the ids of the prompts that the images were generated from."""
    generator: str = "generator"
    """Column with the generators of the images; may be absent."""
    question_id: str = "question_id"
    """Column with the ids of the questions."""
    parents: str = "parents"
    """Column with the ids of the questions that a question depends on; may be absent."""
    answer: str | None = None
    """Column with the right answers. If null, the models' columns show whether an answer is right, as 1 or 0, or true
    or false.
    """


def read_table(
    place: Place, given: Sequence[str], columns: AnswerColumns, *, separator: str, no_parent: str
) -> Answered:
    """Read the answers in the columns `given`; raise SourceError with the file and row of an invalid cell."""
    sheet = read_sheet(place)
    needed = [columns.image_id, columns.question_id, *given, *([columns.answer] if columns.answer else [])]
    sheet.require(needed, "set columns and given to the column names in the file")
    images, questions = sheet.ids(columns.image_id), sheet.ids(columns.question_id)
    prompts, generators = sheet.texts(columns.prompt_id), sheet.texts(columns.generator)
    parents = [_split_parents(text, separator, no_parent) for text in sheet.texts(columns.parents)]
    answers: list[Answer] = []
    for metric in given:
        if columns.answer is None:
            right = list(_parse_truth(sheet, metric, "name the column of right answers by columns.answer"))
        else:
            normalise = parsing.normalise
            right = [
                None if text is None else expected is not None and normalise(text) == normalise(expected)
                for text, expected in zip(sheet.texts(metric), sheet.texts(columns.answer), strict=True)
            ]
        rows = map(sheet.where, range(len(sheet)))
        answers += map(Answer, repeat(metric), images, prompts, generators, questions, right, parents, rows)
    return Answered(answers)


def _split_parents(text: str | None, separator: str, no_parent: str) -> list[str]:
    return [] if text is None or text == no_parent else [name.strip() for name in text.split(separator)]


def _parse_truth(sheet: Sheet, name: str, remedy: str) -> Iterator[bool | None]:
    for row, text in enumerate(sheet.texts(name)):
        if text is not None and text.strip().casefold() not in TRUTH_VALUES:
            raise SourceError(f"{sheet.where(row)}: expected 1 or 0 as {name}, found {text!r}; {remedy}")
        yield None if text is None else TRUTH_VALUES[text.strip().casefold()]


DSG_ANSWERS_FOLDER = "vqa_answers_release"
DSG_ANSWER_COLUMNS = ("t2i_model", "item_id", "question", "answer")
DSG_QUESTION_FILES = ("dsg/data/dsg-1k-anns.csv", "dsg-1k-anns.csv")
TIFA_QUESTION_FILES = ("tifa_ann/tifa_v1.0_question_answers.json", "tifa_v1.0_question_answers.json")
DSG_LIKERT_FILES = (f"dsg/data/{LIKERT_FILE}", LIKERT_FILE)
CHOICES_PATTERN = re.compile(r"Question: (.*) Choices: .*\. Answer:", re.DOTALL)
CHECK_DSG_RELEASE_REMEDY = "check that this is j-min/DSG's file"
YES_ANSWER = "yes"


class _Row(NamedTuple):
    generator: str
    item: str
    question: str
    answer: str | None
    where: str


def read_dsg(place: Place, given: Sequence[str]) -> Answered:
    """Read DSG's released answers: mPLUG-large, InstructBLIP and PaLI-17B answer questions of DSG, TIFA and VQ2.

    Each file becomes a metric with the file's name, such as mplug_dsg.

    Source: j-min/DSG, a checkout or a folder with the same files:
    - `vqa_answers_release/<model>_<questions>.csv` (dsg, tifa or vq2a): dsg_prompt_split, t2i_model, item_id, question,
      answer, and for dsg question_id and dependency_id;
    - `dsg/data/dsg-1k-anns.csv`: DSG's questions with their parents, read in the same way as for the question pack
      `dsg_1k`;
    - the right answers to TIFA's questions: `tifa_ann/tifa_v1.0_question_answers.json` (Yushi-Hu/tifa), read in the
      same way as for `tifa_v1`, and `dsg/data/tifa160-likert-anns.csv`, which maps DSG's prompt names to TIFA's.

    As in `dsg/data_utils.py`, an answer is right if it equals the right answer exactly; for TIFA's yes/no questions the
    right answer is always yes, even if TIFA's file says no. All answers to DSG's questions about tifa160_134 are
    missing; the release counts them as 0 (`missing=wrong`). PaLI's cells for TIFA contain the question with its
    choices.
    """
    tables = list_files(place / DSG_ANSWERS_FOLDER, ".csv") or list_files(place, ".csv")
    named = {PurePosixPath(file.path).stem: file for file in tables}
    files = {name: file for name, file in named.items() if name.rpartition("_")[2] in QUESTION_READERS}
    if not files:
        raise SourceError(
            f"{place.url}: expected a folder with {DSG_ANSWERS_FOLDER}/*_dsg.csv, found none; check the path"
        )
    answers: list[Answer] = []
    notes: list[str] = []
    for name, file in select_models(files, given, place.url).items():
        sheet = read_sheet(file).require(DSG_ANSWER_COLUMNS, CHECK_DSG_RELEASE_REMEDY)
        answers += QUESTION_READERS[name.rpartition("_")[2]](name, sheet, place, notes)
    return Answered(answers, list(dict.fromkeys(notes)))


def _read_rows(sheet: Sheet) -> Iterator[_Row]:
    rows = map(sheet.where, range(len(sheet)))
    return map(_Row, *map(sheet.ids, ("t2i_model", "item_id", "question")), sheet.texts("answer"), rows)


def _make_answer(metric: str, row: _Row, question_id: str, right_answer: str, parents: Sequence[str] = ()) -> Answer:
    right = None if row.answer is None else row.answer == right_answer
    image = f"{row.item}/{row.generator}"
    return Answer(metric, image, row.item, row.generator, question_id, right, parents, row.where)


def _read_dsg_questions(metric: str, sheet: Sheet, place: Place, notes: list[str]) -> Iterator[Answer]:
    """Yield the answers to DSG's questions for every image in the file's splits; missing answers are empty."""
    sheet.require(("question_id",), CHECK_DSG_RELEASE_REMEDY)
    file = find_required_file(place, DSG_QUESTION_FILES)
    asked: dict[str, dict[str, Sequence[str]]] = {}
    for pack_row in _skip_invalid_rows(read_dsg_1k(file, "released"), notes):
        if pack_row.question is not None:
            asked.setdefault(pack_row.prompt_id, {})[pack_row.question.question_id] = pack_row.question.parents
    by_image: dict[tuple[str, str], dict[str, _Row]] = {}
    for row, question in zip(_read_rows(sheet), sheet.ids("question_id"), strict=True):
        if question not in asked.get(row.item, ()):
            raise SourceError(
                f"{row.where}: {file.url} has no question {question} about {row.item}; {CHECK_DSG_RELEASE_REMEDY}"
            )
        answered = by_image.setdefault((row.item, row.generator), {})
        if question in answered:
            raise SourceError(f"{row.where}: question {question} about {row.item} is answered twice; remove one")
        answered[question] = row
    items_by_split: dict[str, list[str]] = {}
    for item in asked:
        items_by_split.setdefault(item.rpartition("_")[0], []).append(item)
    splits = dict.fromkeys((item.rpartition("_")[0], generator) for item, generator in by_image)
    for split, generator in splits:  # every generator has an image of every prompt of its splits
        for item in items_by_split[split]:
            answered = by_image.get((item, generator), {})
            for question, parents in asked[item].items():
                missing = _Row(generator, item, question, None, sheet.url)
                yield _make_answer(metric, answered.get(question, missing), question, YES_ANSWER, parents)


def _read_tifa_questions(metric: str, sheet: Sheet, place: Place, notes: list[str]) -> Iterator[Answer]:
    file = find_required_file(place, TIFA_QUESTION_FILES)
    right_answers = {
        (row.prompt_id, row.question.text): YES_ANSWER
        if tuple(row.question.choices) == parsing.YES_NO
        else row.question.answer or ""
        for row in _skip_invalid_rows(read_tifa_v1(file, "released"), notes)
        if row.question is not None
    }
    names = read_sheet(find_required_file(place, DSG_LIKERT_FILES)).require(
        ("item_id", "source_id"), CHECK_DSG_RELEASE_REMEDY
    )
    source = dict(zip(names.ids("item_id"), names.ids("source_id"), strict=True))
    for row in _read_rows(sheet):
        with_choices = CHOICES_PATTERN.fullmatch(row.question)
        question = with_choices[1] if with_choices else row.question
        right = right_answers.get((source.get(row.item, ""), question))
        if right is None:
            raise SourceError(
                f"{row.where}: {file.url} has no question {question!r} about {row.item}; {CHECK_DSG_RELEASE_REMEDY}"
            )
        yield _make_answer(metric, row, question, right)


def _read_vq2_questions(metric: str, sheet: Sheet, place: Place, notes: list[str]) -> Iterator[Answer]:
    return (_make_answer(metric, row, row.question, YES_ANSWER) for row in _read_rows(sheet))


def _skip_invalid_rows(found: PackRows, notes: list[str]) -> Iterator[PackRow]:
    lines = []
    for row in found:
        if isinstance(row, PackRow):
            yield row
        else:
            lines.append(row)
    if lines:
        notes.append(f"{len(lines)} rows are invalid (first: {lines[0]})")


QUESTION_READERS: Mapping[str, Callable[[str, Sheet, Place, list[str]], Iterator[Answer]]] = {
    "dsg": _read_dsg_questions,
    "tifa": _read_tifa_questions,
    "vq2a": _read_vq2_questions,
}
"""Functions that read the answers to a set of questions, by the last part of the file's name, such as `dsg`."""


MODEL_FILE_FOLDERS = ("output/score_per_question/DSG", "output/score_per_question/TIFA", "")
MODEL_FILE_SUFFIX = "_mc.csv"  # ending of the name of a file with one model's answers
ALL_MODELS_FILE = "ts2_dsg_correct.csv"
KEY_COLUMNS = ("id", "image_row", "question_id", "parents")


def read_t2iscorescore(place: Place, given: Sequence[str]) -> Answered:
    """Read T2IScoreScore's records of right and wrong answers by six VQA models about 2,840 images.

    The questions come from DSG and TIFA. Models are named like their scores, such as mplug_dsg, and images are named
    after their files.

    Source: michaelsaxon/T2IScoreScore. A folder with metadata.csv (in upstream's data/), as for the protocol
    t2iscorescore, and one or both of
    - upstream's output/score_per_question/{DSG,TIFA}/<model>_mc.csv: id (the graph), question_id (from 0 for every
      image), vqa_answer, mc_answer, correct, and for DSG parent_question_id;
    - ts2_dsg_correct.csv: id, image_row (an image's row in the metadata), question_id, parents, and a column of 1 or 0
      per model.
    The rows of the first file are in the order of the metadata's images. Parents are joined by `-`; `-1` means none.
    """
    metadata = read_sheet(find_required_file(place, METADATA_FILES)).require(
        METADATA_COLUMNS, CHECK_T2ISCORESCORE_REMEDY
    )
    found: dict[str, Callable[[str], Iterator[Answer]]] = {}
    for file in (
        file for name in MODEL_FILE_FOLDERS for file in list_files(place / name if name else place, MODEL_FILE_SUFFIX)
    ):
        sheet = read_sheet(file).require(("id", "question_id", "correct"), CHECK_T2ISCORESCORE_REMEDY)
        found[PurePosixPath(file.path).name.removesuffix(MODEL_FILE_SUFFIX)] = partial(
            _read_graph_answers, metadata=metadata, sheet=sheet, column="correct"
        )
    if exists(place / ALL_MODELS_FILE):
        sheet = read_sheet(place / ALL_MODELS_FILE).require(KEY_COLUMNS, CHECK_T2ISCORESCORE_REMEDY)
        for name in (name for name in sheet.names if name not in KEY_COLUMNS):
            found[f"{name}_dsg"] = partial(_read_graph_answers, metadata=metadata, sheet=sheet, column=name)
    if not found:
        raise SourceError(
            f"{place.url}: expected {MODEL_FILE_FOLDERS[0]}/*{MODEL_FILE_SUFFIX} or {ALL_MODELS_FILE}, found none; "
            "check the path"
        )
    models = select_models(found, given, place.url)
    return Answered([answer for name, answers in models.items() for answer in answers(name)])


def _read_graph_answers(metric: str, metadata: Sheet, sheet: Sheet, column: str) -> Iterator[Answer]:
    files, graphs = metadata.ids("file_name"), metadata.ids("id")
    sources, questions = metadata.texts("image_source"), sheet.ids("question_id")
    parents = sheet.texts("parents" if "parents" in sheet.names else "parent_question_id")
    right = _parse_truth(sheet, column, CHECK_T2ISCORESCORE_REMEDY)
    for row, (image, graph, correct) in enumerate(zip(_find_image_rows(sheet), sheet.ids("id"), right, strict=True)):
        if image >= len(metadata) or graphs[image] != graph:
            raise SourceError(
                f"{sheet.where(row)}: {metadata.url} has no image {image} in graph {graph}; the rows are matched "
                "by position, so both files must be complete"
            )
        above = _split_parents(parents[row], "-", "-1")
        yield Answer(metric, files[image], graph, sources[image], questions[row], correct, above, sheet.where(row))


def _find_image_rows(sheet: Sheet) -> Iterator[int]:
    """Yield, for each row with an answer, the row number of its image in the metadata.

    If the sheet has no such column, a new image begins wherever the question numbers start again.
    """
    if "image_row" in sheet.names:
        yield from _list_integers(sheet, "image_row")
        return
    image, last = -1, -1
    for question in _list_integers(sheet, "question_id"):
        image += question <= last or image < 0
        yield image
        last = question


def _list_integers(sheet: Sheet, name: str) -> Iterator[int]:
    sheet.ids(name)  # raises if a cell is empty
    yield from (number for number in sheet.integers(name, CHECK_T2ISCORESCORE_REMEDY) if number is not None)


DEFAULT_TIFA_METRIC = "tifa"
CHECK_TIFA_RESULT_REMEDY = "check that this is a result of tifa_score_benchmark"


def read_tifa(place: Place, given: Sequence[str]) -> Answered:
    """Read results of TIFA: the answers of one VQA model about the images of one or more generators.

    The answers become a metric with the name in `given`, or tifa by default. Raises ConfigError if `given` has
    several names.

    Source: Yushi-Hu/tifa, the result of `tifa_score_benchmark` (sample/sample_evaluation_result.json):
    `{"question_details": {prompt_id: {question: {"id", "caption", "question", "choices", "answer", "element_type",
    "free_form_vqa", "multiple_choice_vqa", "scores": 1 or 0}}}, "caption_scores": {prompt_id: number}, ...}`. The file
    names neither the generator nor the model: the generator is named after the file.

    A question that occurs twice counts twice in `caption_scores`, but only once in `question_details`, the source of
    the answers.
    """
    if len(given) > 1:
        raise ConfigError(f"given: expected a single model, as in a TIFA result, got {', '.join(given)}; name one")
    metric = given[0] if given else DEFAULT_TIFA_METRIC
    files = list_files(place, ".json") if is_folder(place) else [place]
    if not files:
        raise SourceError(f"{place.url}: expected TIFA results (.json files), found none; check the path")
    answers: list[Answer] = []
    notes: list[str] = []
    for file in files:
        result, generator = require_object(read_json(file), file.url), PurePosixPath(file.path).stem
        if "question_details" not in result:
            fields = ", ".join(result) or "nothing"
            raise SourceError(f"{file.url}: expected question_details, found {fields}; {CHECK_TIFA_RESULT_REMEDY}")
        released = require_object(result.get("caption_scores") or {}, f"{file.url}, caption_scores")
        differing = []
        for prompt_id, asked in require_object(result["question_details"], f"{file.url}, question_details").items():
            own = list(_read_tifa_answers(metric, prompt_id, generator, asked, file.url))
            answers += own
            score = released.get(prompt_id)
            if own and isinstance(score, int | float):
                mean = sum(bool(answer.right) for answer in own) / len(own)
                differing += [] if math.isclose(score, mean, abs_tol=1e-9) else [prompt_id]
        if differing:
            notes.append(
                f"{file.url}: caption_scores of {len(differing)} prompts, first {differing[0]!r}, differ from the "
                "means of the answers in question_details: a question that occurs twice counts twice in caption_scores"
            )
    return Answered(answers, notes)


def _read_tifa_answers(metric: str, prompt_id: str, generator: str, questions: Any, url: str) -> Iterator[Answer]:
    for question, value in require_object(questions, f"{url}, {prompt_id!r}").items():
        where = f"{url}, {prompt_id!r}, {question!r}"
        score = require_object(value, where).get("scores")
        if score not in (None, 0, 1):
            raise SourceError(f"{where}: expected scores of 1 or 0, found {score!r}; {CHECK_TIFA_RESULT_REMEDY}")
        right = None if score is None else bool(score)
        yield Answer(metric, f"{prompt_id}/{generator}", prompt_id, generator, question, right, (), where)


FORMATS = Extensions[Callable[[Place, Sequence[str]], Answered]](
    "answers", {name: f"{__name__}:read_{name}" for name in ("dsg", "t2iscorescore", "tifa")}
)
"""Functions that read the answers of the given models, or of all; they raise SourceError with the file and row."""
