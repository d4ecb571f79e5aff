"""The cost of parsing a note grows at most in proportion to its length."""

from contextlib import suppress

import pytest

from plumbline.plugins.viewer.notes import BadNote, SentNote, parse_note
from tests.work import LONG_VALUES, FieldPath, assert_linear, find_fields_without_limit, list_field_paths, set_field

EXAMPLE_NOTE = b'{"author": "ann", "text": "a star", "tag": "other"}'


def read(body: bytes) -> None:
    with suppress(BadNote):
        parse_note(body)


@pytest.mark.parametrize("shape", LONG_VALUES)
@pytest.mark.parametrize("parts", [*list_field_paths(SentNote)])
def test_parsing_a_value_twice_as_long_takes_at_most_twice_the_work(parts: FieldPath, shape: str) -> None:
    assert_linear(lambda n: set_field(EXAMPLE_NOTE, parts, LONG_VALUES[shape](n)), read)


def test_the_security_page_states_the_limit_of_every_field() -> None:
    assert not find_fields_without_limit([SentNote])
