"""A pairwise judge is asked which of two images is better; its answer is a likelihood or a reply in words."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.pairwise import PairAnswer, PairwiseConfig
from plumbline.operators.metrics.metric import Evidence, Scored
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.operators.models.families.openai import OPENAI_PROFILE
from plumbline.operators.models.families.vlm import CHAT_PROFILE

REPLY_CONFIG = PairwiseConfig(answers="reply")
LIKELIHOOD_CONFIG = PairwiseConfig(answers="likelihood")


def test_the_question_has_the_prompt_and_a_letter_for_each_choice() -> None:
    asked = LIKELIHOOD_CONFIG.question("two red\ncats {choices}")
    assert "two red cats {choices}" in asked and asked.endswith("Reply with the letter of the right statement alone.")
    assert "A. The first image is better.\nB. The second" in asked and "\nD. Neither image does what" in asked
    strict = replace(LIKELIHOOD_CONFIG, tie=False)
    assert strict.choices == ("first", "second", "neither") and strict.letters == ("A", "B", "C")
    assert "equally good" not in strict.question("") and '{"choice": "<letter' in REPLY_CONFIG.question("")


def test_a_local_model_compares_letters_and_a_service_replies() -> None:
    metric = PairwiseConfig()
    assert metric.complete_options(lambda role: CHAT_PROFILE).answers == "likelihood"
    assert metric.complete_options(lambda role: OPENAI_PROFILE).answers == "reply"
    assert replace(metric, answers="reply").complete_options(lambda role: CHAT_PROFILE).answers == "reply"


def test_the_probabilities_of_the_letters_are_compared_and_ties_count_half() -> None:
    logprobs = [[math.log(0.2), math.log(0.5)], [math.log(0.1)], [math.log(0.6)], [math.log(0.2)]]
    answer = LIKELIHOOD_CONFIG.combine_logprobs(logprobs)
    assert answer.choice == "tie" and answer.reason is None
    assert answer.p_first == pytest.approx((0.1 + 0.3 + 0.1) / 1.0)
    assert LIKELIHOOD_CONFIG.combine_logprobs([[-1e4], [-2e4], [-2e4], [-2e4]]).p_first == 1.0


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ('{"choice": "A", "rationale": "It has two cats."}', PairAnswer("first", 1.0, "It has two cats.")),
        ('Sure: ```json\n{"Choice": "b."}\n```', PairAnswer("second", 0.0)),
        ('{"choice": "(C) Both images are equally good"}', PairAnswer("tie", 0.5)),
        ('{"choice": "Neither image does what the prompt says.", "rationale": 3}', PairAnswer("neither", 0.5)),
    ],
)
def test_a_reply_in_json_is_read(reply: str, answer: PairAnswer) -> None:
    assert REPLY_CONFIG.read_reply(reply) == answer


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("A\nIt has two cats.", PairAnswer("first", 1.0, "It has two cats.")),
        ("Answer: (B)\n\nMore\ncats.", PairAnswer("second", 0.0, "More cats.")),
        ("**D.**", PairAnswer("neither", 0.5)),
    ],
)
def test_a_reply_in_text_is_read(reply: str, answer: PairAnswer) -> None:
    assert replace(REPLY_CONFIG, replies="text").read_reply(reply) == answer


@pytest.mark.parametrize("replies", ["json", "text"])
@pytest.mark.parametrize("reply", ["", "A dog is better.", "E", '{"choice": 1}', '{"choice": "E"}', '{"rating": 3}'])
def test_a_reply_without_a_choice_is_unreadable(reply: str, replies: Any) -> None:
    with pytest.raises(UnreadableReply, match="expected"):
        replace(REPLY_CONFIG, replies=replies).read_reply(reply)


def test_only_options_that_change_an_answer_are_in_its_key(tmp_path: Path) -> None:
    options = LIKELIHOOD_CONFIG.list_comparison_options()
    for same in ({"max_tokens": 9}, {"pairs": "baseline", "baseline": "a"}, {"seed": 3}, {"judge": "other"}):
        assert replace(LIKELIHOOD_CONFIG, **same).list_comparison_options() == options
    for other in ({"tie": False}, {"answers": "reply"}):
        assert replace(LIKELIHOOD_CONFIG, **other).list_comparison_options() != options
    (tmp_path / "pairwise.txt").write_text("Which fits {prompt}?\n{choices}\n")
    worded = replace(LIKELIHOOD_CONFIG, wording=str(tmp_path)).complete_options(lambda role: CHAT_PROFILE)
    assert worded.question("cats").startswith("Which fits cats?") and worded.list_comparison_options() != options


def test_the_score_is_the_mean_share_and_one_half_for_the_baseline() -> None:
    row = {"wins": [1.0, 0.5, 0.0, 0.0], "generator": "alpha"}
    assert LIKELIHOOD_CONFIG.score(Evidence(row)) == Scored(0.375, n_questions=4)
    against = PairwiseConfig(pairs="baseline", baseline="alpha")
    assert against.score(Evidence(row)) == Scored(0.5, n_questions=4) and against.ranks
    assert not PairwiseConfig(pairs="neighbours", ranked_by="vqascore").ranks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"pairs": "neighbours"},
            "pairwise ranked_by: pairs=neighbours needs the name of a metric, found none; set it",
        ),
        ({"ranked_by": "gecko"}, "pairwise ranked_by: only for pairs=neighbours, found pairs=all; leave it out"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PairwiseConfig(**options)
    assert str(refused.value) == message
