"""The worst answer to a question about a word decides how the word is highlighted; the text itself never changes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.report.marked_words import (
    MAX_CHARACTERS,
    MAX_QUESTIONS,
    judge_answer,
    mark_prompt,
    mark_questions,
)


def make_element(start: int | None, end: int | None, score: float | None, given: str = "no") -> dict[str, Any]:
    return {"question_id": "1", "text": "so?", "span": "x", "start": start, "end": end, "wanted": "yes", "given": given,
            "score": score}  # fmt: skip


@pytest.mark.parametrize(
    ("score", "given", "state"),
    [
        (0.9, "yes", "right"),
        (0.6, "yes", "unsure"),
        (0.6, "no", "unsure"),
        (0.4, "no", "wrong"),
        (0.4, "yes", "unsure"),
        (0.0, "yes", "wrong"),
        (None, "yes", "left out"),
    ],
)
def test_a_question_is_wrong_if_the_image_does_not_show_it(score: float | None, given: str, state: str) -> None:
    assert judge_answer(score, "yes", given) == state


def test_characters_with_several_questions_show_the_worst_of_them() -> None:
    marked = mark_prompt(
        "a red star", [make_element(2, 10, 0.9, "yes"), make_element(6, 10, 0.1), make_element(0, 1, None)]
    )
    assert [(one.text, one.state) for one in marked] == [("a ", None), ("red ", "right"), ("star", "wrong")]
    assert marked[2].note == "so? yes (0.90)\nso? no (0.10)"
    assert [(one.score, one.heat) for one in marked] == [(None, 0), (0.9, 10), (0.1, 90)]


ELEMENTS = st.builds(
    make_element, st.none() | st.integers(-5, 40), st.none() | st.integers(-5, 40), st.none() | st.floats(0, 1)
)


@given(st.text(max_size=30), st.lists(ELEMENTS, max_size=6))
def test_marked_pieces_join_to_the_prompt_at_any_positions(prompt: str, elements: list[dict[str, Any]]) -> None:
    assert "".join(one.text for one in mark_prompt(prompt, elements)) == prompt


def test_a_very_long_prompt_is_truncated_and_shown_with_its_length() -> None:
    shown = "".join(one.text for one in mark_prompt("x" * 20_000, [make_element(19_000, 19_500, 0.1)]))
    assert shown == "x" * MAX_CHARACTERS + "… (20,000 characters)"


def test_wrong_questions_come_first_and_the_list_is_bounded() -> None:
    asked = mark_questions([make_element(0, 1, 0.9, "yes")] * 40 + [make_element(0, 1, 0.1)])
    assert len(asked) == MAX_QUESTIONS and asked[0].state == "wrong"
