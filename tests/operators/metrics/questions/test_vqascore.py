"""VQAScore's question and reductions follow the paper and the released code."""

import math
from typing import Any, get_args

import pytest

from plumbline.operators.metrics.questions.vqascore import (
    DEFAULT_QUESTIONS,
    Reduction,
    VqaScoreConfig,
    compute_yes_share,
    reduce_answer,
)
from plumbline.operators.models.families.clip_flant5 import CLIP_FLANT5_PROFILE
from plumbline.operators.models.families.vlm import CHAT_PROFILE
from tests.operators import tiny
from tests.operators.metrics.scripted import run

YES_LOGPROB, EOS_LOGPROB = math.log(0.8), math.log(0.45)


def test_unset_options_follow_the_models_kind() -> None:
    released, chat = (
        VqaScoreConfig().complete_options(lambda role: CLIP_FLANT5_PROFILE),
        VqaScoreConfig().complete_options(lambda role: CHAT_PROFILE),
    )
    assert released.question("a cat") == 'Does this figure show "a cat"? Please answer yes or no.'
    assert (released.answer, released.reduction) == ("Yes", "mean")
    assert chat.question("a cat") == 'Does this figure show "a cat"? Please answer Yes or No.'
    assert (chat.answer, chat.reduction) == ("Yes", "first")


def test_set_options_are_kept_for_every_kind_of_model() -> None:
    metric = VqaScoreConfig(template="Is it {}?", reduction="product").complete_options(lambda role: CHAT_PROFILE)
    assert metric.yes_question == ("Is it {}?", "Yes", "product")
    assert VqaScoreConfig(answer="yes").complete_options(lambda role: CHAT_PROFILE).yes_question == DEFAULT_QUESTIONS[
        CHAT_PROFILE.question
    ]._replace(answer="yes")
    assert metric.complete_options(lambda role: CLIP_FLANT5_PROFILE) == metric, (
        "applying the defaults twice changes nothing"
    )


@pytest.mark.parametrize(
    ("answer", "falls"),
    [
        *(
            (no, True)
            for no in ("No", " no", "NO.", "Wrong", "False", "No it does not", "It doesn’t", "Nein", "いいえ")
        ),
        *((yes, False) for yes in ("Yes", "True", "Correct", "Yes it does", "Yes, not a doubt", "a cat", "North")),
    ],
)
def test_lower_is_better_for_the_answer_no_unless_the_option_says_otherwise(answer: str, falls: bool) -> None:
    assert VqaScoreConfig(answer=answer).prefers_lower == falls
    assert VqaScoreConfig(answer=answer, lower_is_better=not falls).prefers_lower != falls
    assert VqaScoreConfig(answer=answer).complete_options(lambda role: CHAT_PROFILE).prefers_lower == falls


def test_a_question_about_faults_must_declare_that_lower_is_better() -> None:
    assert VqaScoreConfig(template="Does anything of {} lack?", normalise="yes_no", lower_is_better=True).prefers_lower
    assert not VqaScoreConfig().prefers_lower


def test_the_mean_of_two_tokens_is_the_root_of_their_product() -> None:
    assert reduce_answer([YES_LOGPROB, EOS_LOGPROB], "mean") == pytest.approx(math.sqrt(0.8 * 0.45))


def test_the_product_covers_all_tokens() -> None:
    assert reduce_answer([YES_LOGPROB, EOS_LOGPROB], "product") == pytest.approx(0.36)
    assert reduce_answer([YES_LOGPROB, EOS_LOGPROB, math.log(0.5)], "product") == pytest.approx(0.18)


def test_the_first_token_reduction_ignores_the_other_tokens() -> None:
    assert reduce_answer([YES_LOGPROB, EOS_LOGPROB], "first") == pytest.approx(0.8)


