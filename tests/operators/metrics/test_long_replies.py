"""A reply of any length is read in linear time, and as the expressions of the releases' own code read it.

The long replies have a million pieces: a reader that looks at each pair of pieces does not come to an end.
"""

import random
import re
from collections.abc import Callable
from contextlib import suppress

import pytest

from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.parsing import MAX_REPLY
from plumbline.operators.metrics.wordings import qwen_image_bench, unigenbench, viescore, wise
from plumbline.operators.metrics.wordings.release import ask_as_released
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.operators.models.calls import Generation, Message, Request

MANY = 1_000_000


def strip_thoughts_as_released(reply: str) -> str:
    return re.sub(r"</think>\s*", "", re.sub(r"<think>.*?</think>\s*", "", reply, flags=re.DOTALL)).strip()


def wise_as_released(reply: str) -> float | None:
    said = strip_thoughts_as_released(reply)
    named = re.search(r"\*{0,2}Score\*{0,2}\s*:?\s*([01])\b", said, re.IGNORECASE)
    alone = re.findall(r"(?m)^\s*([01])\s*$", said)
    return float(named[1]) if named else float(alone[0]) if len(alone) == 1 else None


def wise_score(reply: str) -> float | None:
    try:
        return wise._read(reply)
    except ValueError:
        return None


def repaired_as_released(said: str) -> str:
    def quoted(member: re.Match[str]) -> str:
        value = member[2].strip()
        if re.match(r"^-?\d+(\.\d+)?$", value):
            value = f"[{value}]"
        elif not re.match(r"^(true|false|null)$", value, re.IGNORECASE):
            value = f'"{value}"'
        return f"{member[1]}: {value}{member[3]}"

    return re.sub(r'(".*?"):(.*?)(,|})', quoted, re.sub(r"(\w+):", r'"\1":', said))


def find_score_as_released(reply: str) -> str | None:
    found = re.search(r"<score>(.*?)</score>", reply, re.DOTALL)
    return found[1] if found else None


THOUGHTS = ("<think>", "</think>", "</thi", "nk>", "Score", "**", ":", " ", "\n", "\r", "\u2028", "0", "1", "a")
OBJECTS = ('"', '":', ":", ",", "}", "{", "score", "true", "1", "-2.5", " ", "é_")
TAGS = ("<score>", "</score>", "<sco", "re>", "\n", "a", "[1]")
READERS: dict[str, tuple[tuple[str, ...], Callable[[str], object], Callable[[str], object]]] = {
    "thoughts": (THOUGHTS, wise._remove_thoughts, strip_thoughts_as_released),
    "score": (THOUGHTS, wise_score, wise_as_released),
    "object": (OBJECTS, viescore._repair, repaired_as_released),
    "tag": (TAGS, lambda reply: unigenbench._find_tagged(reply, "score"), find_score_as_released),
}
LONG: dict[str, tuple[Callable[[str], object], str]] = {
    "thoughts that do not end": (wise_score, "<think>" * MANY),
    "a score far away": (wise_score, "Score" + " " * MANY + "x"),
    "empty lines": (wise_score, "x" + "\n" * MANY + "x"),
    "a long key": (viescore._repair, "a" * MANY),
    "quotes": (viescore._repair, '"a":1,' + '"' * MANY),
    "tags that do not end": (lambda reply: unigenbench._find_tagged(reply, "score"), "<score>" * MANY),
    "braces": (qwen_image_bench._object, "{" * MANY),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reply_is_read_as_by_the_expressions_of_the_release(name: str) -> None:
    pieces, read, expected = READERS[name]
    draw = random.Random(name)
    for _ in range(3000):
        reply = "".join(draw.choices(pieces, k=draw.randrange(14)))
        assert read(reply) == expected(reply), repr(reply)


@pytest.mark.parametrize("name", LONG)
def test_a_long_reply_is_read_to_its_end(name: str) -> None:
    read, reply = LONG[name]
    with suppress(ValueError, UnreadableReply, RecursionError):
        read(reply)


def test_a_reply_that_is_longer_than_any_is_not_read() -> None:
    program = ask_as_released([Request((Message("user", "a"),), 9)], [len])
    next(program)
    with pytest.raises(UnreadableReply, match=f"at most {MAX_REPLY} characters, found {MAX_REPLY + 1}"):
        program.send([Generation("a" * (MAX_REPLY + 1), True, Usage())])
