"""The cost of parsing an answer grows at most in proportion to its length."""

from contextlib import suppress

import pytest

from plumbline.operators.base.errors import PlumblineError
from plumbline.plugins.rating.app import parse_sent_answer
from plumbline.plugins.rating.study import RefusedAnswer, SentAnswer
from tests.work import LONG_VALUES, FieldPath, assert_linear, find_fields_without_limit, list_field_paths, set_field

EXAMPLE_ANSWER = b'{"task_id": "0000000000000000", "version": 1, "rater": "ann", "answer": 4, "seconds": 2.5}'


def parse_answer_body(body: bytes) -> None:
    with suppress(PlumblineError, RefusedAnswer):
        parse_sent_answer(body)


@pytest.mark.parametrize("shape", LONG_VALUES)
@pytest.mark.parametrize("parts", [*list_field_paths(SentAnswer)])
def test_parsing_a_field_of_twice_the_length_takes_at_most_twice_the_work(parts: FieldPath, shape: str) -> None:
    assert_linear(lambda n: set_field(EXAMPLE_ANSWER, parts, LONG_VALUES[shape](n)), parse_answer_body)


def test_the_security_page_lists_every_field_that_can_be_sent() -> None:
    assert not find_fields_without_limit([SentAnswer])