def test_the_mean_of_three_tokens_is_their_cube_root() -> None:
    assert reduce_answer([math.log(p) for p in (0.9, 0.5, 0.3)], "mean") == pytest.approx((0.9 * 0.5 * 0.3) ** (1 / 3))


@pytest.mark.parametrize("logprob", [0.0, -1e-9, -50.0, -1000.0])
def test_every_reduction_stays_between_zero_and_one(logprob: float) -> None:
    for reduction in get_args(Reduction):
        assert 0.0 <= reduce_answer([logprob, logprob], reduction) <= 1.0


def test_other_braces_in_the_template_stay_unchanged() -> None:
    assert (
        VqaScoreConfig(template="{a} {} {0}").complete_options(lambda role: CHAT_PROFILE).question("{} {b}")
        == "{a} {} {b} {0}"
    )


def test_the_question_does_not_depend_on_the_reduction() -> None:
    asked = tiny.make_vqascore(reduction="mean").list_question_options()
    assert tiny.make_vqascore(reduction="product").list_question_options() == asked
    assert tiny.make_vqascore(answer="yes").list_question_options() != asked
    assert tiny.make_vqascore(template="Is it {}?").list_question_options() != asked


# Options with normalise=yes_no


def make_normalised_metric(**options: Any) -> VqaScoreConfig:
    return VqaScoreConfig(normalise="yes_no", **options).complete_options(lambda role: CHAT_PROFILE)


def test_yes_is_compared_with_no_in_every_spelling() -> None:
    (question,) = run(make_normalised_metric().write("a cat")).result
    assert question.text == 'Does this figure show "a cat"? Please answer Yes or No.'
    assert question.choices == ("Yes", " Yes", "yes", " yes", "No", " No", "no", " no")
    shares = (0.4, 0.1, 0.05, 0.05, 0.2, 0.05, 0.03, 0.02)
    spelled = [[math.log(share), EOS_LOGPROB] for share in shares]
    assert compute_yes_share(spelled[:4], spelled[4:]) == pytest.approx(0.6 / 0.9)


def test_a_spelling_of_several_tokens_counts_all_of_them_except_the_end() -> None:
    half = [math.log(0.5)]
    assert compute_yes_share([[*half, *half, EOS_LOGPROB]], [[*half, EOS_LOGPROB]]) == pytest.approx(0.25 / 0.75)


def test_spellings_with_the_same_tokens_do_not_change_the_share() -> None:
    yes, no = [math.log(0.3), EOS_LOGPROB], [math.log(0.1), EOS_LOGPROB]
    assert compute_yes_share([yes] * 4, [no] * 4) == pytest.approx(compute_yes_share([yes], [no]))


@pytest.mark.parametrize(("yes", "no", "share"), [(-1.0, -5000.0, 1.0), (-5000.0, -1.0, 0.0), (-5000.0, -5000.0, 0.5)])
def test_the_share_of_yes_is_finite_even_if_both_answers_are_unlikely(yes: float, no: float, share: float) -> None:
    assert compute_yes_share([[yes, EOS_LOGPROB]], [[no, EOS_LOGPROB]]) == share


def test_normalising_changes_the_key_of_the_score_and_no_other_key() -> None:
    assert make_normalised_metric().list_score_options() == {"normalise": "yes_no"}
    assert (
        make_normalised_metric().list_question_options()
        != VqaScoreConfig().complete_options(lambda role: CHAT_PROFILE).list_question_options()
    )
    plain = VqaScoreConfig().complete_options(lambda role: CHAT_PROFILE)
    assert plain.list_answer_options() == {
        "kind": "vqascore",
        "template": DEFAULT_QUESTIONS[CHAT_PROFILE.question].template,
        "answer": "Yes",
    }
    assert plain.list_score_options() == {"reduction": "first"}
    assert make_normalised_metric().complete_options(lambda role: CLIP_FLANT5_PROFILE) == make_normalised_metric(), (
        "applying the defaults twice changes nothing"
    )
