"""Gecko's two writing steps, its reply parsers and its score follow the paper (gecko.txt, section 5 and appendix C)."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.metrics.metric import NO_QUESTIONS_ERROR, Answered
from plumbline.operators.metrics.parsing import TextSpan, collapse_spaces
from plumbline.operators.metrics.questions import gecko, tifa
from plumbline.operators.metrics.questions.gecko import GeckoConfig, Span, read_questions, read_spans
from plumbline.operators.metrics.writing import UnreadableReply, WrittenQuestion
from plumbline.operators.stages.entailment import write_hypothesis
from tests.operators.metrics.scripted import list_examples, run

SPANS_REPLY = "A {1}[red colored, color, 1.0] {2}[dog, entity, 0.9] on {3}[a, counting, 0.0] {4}[mat, entity, 1.0]"
QUESTIONS_REPLY = """About {1}:
Q: what color is the dog?
Choices: blue, red, green
A: red
About {2}:
Q: is there a dog?
Choices: yes, no
A: yes
Q: is there an animal?
Choices: yes, no
A: yes
About {4}:
Q: is there a mat?
Choices: yes, no
A: yes"""
PROMPT = "A red colored dog on a mat"


def make_question(choices: Sequence[str] = ("yes", "no"), answer: str = "yes") -> WrittenQuestion:
    return WrittenQuestion("1", "is it?", tuple(choices), answer)


def make_answered_question(*probabilities: float, answer: str = "a", p_entail: float | None = None) -> Answered:
    """Return a question whose choices a, b, ... have these probabilities; the EOS token contributes a factor of 0.5."""
    logprobs = tuple((math.log(p) / 2, math.log(p) / 2) for p in probabilities)
    return Answered(make_question("abcdefgh"[: len(probabilities)], answer), logprobs, p_entail=p_entail)


def test_a_prompt_is_labelled_before_questions_are_written() -> None:
    written, rounds = run(GeckoConfig(seed=4).write(PROMPT), [SPANS_REPLY], [QUESTIONS_REPLY])
    assert written == [
        WrittenQuestion("1", "what color is the dog?", ("blue", "red", "green"), "red", "color", "red colored", 2, 13),
        WrittenQuestion("2", "is there a dog?", ("yes", "no"), "yes", "entity", "dog", 14, 17),
        WrittenQuestion("3", "is there an animal?", ("yes", "no"), "yes", "entity", "dog", 14, 17),
        WrittenQuestion("4", "is there a mat?", ("yes", "no"), "yes", "entity", "mat", 23, 26),
    ]
    [first], [second] = rounds
    assert first.messages[0].text == (
        f"{gecko.SPAN_FORMS['text'].instructions}Description:\n{PROMPT}\n"
        "The visually groundable words and their scores are labelled below:\n"
    )
    assert second.messages[0].text == (
        f"{gecko.QUESTION_FORMS['text'].instructions}Description:\n{PROMPT}\n"
        "The visually groundable words are labelled below:\n"
        "A {1}[red colored, color] {2}[dog, entity] on {3}[a, counting] {4}[mat, entity]\n"
        "Generated questions and answers are below:\n"
    )
    assert {request.seed for request in (first, second)} == {4}
    assert {request.stop for request in (first, second)} == {("\nDescription:",)}


def test_the_examples_of_the_instructions_have_the_form_that_is_read() -> None:
    heading = "The visually groundable words and their scores are labelled below:"
    for prompt, reply in list_examples(gecko.SPAN_FORMS["text"].instructions, heading):
        spans = read_spans(prompt, reply)
        assert len(spans) == reply.count("{")
        assert all(span.position and span.kind for span in spans)
    found = [Span(str(n), "entity", 1.0, None) for n in range(1, 6)]
    for _, reply in list_examples(
        gecko.QUESTION_FORMS["text"].instructions, "Generated questions and answers are below:"
    ):
        assert [question.span for question in read_questions(found, reply)] == list("12345")


def test_words_below_the_threshold_are_not_asked_about() -> None:
    _, rounds = run(
        GeckoConfig(min_groundable=0.95).write(PROMPT), [SPANS_REPLY], ["About {2}:\nQ: is there a mat?\nA: yes"]
    )
    assert "A {1}[red colored, color] dog on a {2}[mat, entity]\n" in rounds[1][0].messages[0].text


def test_a_prompt_without_any_visible_word_has_no_questions() -> None:
    assert run(GeckoConfig(min_groundable=0.5).write("love"), ["{1}[love, other, 0.1]"]).result == []


def test_without_coverage_questions_are_written_as_in_tifa() -> None:
    reply = "About dog (animal):\nQ: is there a dog?\nChoices: yes, no\nA: yes"
    written, rounds = run(GeckoConfig(coverage=False).write("a dog"), [reply])
    assert rounds == run(tifa.TifaConfig(filter=False).write("a dog"), [reply]).rounds
    assert written == [WrittenQuestion("1", "is there a dog?", ("yes", "no"), "yes", "animal", "dog", 2, 5)]


# Step 1: labels.


@pytest.mark.parametrize(
    "reply",
    [
        "{1}[red, color, 1.0] {2}[dog, entity, 1.0]",
        "(1)[red, color, 1.0] (2)[dog, entity, 1.0]",
        "[1][red, color, 1.0] [2][dog, entity, 1.0]",
        "1[red, color, 1.0] 2[dog, entity, 1.0]",
        "1. [red, color, 1.0]\n2. [dog, entity, 1.0]",
        "{ 1 } [red, color, 1] { 2 } [dog,\nentity, 1.]",
        "```\n{1}[red , Color, 1.0] {2}[dog, entity, score: 1.0]\n```\nThere are two labels.",
        "Sure! **{1}[red, color, 1.0]** **{2}[dog, entity, 1.0]**",
        "<think>{1}[dog, entity, 1.0]</think>{1}[red, color, 1.0] {2}[dog, entity, 1.0]",
        "{1}[red, color] {2}[dog, entity]",
        "[red, color, 1.0] [dog, entity, 1.0]",
        "{1}[red, color, 1.0] {2}[dog, entity, 1.0]\n\n{1}[red, color, 1.0] {2}[dog, entity, 1.0]",
    ],
)
def test_labels_are_read_in_every_form(reply: str) -> None:
    assert read_spans("a red dog", reply) == [
        Span("red", "color", 1.0, TextSpan(2, 5)),
        Span("dog", "entity", 1.0, TextSpan(6, 9)),
    ]


def test_words_of_a_label_may_contain_commas_and_brackets() -> None:
    reply = "{1}[a sign, old, object, 0.7] {2}[says [exit], text, 1.0]"
    assert read_spans("A sign, old, says [exit]", reply) == [
        Span("sign, old", "object", 0.7, TextSpan(2, 11))._replace(words="A sign, old", position=TextSpan(0, 11)),
        Span("says [exit]", "text", 1.0, TextSpan(13, 24)),
    ]


def test_a_repeated_word_is_found_at_the_position_of_its_label() -> None:
    prompt = "a red car next to a red wall and a red door"
    reply = "a red car next to a {1}[red, color, 1.0] wall and {2}[a, counting, 1.0] {3}[red, color, 1.0] door"
    assert [span.position for span in read_spans(prompt, reply)] == [
        TextSpan(20, 23),
        TextSpan(33, 34),
        TextSpan(35, 38),
    ]


def test_words_that_are_not_in_the_prompt_have_no_position() -> None:
    assert read_spans("a dog", "{1}[cat, animal, 1.0]") == [Span("cat", "animal", 1.0, None)]


def test_too_many_labels_are_refused() -> None:
    with pytest.raises(UnreadableReply, match="at most 200 labels, found 201"):
        read_spans("a", " ".join(f"{{{n}}}[w{n}, entity, 1.0]" for n in range(201)))


WORD = st.text("abcdefgéß漢ı", min_size=1, max_size=6)
WORDS = st.lists(WORD, min_size=1, max_size=12)
BRACES = st.sampled_from(["{%d}", "(%d)", "[%d]", "<%d>", "{ %d } "])


@st.composite
def draw_labelled_reply(draw: st.DrawFn) -> tuple[str, str, list[tuple[int, int]]]:
    """Generate a prompt, a reply that labels some of the prompt's words, and the positions of these words."""
    words = draw(WORDS)
    marked = [draw(st.booleans()) for _ in words]
    marked[draw(st.integers(0, len(words) - 1))] = True
    braces, case = draw(BRACES), draw(st.sampled_from([str, str.upper, str.lower]))
    prompt, reply, places = "", draw(st.sampled_from(["", "Here it is:\n", "```\n"])), []
    for word, mark in zip(words, marked, strict=True):
        start, end = len(prompt), len(prompt) + len(word)
        prompt += word + draw(st.sampled_from([" ", "  ", "\n", ", "]))
        if mark:
            places.append((start, end))
            written = case(word) if len(case(word)) == len(word) else word
            word = f"{braces % len(places)}[{written}, entity, 0.5]"
        reply += word + prompt[end:]
    return prompt, reply, places


