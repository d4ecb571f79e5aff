"""TIFA's questions, filter and score follow docs/conventions.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.metrics.metric import NO_QUESTIONS_ERROR, Answered
from plumbline.operators.metrics.parsing import match_choice
from plumbline.operators.metrics.questions import tifa
from plumbline.operators.metrics.questions.tifa import TifaConfig, compute_free_f1, read_questions
from plumbline.operators.metrics.writing import WrittenQuestion
from tests.operators.metrics.scripted import list_examples, run

PROMPT = "Two red apples"
QUESTIONS_REPLY = """About two (counting):
Q: how many apples are there?
Choices: one, two, three, four
A: two
About red (color):
Q: what color are the apples?
Choices: green, red, blue, brown
A: red
About apples (food):
Q: are there apples?
Choices: yes, no
A: yes
Q: Are there apples
Choices: yes, no
A: no"""


def test_one_reply_has_all_questions_about_a_prompt() -> None:
    written, rounds = run(TifaConfig(filter=False).write(PROMPT), [QUESTIONS_REPLY])
    assert written[:3] == [
        WrittenQuestion(
            "1", "how many apples are there?", ("one", "two", "three", "four"), "two", "counting", "Two", 0, 3
        ),
        WrittenQuestion(
            "2", "what color are the apples?", ("green", "red", "blue", "brown"), "red", "color", "red", 4, 7
        ),
        WrittenQuestion("3", "are there apples?", ("yes", "no"), "yes", "food", "apples", 8, 14),
    ]
    assert rounds[0][0].messages[0].text == (
        f"{tifa.QUESTION_FORMS['text'].instructions}Description:\n{PROMPT}\nQuestions and answers are below:\n"
    )
    assert rounds[0][0].stop == ("\nDescription:",)


def test_the_examples_of_the_instructions_have_the_form_that_is_read() -> None:
    for prompt, reply in list_examples(tifa.QUESTION_FORMS["text"].instructions, "Questions and answers are below:"):
        questions = read_questions(prompt, reply)
        assert len(questions) == reply.count("Q:")
        assert all(question.start is not None and question.kind for question in questions)


RIGHT_ANSWERS = ["two", "2", "red", "The red ones", "yes"]


def run_filter(*replies: str) -> list[bool]:
    """Return one boolean per written question: True if the filter keeps it after these replies to its checks."""
    written, rounds = run(TifaConfig().write(PROMPT), [QUESTIONS_REPLY], replies)
    assert len(rounds[1]) == 5
    return [question.keep for question in written]


def test_the_filter_asks_each_question_with_and_without_its_choices() -> None:
    _, rounds = run(TifaConfig(seed=2).write(PROMPT), [QUESTIONS_REPLY], RIGHT_ANSWERS)
    texts = [request.messages[0].text for request in rounds[1]]
    about = f"Description:\n{PROMPT}\nQuestion:\nhow many apples are there?\n"
    assert texts[0] == f"{tifa.CHOICE_FORMS['text'].instructions}{about}Choices:\none, two, three, four\nAnswer:\n"
    assert texts[1] == f"{tifa.ANSWER_FORMS['text'].instructions}{about}Answer:\n"
    assert texts[4].endswith("Question:\nare there apples?\nChoices:\nyes, no\nAnswer:\n")
    assert {request.seed for request in rounds[1]} == {2}


def test_questions_answered_right_from_the_prompt_are_kept_and_repeats_are_not() -> None:
    assert run_filter("two", "Two", "Red.", "red", "Yes, there are.") == [True, True, True, False]


@pytest.mark.parametrize(
    ("index", "reply", "kept_then"),
    [
        (0, "three", [False, True, True, False]),
        (0, "B", [True, True, True, False]),
        (1, "three", [False, True, True, False]),
        (2, "blue", [True, False, True, False]),
        (3, "unknown", [True, False, True, False]),
        (4, "no", [True, True, False, False]),
        (4, "", [True, True, False, False]),
        (4, "Answer: **yes**", [True, True, True, False]),
    ],
)
def test_a_wrong_answer_drops_only_its_question(index: int, reply: str, kept_then: list[bool]) -> None:
    replies = ["two", "two", "red", "red", "yes"]
    replies[index] = reply
    assert run_filter(*replies) == kept_then


@pytest.mark.parametrize(("min_f1", "keep"), [(0.66, True), (0.67, False)])
def test_the_f1_of_a_free_answer_must_exceed_the_threshold(min_f1: float, keep: bool) -> None:
    reply = "About red (color):\nQ: what color?\nChoices: red, blue\nA: red"
    written, _ = run(TifaConfig(min_f1=min_f1).write(PROMPT), [reply], ["red", "red ones"])
    assert [question.keep for question in written] == [keep]


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("red", "red", 1.0),
        ("Red.", "red", 1.0),
        ("a red dog", "red dog", 0.8),
        ("the dog", "a dog", 0.5),
        ("the dog dog", "dog dog", 0.8),
        ("bow tie", "bow-tie", 0.0),
        ("t-shirt", "t-shirt", 0.0),
        ("tshirt", "t-shirt", 0.0),
        ("twenty one", "21", 1.0),
        ("There are two hundred and forty dogs.", "240", 1.0),
        ("three thousand", "3000", 1.0),
        ("03", "3", 1.0),
        ("twenty-one", "21", 0.0),
        ("2", "two", 0.0),
        ("two", "two", 1.0),
        ("no dogs", "0", 0.0),
        ("", "red", 0.0),
    ],
)
def test_a_free_answer_is_compared_as_in_the_release(answer: str, gold: str, f1: float) -> None:
    assert compute_free_f1(answer, gold) == pytest.approx(f1)


def test_the_right_answer_matches_regardless_of_case() -> None:
    assert compute_free_f1("bow tie", "Bow Tie") == 1.0


def test_without_the_filter_questions_are_neither_kept_nor_dropped() -> None:
    written, _ = run(TifaConfig(filter=False).write(PROMPT), [QUESTIONS_REPLY])
    assert [question.keep for question in written] == [None] * 4


@pytest.mark.parametrize(
    ("about", "kind", "span", "start"),
    [
        ("About red apples (Food):", "food", "red apples", 4),
        ("**About** red apples (food)", "food", "red apples", 4),
        ("About apples:", None, "apples", 8),
        ("About cats (animal):", "animal", "cats", None),
        ("About (food):", "food", None, None),
        ("", None, None, None),
    ],
)
def test_the_words_and_type_of_a_question_are_read_from_the_line_above(
    about: str, kind: str | None, span: str | None, start: int | None
) -> None:
    [read] = read_questions(PROMPT, f"{about}\nQ: are there any?\nA: yes")
    assert (read.kind, read.span, read.start) == (kind, span, start)


def test_a_word_that_occurs_twice_is_found_in_both_places() -> None:
    reply = "About a (counting):\nQ: one cat?\nA: yes\nAbout A (counting):\nQ: one dog?\nA: yes"
    assert [one.start for one in read_questions("a cat, a dog", reply)] == [0, 7]


@pytest.mark.parametrize(
    ("reply", "choices", "chosen"),
    [
        ("red", ("red", "blue"), "red"),
        (" Red.\n", ("red", "blue"), "red"),
        ('"bow  tie"', ("Bow tie", "hat"), "Bow tie"),
        ("dark red", ("red", "blue"), None),
        ("A", ("red", "blue"), None),
        ("", ("red", "blue"), None),
        ("Yes, there is a dog.", ("yes", "no"), "yes"),
        ("no", ("Yes", "No"), "No"),
        ("Yes there is", ("yes", "no"), None),
        ("Red, or so", ("red", "blue"), None),
    ],
)
def test_a_reply_matches_a_choice_regardless_of_case_and_punctuation(
    reply: str, choices: tuple[str, ...], chosen: str | None
) -> None:
    assert match_choice(reply, choices) == chosen


@given(st.text(), st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_a_match_is_always_a_choice_and_a_choice_matches_itself(reply: str, choices: list[str]) -> None:
    assert match_choice(reply, choices) in [None, *choices]
    assert match_choice(choices[0], choices) == choices[0]


def make_answered_question(chosen: str | None, *, keep: bool | None = None) -> Answered:
    question = WrittenQuestion("1", "what color?", ("red", "blue"), "red", keep=keep)
    return Answered(question, reply="some words", chosen=chosen)


def test_the_score_is_the_fraction_of_kept_questions_answered_right() -> None:
    ones = [
        make_answered_question("red"),
        make_answered_question("blue", keep=True),
        make_answered_question("red", keep=True),
        make_answered_question("red", keep=False),
    ]
    scored = TifaConfig().combine_answers(ones)
    assert [one.score for one in scored.elements] == [1.0, 0.0, 1.0, None]
    assert [one.given for one in scored.elements] == ["red", "blue", "red", "red"]
    assert scored.score == pytest.approx(2 / 3)


def test_without_a_kept_question_there_is_an_error() -> None:
    assert TifaConfig().combine_answers([make_answered_question("red", keep=False)]).error == NO_QUESTIONS_ERROR


def test_a_dropped_question_has_no_likelihoods_and_does_not_affect_the_others() -> None:
    """A model that only compares choices is never asked a question that the filter dropped."""
    question = WrittenQuestion("1", "is it red?", ("yes", "no"), "yes")
    asked = Answered(question, ((-0.1, 0.0), (-2.4, 0.0)))
    dropped = Answered(question._replace(question_id="2", keep=False))
    scored = TifaConfig(answers="likelihood").combine_answers([asked, dropped])
    assert (scored.score, scored.n_questions) == (1, 1)
    assert [element.given for element in scored.elements or ()] == ["yes", None]
