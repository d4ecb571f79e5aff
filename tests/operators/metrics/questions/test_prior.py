"""A model's answer probabilities for an image are divided by those for a blank image."""

import math

import pytest

from plumbline.operators.metrics.metric import Answered, Evidence, Logprobs
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.metrics.writing import WrittenQuestion

QUESTION = WrittenQuestion("1", "is there a dog?", ("yes", "no"), "yes")


def make_logprobs(*probabilities: float) -> Logprobs:
    """Return the log-probabilities of one-token choices; the end token after each choice has probability 1."""
    return tuple((math.log(probability), 0.0) for probability in probabilities)


def test_geckos_share_compares_likelihoods_with_the_prior() -> None:
    metric = GeckoConfig(nli=None, prior="blank_image")
    scored = metric.combine_answers([Answered(QUESTION, make_logprobs(0.6, 0.3), prior=make_logprobs(0.8, 0.1))])
    assert scored.score == pytest.approx((0.6 / 0.8) / (0.6 / 0.8 + 0.3 / 0.1))
    assert [one.given for one in scored.elements or ()] == ["no"], "yes is even likelier for the blank image"
    unmoved = metric.combine_answers([Answered(QUESTION, make_logprobs(0.8, 0.1), prior=make_logprobs(0.8, 0.1))])
    assert unmoved.score == pytest.approx(0.5)


def test_a_yes_that_is_as_likely_about_a_blank_image_does_not_count_for_dsg() -> None:
    biased = Answered(QUESTION, make_logprobs(0.6, 0.3), prior=make_logprobs(0.8, 0.1))
    assert DsgConfig().combine_answers([biased._replace(prior=())]).score == 1
    assert DsgConfig(prior="blank_image").combine_answers([biased]).score == 0


def test_vqascores_odds_are_divided_by_the_odds_about_a_blank_image() -> None:
    metric = VqaScoreConfig(template="{}?", normalise="yes_no", prior="blank_image")
    shown, blank = (
        make_logprobs(0.3, 0.3, 0.0001, 0.0001, 0.1, 0.1, 0.0001, 0.0001),
        make_logprobs(*[0.4] * 2, *[0.1] * 2, *[0.2] * 4),
    )
    answered = [Answered(WrittenQuestion("1", "a dog?", metric.choices), shown, prior=blank)]
    row = {"answers": [{"question_id": "1", "token_logprobs": shown}]}
    odds = (0.6002 / 0.2002) / (1.0 / 0.8)
    assert metric.score(Evidence(row, answered)).score == pytest.approx(odds / (1 + odds))


@pytest.mark.parametrize(
    ("metric", "chain", "read"),
    [
        (GeckoConfig(prior="blank_image"), ("questions", "entailment", "priors", "answers", "scores"),
         ("answers", "questions", "entailment", "priors")),
        (DsgConfig(prior="blank_image"), ("questions", "priors", "answers", "scores"),
         ("answers", "questions", "priors")),
        (DsgConfig(), ("questions", "answers", "scores"), ("answers", "questions")),
    ],
)  # fmt: skip
def test_the_prior_is_a_stage_that_the_score_reads(
    metric: GeckoConfig | DsgConfig, chain: tuple[str, ...], read: tuple[str, ...]
) -> None:
    assert (metric.chain, metric.scored_from) == (chain, read)
