"""The work for parsing a note grows at most in proportion to its length."""

from contextlib import suppress

import pytest

from plumbline.plugins.viewer.notes import BadNote, SentNote, parse_note
from tests.work import LONG, Parts, assert_linear, fields_without_limit, parts_of, with_field

EXAMPLE = b'{"author": "ann", "text": "a star", "tag": "other"}'


def read(body: bytes) -> None:
    with suppress(BadNote):
        parse_note(body)


@pytest.mark.parametrize("shape", LONG)
@pytest.mark.parametrize("parts", [*parts_of(SentNote)])
def test_any_value_of_any_field_is_at_most_twice_the_work_at_twice_its_length(parts: Parts, shape: str) -> None:
    assert_linear(lambda n: with_field(EXAMPLE, parts, LONG[shape](n)), read)


def test_the_page_on_security_has_every_field_that_can_be_sent() -> None:
    assert not fields_without_limit([SentNote])
