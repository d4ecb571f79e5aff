"""Riddles, an example benchmark with its own questions, one per line of a JSON Lines file."""

from collections.abc import Iterator

from plumbline.extending import (
    Convention,
    PackRow,
    PackRows,
    Place,
    Row,
    WrittenQuestion,
    read_lines,
    read_rows,
    the_id,
    the_text,
)


def read(place: Place, convention: Convention) -> PackRows:
    """Return each question with its prompt; a line that cannot be parsed becomes an error row."""
    return read_rows(read_lines(place), _parse_question)


def _parse_question(line: Row) -> Iterator[PackRow]:
    question = WrittenQuestion("1", the_text(line.values, "asks"), ("yes", "no"), "yes")
    yield PackRow(line.where, the_id(line.values, "id"), the_text(line.values, "says"), question)
