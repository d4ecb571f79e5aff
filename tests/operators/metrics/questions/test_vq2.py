"""VQ2's phrases, questions, round trip and score follow docs/conventions.md."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.metric import NO_QUESTIONS_ERROR, Answered
from plumbline.operators.metrics.parsing import TextSpan
from plumbline.operators.metrics.questions import vq2
from plumbline.operators.metrics.questions.vq2 import Vq2Config, read_question, read_spans
from plumbline.operators.metrics.writing import UnreadableReply, WrittenQuestion
from tests.operators.metrics.scripted import list_examples, run

PROMPT = "Two red apples"
YES_NO = ("yes", "no")
REPLY_ROUNDS = (["two\nred apples"], ["How many apples are there?", "What is there?"], ["2", "a tree"])


def test_each_phrase_gets_a_question_that_is_checked_by_a_round_trip() -> None:
    written, rounds = run(Vq2Config().write(PROMPT), *REPLY_ROUNDS)
    texts = [
        f"is 'Two' true for '{REPLY_ROUNDS[1][0]}' in this image?",
        f"is 'red apples' true for '{REPLY_ROUNDS[1][1]}' in this image?",
    ]
    assert written == [
        WrittenQuestion("1", texts[0], YES_NO, "yes", None, "Two", 0, 3, keep=True),
        WrittenQuestion("2", texts[1], YES_NO, "yes", None, "red apples", 4, 14, keep=False),
    ]
    about = f"Description:\n{PROMPT}\n"
    assert (
        rounds[0][0].messages[0].text
        == f"{vq2.STEPS_BY_CONVENTION['paper'].phrases['text'].instructions}{about}Phrases:\n"
    )
    assert rounds[1][0].messages[0].text == f"{vq2.QUESTION_FORMS['text'].instructions}{about}Phrase:\nTwo\nQuestion:\n"
    assert (
        rounds[2][1].messages[0].text
        == f"{vq2.ANSWER_FORMS['text'].instructions}{about}Question:\n{REPLY_ROUNDS[1][1]}\nAnswer:\n"
    )


def test_the_release_samples_five_questions_for_each_phrase_and_all_of_them_count() -> None:
    metric = Vq2Config(convention="released", temperature=1.0, seed=3)
    drawn = ["What is there?", "What?", "What is there?", "Hm.", "How?"]
    written, rounds = run(metric.write(PROMPT), ["Two red apples"], drawn, ["Hm."])
    before, behind = 'Question: is "Two red apples" true for "', '" in this image? Answer:'
    assert [one.text for one in written] == [f"{before}{text}{behind}" for text in drawn if text != "Hm."]
    assert {one.keep for one in written} == {None}
    assert rounds[0][0].messages[0].text.startswith(vq2.STEPS_BY_CONVENTION["released"].phrases["text"].instructions)
    assert rounds[0][0].temperature == 0.0, "phrases are generated greedily"
    assert [(one.temperature, one.seed) for one in rounds[1]] == [(1.0, 15 + index) for index in range(5)]


def test_sampling_questions_needs_a_temperature() -> None:
    with pytest.raises(ConfigError, match=r"vq2 temperature: .* convention=released draws 5 questions"):
        Vq2Config(convention="released")


def test_the_phrases_in_the_instructions_occur_in_their_descriptions() -> None:
    for instructions in (
        vq2.STEPS_BY_CONVENTION["paper"].phrases["text"].instructions,
        vq2.STEPS_BY_CONVENTION["released"].phrases["text"].instructions,
    ):
        for one in list_examples(instructions, "Phrases:"):
            assert len(read_spans(one.prompt, one.reply)) == len(one.reply.splitlines())


@pytest.mark.parametrize(("min_f1", "keep"), [(0.66, True), (0.67, False)])
def test_the_f1_of_an_answer_must_reach_the_threshold(min_f1: float, keep: bool) -> None:
    written, _ = run(Vq2Config(min_f1=min_f1).write(PROMPT), ["apples"], ["What is there?"], ["red apples"])
    assert [question.keep for question in written] == [keep]


def test_a_phrase_whose_question_stays_unreadable_is_left_out() -> None:
    written, rounds = run(Vq2Config().write(PROMPT), ["two\nred"], ["Hm.", "What color?"], ["Hm."], ["red"])
    assert [(one.question_id, one.span) for one in written] == [("1", "red")]
    assert [len(requests) for requests in rounds] == [1, 2, 1, 1]


def test_without_any_question_the_prompt_is_refused() -> None:
    with pytest.raises(UnreadableReply, match='ends with "\\?"'):
        run(Vq2Config().write(PROMPT), ["two"], ["Hm."], ["Hm."])


@pytest.mark.parametrize(
    "reply",
    [
        "two\nred apples",
        "Here are the phrases:\n- Two\n- red apples\n",
        "1. two\n2. red apples\n3. green pears",
        "1 | two\n2 | Red Apples",
        "two, red apples",
        '"two"\n**red apples**\ntwo.',
        "```\ntwo\nred  apples\n```",
    ],
)
def test_phrases_are_read_in_every_form(reply: str) -> None:
    assert read_spans(PROMPT, reply) == [TextSpan(0, 3), TextSpan(4, 14)]


@pytest.mark.parametrize("reply", ["", "I cannot.", "green pears"])
def test_a_reply_without_a_phrase_of_the_prompt_is_refused(reply: str) -> None:
    with pytest.raises(UnreadableReply, match="no line is a phrase"):
        read_spans(PROMPT, reply)


def test_too_many_phrases_are_refused() -> None:
    words = [f"w{n}" for n in range(101)]
    with pytest.raises(UnreadableReply, match="at most 100 phrases, found 101"):
        read_spans(" ".join(words), "\n".join(words))


@pytest.mark.parametrize(
    "reply", ["What color?", "Question: What color?", "Sure!\n**Q1:** What color? (red)", '"What color?"']
)
def test_a_question_is_read_in_every_form(reply: str) -> None:
    assert read_question(reply) == "What color?"


@given(st.lists(st.text("abcdefé漢", min_size=2, max_size=6), min_size=1, max_size=8), st.data())
def test_every_listed_phrase_of_the_prompt_is_found(words: list[str], data: st.DataObject) -> None:
    prompt = " ".join(words)
    start = data.draw(st.integers(0, len(words) - 1))
    phrase = " ".join(words[start : data.draw(st.integers(start + 1, len(words)))])
    [place] = read_spans(prompt, data.draw(st.sampled_from(["- {}", "1. {}", "{}", '"{}"', "7 | {}"])).format(phrase))
    assert prompt[place.start : place.end] == phrase


def test_a_long_hostile_list_is_read_quickly() -> None:
    with pytest.raises(UnreadableReply):
        read_spans("a dog " * 50, "x,\n" * 20_000)
    with pytest.raises(UnreadableReply):
        read_spans("a dog " * 50, "x," * 30_000)


def make_answered_question(*, keep: bool | None = None) -> Answered:
    """Return a question whose answer "yes" has probability 0.8, followed by an EOS token with probability 0.5."""
    question = WrittenQuestion("1", "is 'a' true for 'b?' in this image?", YES_NO, "yes", keep=keep)
    return Answered(question, ((math.log(0.8), math.log(0.5)), (math.log(0.1), math.log(0.5))))


@pytest.mark.parametrize(("reduction", "score"), [("product", 0.4), ("mean", math.sqrt(0.4)), ("first", 0.8)])
def test_the_score_is_the_mean_likelihood_of_yes(reduction: str, score: float) -> None:
    metric = Vq2Config(reduction=reduction)  # type: ignore[arg-type]
    scored = metric.combine_answers([make_answered_question(), make_answered_question(keep=True)])
    assert scored.score == pytest.approx(score)
    assert [one.given for one in scored.elements] == ["yes", "yes"]


def test_questions_that_the_round_trip_dropped_do_not_count() -> None:
    dropped = make_answered_question(keep=False)._replace(token_logprobs=())
    scored = Vq2Config().combine_answers([make_answered_question(keep=True), dropped])
    assert (scored.score, scored.n_questions) == (pytest.approx(0.4), 1)
    assert Vq2Config().combine_answers([dropped]).error == NO_QUESTIONS_ERROR
