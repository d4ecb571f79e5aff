"""Riddles: a question a line."""

from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    PackRow,
    PackRows,
    read_lines,
    read_rows,
    the_id,
    the_text,
)


def read(place: Place, convention: Convention) -> PackRows:
    """The questions of a JSON Lines file."""

    def row(line):
        asked = WrittenQuestion("1", the_text(line.values, "asks"), ("yes", "no"), "yes")
        yield PackRow(line.where, the_id(line.values, "id"), the_text(line.values, "says"), asked)

    return read_rows(read_lines(place), row)
