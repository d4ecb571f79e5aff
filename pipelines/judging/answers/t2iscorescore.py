"""T2IScoreScore's answers: whether six VQA models were right about 2,840 images, by the questions of DSG and TIFA.

Source: michaelsaxon/T2IScoreScore. A folder with metadata.csv (in upstream's data/), as the protocol t2iscorescore has
it, and one or both of
- upstream's output/score_per_question/{DSG,TIFA}/<model>_mc.csv: id (the graph), question_id (from 0 for every image),
  vqa_answer, mc_answer, correct, and for DSG parent_question_id;
- ts2_dsg_correct.csv: id, image_row (an image's row in the metadata), question_id, parents, and a column of 1 or 0 per
  model.
The rows of the first follow the metadata's images; parents are joined by `-`, and `-1` is none.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.answers.answer_table import Answer, Answered, select_models, split_parents, truth_of
from plumbline.pipelines.judging.releases.error_graphs import COLUMNS, METADATA, UPSTREAM
from plumbline.pipelines.judging.releases.sheets import Sheet, exists, files_in, one_that_exists, read_sheet

FOLDERS = ("output/score_per_question/DSG", "output/score_per_question/TIFA", "")
OF_ONE = "_mc.csv"
WIDE = "ts2_dsg_correct.csv"
KEYS = ("id", "image_row", "question_id", "parents")


def read(place: Place, given: Sequence[str]) -> Answered:
    """The answers of the models asked for, by the names of their scores, such as mplug_dsg; images by their files."""
    metadata = read_sheet(one_that_exists(place, METADATA)).require(COLUMNS, UPSTREAM)
    found: dict[str, Callable[[str], Iterator[Answer]]] = {}
    for file in (file for name in FOLDERS for file in files_in(place / name if name else place, OF_ONE)):
        sheet = read_sheet(file).require(("id", "question_id", "correct"), UPSTREAM)
        found[PurePosixPath(file.path).name.removesuffix(OF_ONE)] = _reader(metadata, sheet, "correct")
    if exists(place / WIDE):
        sheet = read_sheet(place / WIDE).require(KEYS, UPSTREAM)
        found |= {f"{name}_dsg": _reader(metadata, sheet, name) for name in sheet.names if name not in KEYS}
    if not found:
        raise SourceError(f"{place.url}: expected {FOLDERS[0]}/*{OF_ONE} or {WIDE}, found none; check the path")
    wanted = select_models(found, given, place.url)
    return Answered([answer for name, answers in wanted.items() for answer in answers(name)])


def _reader(metadata: Sheet, sheet: Sheet, column: str) -> Callable[[str], Iterator[Answer]]:
    return lambda metric: _answers(metric, metadata, sheet, column)


def _answers(metric: str, metadata: Sheet, sheet: Sheet, column: str) -> Iterator[Answer]:
    files, graphs = metadata.ids("file_name"), metadata.ids("id")
    sources, questions = metadata.texts("image_source"), sheet.ids("question_id")
    parents = sheet.texts("parents" if "parents" in sheet.names else "parent_question_id")
    right = truth_of(sheet, column, UPSTREAM)
    for row, (image, graph, correct) in enumerate(zip(_images(sheet), sheet.ids("id"), right, strict=True)):
        if image >= len(metadata) or graphs[image] != graph:
            raise SourceError(
                f"{sheet.where(row)}: expected an answer about image {image} of {metadata.url} and its graph, found "
                f"graph {graph}; the rows are joined by their order, so both files must be whole"
            )
        above = split_parents(parents[row], "-", "-1")
        yield Answer(
            metric, files[image], graph, sources[image], questions[row], correct, above, sheet.where(row)
        )  # fmt: skip


def _images(sheet: Sheet) -> Iterator[int]:
    """Of every row the row of its image in the metadata: a new one begins where the questions begin anew."""
    if "image_row" in sheet.names:
        yield from _whole(sheet, "image_row")
        return
    image, last = -1, -1
    for question in _whole(sheet, "question_id"):
        image += question <= last or image < 0
        yield image
        last = question


def _whole(sheet: Sheet, name: str) -> Iterator[int]:
    sheet.ids(name)  # each row has one
    yield from (number for number in sheet.whole(name, UPSTREAM) if number is not None)
