"""TIFA v1.0 (Hu et al. 2023): multiple-choice questions about 4,081 prompts.

Source: Yushi-Hu/tifa, `tifa_v1.0/tifa_v1.0_question_answers.json`: a list of questions, each with the `id` and the
`caption` of its prompt, `choices`, `answer`, `element` and `element_type`. A question that stands twice counts twice,
as in `tifascore/tifa_score.py`. The file has no slips that we know of: both conventions read it alike.
"""

from collections.abc import Iterator

from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    Line,
    PackRow,
    PackRows,
    read_lines,
    read_rows,
    the_id,
    the_text,
    the_texts,
)


def read(place: Place, convention: Convention) -> PackRows:
    """The questions of tifa_v1.0_question_answers.json, in its order."""
    return read_rows(read_lines(place), _row)


def _row(line: Line) -> Iterator[PackRow]:
    values = line.values
    choices, answer = the_texts(values.get("choices"), "choices"), the_text(values, "answer")
    if answer not in choices or len(set(choices)) < 2:
        raise Refused("no_choice", f"expected the answer {answer!r} among two choices at least, found {list(choices)}")
    asked = WrittenQuestion(
        question_id=line.where,
        text=the_text(values, "question"),
        choices=choices,
        answer=answer,
        kind=values.get("element_type"),
        span=values.get("element"),
    )
    yield PackRow(line.where, the_id(values, "id"), the_text(values, "caption"), asked)
