"""Replies of any length are parsed in linear time, with the same result as the regular expressions of the releases.

The long replies have a million pieces, so a parser that compares all pairs of pieces would never finish.
"""

import random
import re
from collections.abc import Callable, Sequence

import pytest

from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.judges import viescore
from plumbline.operators.metrics.parsing import MAX_REPLY_CHARACTERS
from plumbline.operators.metrics.wording import ask_as_released
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.operators.models.calls import Generation, Message, Request

REPETITIONS = 1_000_000


def repair_as_released(said: str) -> str:
    def quote_value(member: re.Match[str]) -> str:
        value = member[2].strip()
        if re.match(r"^-?\d+(\.\d+)?$", value):
            value = f"[{value}]"
        elif not re.match(r"^(true|false|null)$", value, re.IGNORECASE):
            value = f'"{value}"'
        return f"{member[1]}: {value}{member[3]}"

    return re.sub(r'(".*?"):(.*?)(,|})', quote_value, re.sub(r"(\w+):", r'"\1":', said))


OBJECT_PIECES = ('"', '":', ":", ",", "}", "{", "score", "true", "1", "-2.5", " ", "é_")
READERS: dict[str, tuple[tuple[str, ...], Callable[[str], object], Callable[[str], object]]] = {
    "object": (OBJECT_PIECES, viescore.repair_json, repair_as_released),
}
LONG_REPLIES = {
    "a long key": ("a" * REPETITIONS, "a" * REPETITIONS),
    "quotes": ('"a":1,' + '"' * REPETITIONS, '"a": [1],' + '"' * REPETITIONS),
}
"""Long replies in broken JSON, each with the text to which it must be repaired, by name."""


@pytest.mark.parametrize("name", READERS)
def test_a_reply_is_parsed_as_by_the_released_regular_expressions(name: str) -> None:
    assert_read_as_released(*READERS[name])


def assert_read_as_released(
    pieces: Sequence[str], read: Callable[[str], object], expected: Callable[[str], object]
) -> None:
    """Fail unless `read` and `expected` return the same result for 3,000 random replies made of these pieces."""
    draw = random.Random("".join(pieces))
    for _ in range(3000):
        reply = "".join(draw.choices(pieces, k=draw.randrange(14)))
        assert read(reply) == expected(reply), repr(reply)


@pytest.mark.parametrize("name", LONG_REPLIES)
def test_a_long_reply_is_read_to_its_end(name: str) -> None:
    reply, repaired = LONG_REPLIES[name]
    assert viescore.repair_json(reply) == repaired


def test_a_reply_beyond_the_maximum_length_is_not_read() -> None:
    program = ask_as_released([Request((Message("user", "a"),), 9)], [len])
    next(program)
    with pytest.raises(
        UnreadableReply, match=f"at most {MAX_REPLY_CHARACTERS} characters, found {MAX_REPLY_CHARACTERS + 1}"
    ):
        program.send([Generation("a" * (MAX_REPLY_CHARACTERS + 1), True, Usage())])
