"""Replies are parsed in linear time, with the same result as upstream's regular expressions.

The long replies repeat a text a million times, so that a parser with quadratic running time would never finish.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from plumbline.plugins.third_party_benchmarks.wordings import qwen_image_bench, unigenbench, wise
from tests.operators.metrics.test_long_replies import REPETITIONS, assert_read_as_released


def strip_thoughts_as_released(reply: str) -> str:
    return re.sub(r"</think>\s*", "", re.sub(r"<think>.*?</think>\s*", "", reply, flags=re.DOTALL)).strip()


def find_wise_score_as_released(reply: str) -> float | None:
    said = strip_thoughts_as_released(reply)
    named = re.search(r"\*{0,2}Score\*{0,2}\s*:?\s*([01])\b", said, re.IGNORECASE)
    alone = re.findall(r"(?m)^\s*([01])\s*$", said)
    return float(named[1]) if named else float(alone[0]) if len(alone) == 1 else None


def find_wise_score(reply: str) -> float | None:
    try:
        return wise._parse_reply(reply)
    except ValueError:
        return None


def find_marks(reply: str) -> Mapping[str, Any] | None:
    try:
        return qwen_image_bench._parse_object(reply)
    except ValueError:
        return None


def find_score_as_released(reply: str) -> str | None:
    found = re.search(r"<score>(.*?)</score>", reply, re.DOTALL)
    return found[1] if found else None


THOUGHT_PIECES = ("<think>", "</think>", "</thi", "nk>", "Score", "**", ":", " ", "\n", "\r", "\u2028", "0", "1", "a")
TAG_PIECES = ("<score>", "</score>", "<sco", "re>", "\n", "a", "[1]")
READERS: dict[str, tuple[tuple[str, ...], Callable[[str], object], Callable[[str], object]]] = {
    "thoughts": (THOUGHT_PIECES, wise._remove_thoughts, strip_thoughts_as_released),
    "score": (THOUGHT_PIECES, find_wise_score, find_wise_score_as_released),
    "tag": (TAG_PIECES, lambda reply: unigenbench._find_tagged_text(reply, "score"), find_score_as_released),
}
LONG_REPLIES_WITHOUT_RESULT: dict[str, tuple[Callable[[str], object], str]] = {
    "thoughts that do not end": (find_wise_score, "<think>" * REPETITIONS),
    "a score far away": (find_wise_score, "Score" + " " * REPETITIONS + "x"),
    "empty lines": (find_wise_score, "x" + "\n" * REPETITIONS + "x"),
    "tags that do not end": (lambda reply: unigenbench._find_tagged_text(reply, "score"), "<score>" * REPETITIONS),
    "braces": (find_marks, "{" * REPETITIONS),
}


@pytest.mark.parametrize("name", READERS)
def test_replies_are_parsed_in_the_same_way_as_by_upstreams_code(name: str) -> None:
    assert_read_as_released(*READERS[name])


@pytest.mark.parametrize("name", LONG_REPLIES_WITHOUT_RESULT)
def test_a_very_long_reply_is_read_to_its_end(name: str) -> None:
    read, reply = LONG_REPLIES_WITHOUT_RESULT[name]
    assert read(reply) is None
