"""Riddles, an example benchmark with its own questions, one per line of a JSON Lines file."""

from collections.abc import Iterator

from plumbline.extending import (
    Convention,
    PackRow,
    PackRows,
    Place,
    Row,
    WrittenQuestion,
    get_required_id,
    get_required_text,
    read_lines,
    read_rows,
)


def read(place: Place, convention: Convention) -> PackRows:
    """Return each question with its prompt; a line that cannot be parsed becomes an error row."""
    return read_rows(read_lines(place), _parse_question)


def _parse_question(line: Row) -> Iterator[PackRow]:
    question = WrittenQuestion("1", get_required_text(line.values, "asks"), ("yes", "no"), "yes")
    yield PackRow(line.where, get_required_id(line.values, "id"), get_required_text(line.values, "says"), question)
