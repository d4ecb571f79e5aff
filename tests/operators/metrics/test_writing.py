"""Replies are parsed in many formats; if a reply is unreadable, it is requested again with the reason."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.questions.question_metric import WriterConfig
from plumbline.operators.metrics.questions.question_pack import QuestionPackConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vpeval import VpevalConfig
from plumbline.operators.metrics.questions.vq2 import Vq2Config
from plumbline.operators.metrics.reply_forms import Block, read_blocks
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply, VqaPrompt, ask, ask_each
from plumbline.operators.models.families.blip import INSTRUCTBLIP_PROFILE
from plumbline.operators.models.families.clip_flant5 import CLIP_FLANT5_PROFILE
from plumbline.operators.models.families.openai import OPENAI_PROFILE
from tests.operators.metrics.scripted import make_reply, run

CONFIG_CLASSES = (GeckoConfig, TifaConfig, DsgConfig, Vq2Config)
REPLY_SAMPLING = ReplySampling(max_tokens=50, temperature=0.5, seed=3).make_request("How many?")


def parse_number(text: str) -> int:
    if not text.isdecimal():
        raise UnreadableReply(f"expected a number, found {text!r}")
    return int(text)


def test_a_readable_reply_is_requested_once() -> None:
    result, rounds = run(ask(REPLY_SAMPLING, parse_number), ["4"])
    assert (result, rounds) == (4, [[REPLY_SAMPLING]])


def test_an_unreadable_reply_is_requested_again_with_the_reason_and_the_same_sampling() -> None:
    result, rounds = run(ask(REPLY_SAMPLING, parse_number), ["four"], ["4"])
    again = rounds[1][0]
    assert result == 4
    assert [message.role for message in again.messages] == ["user", "assistant", "user"]
    assert again.messages[1].text == "four"
    assert "expected a number, found 'four'" in again.messages[2].text
    assert again._replace(messages=REPLY_SAMPLING.messages) == REPLY_SAMPLING


def test_a_reply_that_stays_unreadable_is_an_error() -> None:
    with pytest.raises(UnreadableReply, match="found '5 or 6'"):
        run(ask(REPLY_SAMPLING, parse_number), ["four"], ["5 or 6"])


def test_a_truncated_reply_is_requested_again_and_then_read_as_far_as_possible() -> None:
    result, rounds = run(ask(REPLY_SAMPLING, parse_number), [make_reply("4", complete=False)], ["42"])
    assert result == 42
    assert "cut after 7 tokens; raise the metric's max_tokens" in rounds[1][0].messages[2].text
    assert (
        run(
            ask(REPLY_SAMPLING, parse_number), [make_reply("4", complete=False)], [make_reply("42", complete=False)]
        ).result
        == 42
    )


def test_the_error_of_an_unreadable_truncated_reply_says_that_it_was_truncated() -> None:
    with pytest.raises(UnreadableReply, match=r"found 'fo'; it was cut at max_tokens \(finish_reason=length\)"):
        run(ask(REPLY_SAMPLING, parse_number), [make_reply("fo", complete=False)], [make_reply("fo", complete=False)])


def test_only_the_unreadable_of_several_replies_are_requested_again() -> None:
    result, rounds = run(ask_each([REPLY_SAMPLING] * 3, [parse_number] * 3), ["1", "two", "3"], ["2"])
    assert result == [1, 2, 3]
    assert [len(requests) for requests in rounds] == [3, 1]


def test_replies_that_may_fail_alone_do_not_affect_the_others() -> None:
    result, _ = run(ask_each([REPLY_SAMPLING] * 2, [parse_number] * 2), ["1", "two"], ["deux"])
    assert result[0] == 1
    assert isinstance(result[1], UnreadableReply)


def test_an_empty_list_of_requests_asks_nothing() -> None:
    assert run(ask_each([], [])) == ([], [])


@pytest.mark.parametrize("config", CONFIG_CLASSES)
def test_the_template_of_questions_is_taken_literally(config: type[GeckoConfig]) -> None:
    metric = config(template="Q: {} {x} A:")
    assert metric.make_vqa_prompt("is {} {0} there?", ()).text == "Q: is {} {0} there? {x} A:"
    assert metric.list_answer_options()["template"] == "Q: {} {x} A:"


def test_a_free_answer_is_matched_to_the_choices_as_written() -> None:
    assert TifaConfig().make_vqa_prompt("?", ["yes", "no"]) == VqaPrompt("?", ("yes", "no"), free=True)


@pytest.mark.parametrize("config", [config for config in CONFIG_CLASSES if config is not TifaConfig])
def test_yes_and_no_are_capitalised_unless_the_option_keeps_them(config: type[GeckoConfig]) -> None:
    assert config().make_vqa_prompt("?", ["yes", "no", "red", "NO"]).choices == ("Yes", "No", "red", "No")
    assert config(yes_no="as_written").make_vqa_prompt("?", ["yes", "no", "NO"]).choices == ("yes", "no", "NO")


@pytest.mark.parametrize("config", [config for config in CONFIG_CLASSES if config is not TifaConfig])
def test_the_case_of_yes_and_no_follows_the_models_kind(config: type[GeckoConfig]) -> None:
    assert config().complete_options(lambda role: CLIP_FLANT5_PROFILE).make_vqa_prompt("?", ["yes", "no"]).choices == (
        "Yes",
        "No",
    )
    assert config().complete_options(lambda role: INSTRUCTBLIP_PROFILE).make_vqa_prompt("?", ["yes", "no"]).choices == (
        "yes",
        "no",
    )
    assert config(yes_no="capitalised").complete_options(lambda role: INSTRUCTBLIP_PROFILE).make_vqa_prompt(
        "?", ["yes"]
    ).choices == ("Yes",)
    assert (
        config().complete_options(lambda role: CLIP_FLANT5_PROFILE).list_answer_options()
        == config().list_answer_options()
    )


def test_a_template_may_show_the_choices() -> None:
    """Ablation 4 of "What makes a good metric?" asks Flan-T5 in this form."""
    metric = TifaConfig(template="Question: {} Choices: {choices} Answer:")
    put = metric.make_vqa_prompt("what {choices} are there?", ["red", "light blue"])
    assert put.text == "Question: what {choices} are there? Choices: red, light blue Answer:"


@pytest.mark.parametrize("config", [GeckoConfig, QuestionPackConfig, partial(TifaConfig, answers="likelihood")])
def test_a_service_compares_letters_of_choices_but_yes_and_no_literally(config: Any) -> None:
    metric = config().complete_options(lambda role: OPENAI_PROFILE)
    put = metric.make_vqa_prompt("what color?", ["red", "light blue"])
    assert put.text == "what color?\nA. red\nB. light blue\nAnswer with the letter of the right choice alone."
    assert put.choices == ("A", "B")
    assert metric.make_vqa_prompt("is it?", ["yes", "no"]) == VqaPrompt("is it?", ("Yes", "No"), free=False)
    own = config(template="{}\nChoices:\n{choices}\nAnswer:").complete_options(lambda role: OPENAI_PROFILE)
    assert own.make_vqa_prompt("what?", ["a", "b"]).text == "what?\nChoices:\nA. a\nB. b\nAnswer:"
    in_words = config(letters=False).complete_options(lambda role: OPENAI_PROFILE)
    assert in_words.make_vqa_prompt("what color?", ["red", "light blue"]).choices == ("red", "light blue")
    assert (
        in_words.list_answer_options() != metric.list_answer_options()
        and in_words.list_answer_options() == config().list_answer_options()
    )
    assert config(letters=True).complete_options(lambda role: CLIP_FLANT5_PROFILE).make_vqa_prompt(
        "what?", ["a", "b"]
    ).choices == ("A", "B")


def test_metrics_without_lettered_choices_refuse_the_letters_option() -> None:
    for config in (DsgConfig, Vq2Config, VpevalConfig):
        with pytest.raises(ConfigError, match="letters: this metric's choices cannot be replaced by letters"):
            config(letters=True)
        assert not config().complete_options(lambda role: OPENAI_PROFILE).letters
    for scores_likelihoods in (GeckoConfig, Vq2Config):
        with pytest.raises(ConfigError, match="answers: only likelihood can be scored, got 'reply'"):
            scores_likelihoods(answers="reply")


# Text around and inside a question.

WORD = st.text("abcdefghijklmnopqrstuvwxyzäéß漢", min_size=2, max_size=8)
PHRASE = st.lists(WORD, min_size=1, max_size=3).map(" ".join)
QUESTION_BLOCKS = st.lists(
    st.builds(
        lambda subject, text, choices, index: Block(subject, f"{text}?", tuple(choices), choices[index % len(choices)]),
        PHRASE,
        PHRASE.filter(lambda text: not text.startswith("about")),
        st.lists(PHRASE, min_size=2, max_size=6, unique_by=parsing.normalise) | st.just(["yes", "no"]),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=6,
    unique=True,
).filter(lambda blocks: not any({"yes", "no"} >= set(block.choices) != {"yes", "no"} for block in blocks))
LETTERS = "ABCDEF"


@st.composite
def draw_rendered_questions(draw: st.DrawFn) -> tuple[list[Block], str]:
    """Generate questions, and a reply that contains them in one of many formats."""
    blocks = draw(QUESTION_BLOCKS)
    written = [
        line for index, block in enumerate(blocks) for line in [*draw_block(draw, block, index), *draw_noise(draw)]
    ]
    fence = draw(st.sampled_from(["", "```"]))
    before = draw(st.sampled_from(["", "<think>Q: hm?</think>", "Sure! Here they are:\n", "Questions and answers:\n"]))
    return blocks, "\n".join([before + fence, *written, fence, *draw_noise(draw)])


def draw_block(draw: st.DrawFn, block: Block, index: int) -> list[str]:
    about = draw(st.sampled_from(["About {}:", "**About {}:**", "- About {}", "### about {} :", "3. About {}:"]))
    question = draw(
        st.sampled_from(["Q: {}", "**Q:** {}", f"Q{index}: {{}}", "Question: {}", "1. Q: {}", "q : {}", "Q:\n{}"])
    )
    choices = draw(st.sampled_from([", ", ",", " , "])).join(block.choices)
    letters = [f"{letter}) {choice}" for letter, choice in zip(LETTERS, block.choices, strict=False)]
    forms = [f"Choices: {choices}", f"**Choices:** {choices}.", f"Options: [{choices}]", f"choices:\n{choices}"]
    forms += ["Choices: " + ", ".join(letters), "Choices:\n" + "\n".join(letters)]
    forms += ["Choices:\n" + "\n".join(f"- {choice}" for choice in block.choices)]
    letter = LETTERS[block.choices.index(block.answer)]
    answers = [block.answer, f"{block.answer}.", block.answer.upper(), f"**{block.answer}**", f'"{block.answer}"']
    answers = [answer for answer in answers if parsing.normalise(answer) == parsing.normalise(block.answer)]
    answers += [letter, f"{letter}) {block.answer}", f"({letter})", f"{block.answer} (it says so)"]
    answer = draw(st.sampled_from(["A: ", "**A:** ", "Answer: ", "A:\n", "Correct answer: "])) + draw(
        st.sampled_from(answers)
    )
    lines = [question.format(block.text), draw(st.sampled_from(forms)), answer]
    if draw(st.booleans()) and not any("\n" in line or "*" in line for line in lines):
        lines = [" ".join(lines)] if answer.startswith(("A:", "Answer:")) else lines
    return [about.format(block.subject), *lines]


def draw_noise(draw: st.DrawFn) -> list[str]:
    return draw(st.lists(st.sampled_from(["", "   ", "---", "I hope this is of use.", "(see above)"]), max_size=2))


@given(draw_rendered_questions())
def test_questions_are_read_in_any_surrounding_text(pair: tuple[list[Block], str]) -> None:
    blocks, text = pair
    read = read_blocks(text)
    assert [block._replace(subject=(block.subject or "").strip(" :")) for block in read] == blocks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I cannot help with that.", 'no line that begins with "Q:"'),
        ("Q: is it red?\nChoices: yes, no", "'is it red?' has no line \"A:\""),
        ("Q: what color?\nChoices: red, blue\nA: green", "the answer 'green', which is not among its choices"),
        ("Q: what color?\nA: green", "has 0 choices, expected 2 to 26"),
        ("Q: what color?\nChoices: red, Red\nA: red", "has 2 choices, expected 2 to 26 different ones"),
        (f"Q: what?\nChoices: {', '.join(map(str, range(27)))}\nA: 1", "has 27 choices"),
        (f"Q: what?\nChoices: a, {'b' * 121}\nA: a", "a choice of more than 120 characters"),
        (f"Q: {'what ' * 200}?\nA: yes", "characters, expected 1 to 500"),
        ("x" * 60_001, "at most 60000 characters, found 60001"),
        ("\n".join(f"Q: is it {n}?\nA: yes" for n in range(257)), "at most 256 questions, found 257"),
    ],
)
def test_a_reply_without_a_readable_question_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(UnreadableReply) as raised:
        read_blocks(text)
    assert said in str(raised.value)


def test_readable_questions_are_kept_if_others_cannot_be_read() -> None:
    text = (
        "Q: what color?\nChoices: red, blue\nA: green\nQ: is it red?\nA: Yes.\nQ: is it red?\nChoices: yes, no\nA: yes"
    )
    assert read_blocks(text) == [Block(None, "is it red?", ("yes", "no"), "yes")]


@pytest.mark.parametrize(
    ("written", "choices"),
    [
        ("yes, no", ["yes", "no"]),
        ('["yes", "no"]', ["yes", "no"]),
        ("'red', 'blue'", ["red", "blue"]),
        ('"stop, please", "go"', ["stop, please", "go"]),
        ("red | blue", ["red", "blue"]),
        ("red; blue; dark, blue", ["red", "blue", "dark, blue"]),
        ("1. red, 2. blue", ["red", "blue"]),
        ('5" tall, 6" tall', ['5" tall', '6" tall']),
        ("A. red, blue", ["A. red", "blue"]),
    ],
)
def test_choices_are_split_as_they_are_written(written: str, choices: list[str]) -> None:
    assert parsing.split_choices(written) == choices


@pytest.mark.parametrize(
    ("metric", "calls", "questions"),
    [
        (GeckoConfig(), 2, 6),
        (GeckoConfig(coverage=False), 1, 6),
        (TifaConfig(), 8.5, 6),
        (TifaConfig(filter=False), 1, 6),
        (DsgConfig(), 3, 6),
        (Vq2Config(), 13, 6),
        (Vq2Config(convention="released", temperature=1.0), 16, 15),
    ],
)
def test_a_prompt_of_six_content_words_has_the_assumed_calls_and_questions(
    metric: WriterConfig, calls: float, questions: float
) -> None:
    assert metric.estimate_calls(6) == (calls, questions)


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("two", "2", 1.0),
        ("The red dog.", "a red dog", 1.0),
        ("red", "blue", 0.0),
        ("a red dog", "dog", 2 / 3),
        ("the", "a", 0.0),
        ("a", "A", 1.0),
        ("", "dog", 0.0),
        ("twelve apples", "12 green apples", 0.8),
    ],
)
def test_token_f1_compares_bags_of_words(answer: str, gold: str, f1: float) -> None:
    assert parsing.compute_token_f1(answer, gold) == pytest.approx(f1)


@given(st.text(), st.text())
def test_token_f1_is_symmetric_and_between_0_and_1(one: str, other: str) -> None:
    assert 0.0 <= parsing.compute_token_f1(one, other) == parsing.compute_token_f1(other, one) <= 1.0


@pytest.mark.parametrize(
    ("words", "prompt", "found"),
    [
        ("a", "cat on a mat", "a"),
        ("Red  Dog", "the red\n dog", "red\n dog"),
        ("train conductor's hat", "a train conductor’s hat", "train conductor’s hat"),
        ("dog.", "a dog barks", "dog"),
        ("狗", "红色的狗在", "狗"),
        ("cat", "concatenate", None),
        ("", "a cat", None),
        ("...", "a cat", None),
        (".*", "a cat", None),
    ],
)
def test_complete_words_are_found_regardless_of_case_spacing_and_quotes(
    words: str, prompt: str, found: str | None
) -> None:
    place = parsing.find_words(words, prompt)
    assert (prompt[place.start : place.end] if place else None) == found


@given(st.text(), st.text(), st.integers(0, 50))
def test_found_words_are_at_their_position_in_the_prompt(words: str, prompt: str, after: int) -> None:
    place = parsing.find_words(words, prompt, after=after)
    assert place is None or 0 <= place.start < place.end <= len(prompt)


@given(st.text(min_size=1), st.data())
def test_words_of_the_prompt_are_found_in_it(prompt: str, data: st.DataObject) -> None:
    words = data.draw(st.sampled_from(prompt.split() or ["x"]))
    place = parsing.find_words(words, prompt)
    assert place is not None or not prompt.split()