@given(draw_labelled_reply())
def test_every_label_of_a_faithful_reply_is_found_at_its_position(case: tuple[str, str, list[tuple[int, int]]]) -> None:
    prompt, reply, places = case
    spans = read_spans(prompt, reply)
    assert [span.position for span in spans] == [TextSpan(*place) for place in places]
    assert [span.words for span in spans] == [prompt[start:end] for start, end in places]


@pytest.mark.parametrize("unit", ["{1}[", "{1}[[", "{1}[[a]", "[a", "1 ", "{1", "[[]", "a,", "{1}[a, b, 0"])
def test_a_long_hostile_reply_is_read_quickly(unit: str) -> None:
    with pytest.raises(UnreadableReply):
        read_spans("a dog", unit * (60_000 // len(unit)) + "x" * 300)


# Step 2: questions.

LABELLED_SPANS = [Span("red", "color", 1.0, TextSpan(2, 5)), Span("dog", "entity", 1.0, None)]


@pytest.mark.parametrize(
    "about",
    ["{2}", "(2)", "[2]", "2", "{2}[dog, entity]", "{2} (dog)", "dog", "Dog (entity)", "{2} dog"],
)
def test_a_question_belongs_to_the_label_above_it(about: str) -> None:
    read = read_questions(LABELLED_SPANS, f"About {about}:\nQ: is there a dog?\nChoices: yes, no\nA: yes")
    assert read == [WrittenQuestion("1", "is there a dog?", ("yes", "no"), "yes", "entity", "dog")]


@pytest.mark.parametrize("about", ["About {3}:\n", "About {0}:\n", "About cats:\n", ""])
def test_a_question_below_an_unknown_label_has_no_span(about: str) -> None:
    read = read_questions(LABELLED_SPANS, f"{about}Q: is there a dog?\nA: yes")
    assert read == [WrittenQuestion("1", "is there a dog?", ("yes", "no"), "yes")]


def test_a_question_may_be_on_one_line() -> None:
    read = read_questions(
        LABELLED_SPANS, "About {1}: Q: what color? Choices: red, blue A: red\nAbout {2}: Q: a dog? A: yes"
    )
    assert [(one.text, one.choices, one.answer, one.span) for one in read] == [
        ("what color?", ("red", "blue"), "red", "red"),
        ("a dog?", ("yes", "no"), "yes", "dog"),
    ]


# The score.


def test_a_questions_score_is_the_probability_of_its_answer_among_the_choices() -> None:
    scored = GeckoConfig().combine_answers(
        [make_answered_question(0.2, 0.05), make_answered_question(0.3, 0.1, 0.6, answer="c")]
    )
    assert [one.score for one in scored.elements] == pytest.approx([0.8, 0.6])
    assert [one.given for one in scored.elements] == ["a", "c"]
    assert scored.score == pytest.approx(0.7)


def test_likelihood_nll_normalises_negative_logs() -> None:
    scored = GeckoConfig(likelihood="nll").combine_answers([make_answered_question(math.exp(-1), math.exp(-3))])
    assert scored.score == pytest.approx(0.25)


def test_without_normalisation_the_likeliest_choice_must_be_the_answer() -> None:
    scored = GeckoConfig(normalise=False).combine_answers(
        [make_answered_question(0.2, 0.3), make_answered_question(0.02, 0.01), make_answered_question(0.1, 0.1)]
    )
    assert [one.score for one in scored.elements] == [0.0, 1.0, 1.0]
    assert [one.given for one in scored.elements] == ["b", "a", "a"]


@pytest.mark.parametrize(("reduction", "share"), [("product", 0.8), ("mean", 2 / 3), ("first", 2 / 3)])
def test_the_reduction_equals_that_of_vqascore(reduction: str, share: float) -> None:
    scored = GeckoConfig(reduction=reduction).combine_answers([make_answered_question(0.4, 0.1)])  # type: ignore[arg-type]
    assert scored.score == pytest.approx(share)


def test_long_answers_do_not_underflow() -> None:
    one = Answered(make_question("ab", "a"), ((-1000.0, -1000.0), (-1000.0, -1001.0)))
    assert GeckoConfig().combine_answers([one]).score == pytest.approx(1 / (1 + math.exp(-1)))


@pytest.mark.parametrize("likelihood", ["probability", "nll"])
def test_equally_certain_or_impossible_choices_have_equal_shares(likelihood: str) -> None:
    metric = GeckoConfig(likelihood=likelihood)  # type: ignore[arg-type]
    assert metric.combine_answers([make_answered_question(1.0, 1.0)]).score == 0.5


@given(st.lists(st.floats(-800, 0), min_size=2, max_size=6), st.sampled_from(["probability", "nll"]))
def test_the_shares_of_all_choices_add_up(logs: list[float], likelihood: str) -> None:
    metric = GeckoConfig(likelihood=likelihood)  # type: ignore[arg-type]
    choices = "abcdef"[: len(logs)]
    token_logprobs = tuple((log,) for log in logs)
    shares = [
        metric.combine_answers([Answered(make_question(choices, one), token_logprobs)]).score or 0.0 for one in choices
    ]
    assert sum(shares) == pytest.approx(1.0)
    assert all(0.0 <= share <= 1.0 for share in shares)


def test_questions_that_the_prompt_does_not_entail_are_listed_but_do_not_count() -> None:
    ones = [
        make_answered_question(0.9, 0.1, p_entail=0.0049),
        make_answered_question(0.6, 0.4, p_entail=0.005),
        make_answered_question(0.8, 0.2),
    ]
    scored = GeckoConfig().combine_answers(ones)
    assert [one.score for one in scored.elements] == [None, pytest.approx(0.6), pytest.approx(0.8)]
    assert (scored.score, scored.n_questions) == (pytest.approx(0.7), 2)
    assert GeckoConfig(nli=None).combine_answers(ones).n_questions == 3
    assert GeckoConfig(threshold=0.7).combine_answers(ones).n_questions == 1


def test_an_image_without_a_question_left_has_an_error_and_no_score() -> None:
    scored = GeckoConfig().combine_answers([make_answered_question(0.9, 0.1, p_entail=0.0)])
    assert (scored.score, scored.error) == (None, NO_QUESTIONS_ERROR)
    assert GeckoConfig().combine_answers([]).error == NO_QUESTIONS_ERROR


# The hypothesis.

QUESTION_MARKS = "?" * 1_000_000


@pytest.mark.parametrize(
    ("asked", "answer", "said"),
    [
        ("is there a man?", "yes", "There is a man."),
        ("Are there several cows in the image?", "Yes", "There are several cows."),
        ("is there a man in this picture ?", "no", "It is not true that there is a man."),
        ("Is there NASA?", "yes", "There is NASA."),
        ("what color is the dog?", "red", 'The answer to the question "what color is the dog?" is red.'),
        ("is the man happy?", "yes", 'The answer to the question "is the man happy?" is yes.'),
        ("is there a man??", "yes", "There is a man."),
        pytest.param(
            f"is there a{QUESTION_MARKS} man", "yes", f"There is a{QUESTION_MARKS} man.", id="many question marks"
        ),
        ("is there\na man?", " maybe\n", 'The answer to the question "is there a man?" is maybe.'),
    ],
)
def test_a_question_and_its_answer_become_a_statement(asked: str, answer: str, said: str) -> None:
    assert write_hypothesis(asked, answer) == said


@given(st.text() | st.text().map(lambda text: f"is there {text}?"), st.text() | st.sampled_from(["yes", "no"]))
def test_any_question_and_answer_become_one_line_that_ends_in_a_full_stop(asked: str, answer: str) -> None:
    said = write_hypothesis(asked, answer)
    assert said.endswith(".")
    assert said == collapse_spaces(said)
    assert write_hypothesis(asked, answer) == said
