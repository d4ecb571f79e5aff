"""Every variant of LLMScore sends the right requests to its models and scores their replies correctly."""

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.llmscore import CaptionedImage, LlmScoreConfig, Variant
from plumbline.operators.metrics.metric import Evidence, Rating
from plumbline.operators.metrics.similarities.sentence_matching import SentenceMatchingConfig
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.operators.models.calls import Region
from tests.operators.metrics.scripted import make_reply, run

CAPTIONED_IMAGE = CaptionedImage(
    "Two sheep on the road.", (Region("white car is parked", 590, 272, 767, 495),), 768, 512
)


def score_ratings(variant: Variant, **rated: float) -> float | None:
    row = {"ratings": [{"name": name, "value": value} for name, value in rated.items()], "rationale": "because"}
    score = LlmScoreConfig(variant=variant).score(Evidence(row))
    assert score.rationale == "because" and score.ratings == tuple(Rating(*rating) for rating in rated.items())
    return score.score


def test_the_overall_rating_is_divided_by_100() -> None:
    assert score_ratings("overall", rating=70) == pytest.approx(0.7)


@pytest.mark.parametrize("scale", [2, 5, 10, 1000])
def test_the_overall_rating_can_use_a_different_scale(scale: int) -> None:
    """Section 3.2 of the paper uses a scale from 1 to N, and divides the rating by N."""
    metric = LlmScoreConfig(scale=scale)
    low, high = "0", str(scale)
    ran = run(
        metric.judge_description("a", "b"),
        [f'{{"rating": {low}, "rationale": "So."}}'],
        [f'{{"rating": {high}, "rationale": "So."}}'],
    )
    request = ran.rounds[0][0]
    assert f"to {scale} (everything matches)" in request.messages[0].text
    assert request.schema is not None and f'"maximum": {scale}' in request.schema
    row = {"ratings": [{"name": "rating", "value": scale - 1}], "rationale": ""}
    assert ran.result.ratings == (Rating("rating", scale),)
    assert metric.score(Evidence(row)).score == pytest.approx((scale - 1) / scale)
    assert (
        metric.list_verdict_options() != LlmScoreConfig().list_verdict_options()
        and metric.list_score_options() != LlmScoreConfig().list_score_options()
    )


@pytest.mark.parametrize("variant", ["error_counting", "errors", "rule_enhanced"])
def test_only_the_overall_rating_has_a_choice_of_scale(variant: Variant) -> None:
    with pytest.raises(ConfigError, match="expected 100, or 2 or more with variant=overall, got 10 with"):
        LlmScoreConfig(variant=variant, scale=10)
    with pytest.raises(ConfigError, match="or 2 or more with variant=overall, got 1 with"):
        LlmScoreConfig(scale=1)


@pytest.mark.parametrize(("errors", "expected"), [(0, 1), (2, 0.77), (4, 0.55), (9, 0)])
def test_error_counting_subtracts_each_error_from_1(errors: int, expected: float) -> None:
    """Figure 4 of the paper shows a score of 0.77 for two errors, and figure 7 shows 0.55 for four."""
    assert score_ratings("error_counting", errors=errors) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("errors", [0, 2, 9, 14, 36])
def test_the_number_of_errors_is_the_score_and_fewer_is_better(errors: int) -> None:
    """Figure 7 of the paper shows 0.00 for no errors; the counts released with T2IScoreScore go up to 36."""
    metric = LlmScoreConfig(variant="errors")
    ran = run(metric.judge_description("a", "b"), [f'{{"errors": {errors}, "rationale": "So."}}'])
    assert ran.result.ratings == (Rating("errors", errors),)
    assert score_ratings("errors", errors=errors) == errors and metric.prefers_lower and metric.score_range == (0, 99)
    assert score_ratings("error_counting", errors=errors) == pytest.approx(max(0, 1 - errors / 9))
    assert not LlmScoreConfig(variant="error_counting").prefers_lower


def test_the_rule_enhanced_score_is_the_mean_of_two_fractions() -> None:
    """Section 3.2 of the paper defines the score as this mean."""
    counts = {"objects": 2, "objects_matched": 1, "attributes": 4, "attributes_matched": 1}
    assert score_ratings("rule_enhanced", **counts) == pytest.approx((1 / 2) / 2 + (1 / 4) / 2)
    assert score_ratings("rule_enhanced", **counts | {"attributes": 0, "attributes_matched": 0}) == pytest.approx(1 / 2)


def test_the_request_for_a_description_has_everything_known_about_the_image() -> None:
    ran = run(LlmScoreConfig().describe(CAPTIONED_IMAGE), ["A car\nand two sheep."])
    ((request,),) = ran.rounds
    text = request.messages[0].text
    assert "768 x 512 pixels" in text and "\nTwo sheep on the road.\n" in text
    assert "\nwhite car is parked: [590, 272, 767, 495]\n" in text
    assert ran.result == "A car and two sheep." and request.stop == () and request.schema is None


def test_the_request_for_a_verdict_has_description_and_prompt_literally() -> None:
    program = LlmScoreConfig().judge_description('a {description} "sheep"', "Two {prompt} sheep.")
    ran = run(program, ['{"rating": 40, "rationale": "One too many."}'])
    ((request,),) = ran.rounds
    assert '\na {description} "sheep"\n' in request.messages[0].text
    assert "\nTwo {prompt} sheep.\n" in request.messages[0].text
    assert request.schema is not None and '"maximum": 100' in request.schema
    assert ran.result == ((Rating("rating", 40),), "One too many.")


def test_an_unreadable_reply_is_requested_once_more_with_the_reason() -> None:
    good = '{"errors": 3, "rationale": "A sheep too many."}'
    ran = run(LlmScoreConfig(variant="error_counting").judge_description("a", "b"), ["Many."], [good])
    question, first, again = ran.rounds[1][0].messages
    assert (first.text, question.role, again.role) == ("Many.", "user", "user")
    assert "could not be read: expected a JSON object, found none" in again.text
    assert ran.result.ratings == (Rating("errors", 3),)
    with pytest.raises(UnreadableReply, match="found none"):
        run(LlmScoreConfig().judge_description("a", "b"), ["Many."], ["Very many."])


def test_a_truncated_reply_is_not_a_verdict() -> None:
    with pytest.raises(UnreadableReply):
        run(
            LlmScoreConfig().judge_description("a", "b"), [make_reply('{"rating": 4', complete=False)], ['{"rating": 4']
        )


def test_contradictory_counts_are_requested_again() -> None:
    counts = '{{"objects": 2, "objects_matched": {}, "attributes": 1, "attributes_matched": 1, "rationale": ""}}'
    program = LlmScoreConfig(variant="rule_enhanced").judge_description("a", "b")
    ran = run(program, [counts.format(3)], [counts.format(2)])
    assert "objects_matched, 3, is more than objects, 2" in ran.rounds[1][0].messages[-1].text


def test_verdicts_can_be_requested_as_plain_text() -> None:
    ran = run(LlmScoreConfig(replies="text").judge_description("a", "b"), ["82\nIt fits."])
    ((request,),) = ran.rounds
    assert request.schema is None and request.messages[0].text.endswith("then the explanation, as one paragraph.\n")
    assert ran.result == ((Rating("rating", 82),), "It fits.")


def test_a_truncated_caption_is_used_as_it_is() -> None:
    ran = run(LlmScoreConfig(caption_tokens=5).caption(), [make_reply("two sheep on", complete=False)])
    assert ran.result == "two sheep on" and ran.rounds[0][0].max_tokens == 5
    with pytest.raises(UnreadableReply, match="empty"):
        run(LlmScoreConfig().caption(), [" \n"])


def test_the_variants_share_all_inputs_of_captions_and_descriptions() -> None:
    overall, errors, matched = LlmScoreConfig(), LlmScoreConfig(variant="error_counting"), SentenceMatchingConfig()
    for metric in (errors, matched):
        assert (metric.list_caption_options(), metric.list_description_options()) == (
            overall.list_caption_options(),
            overall.list_description_options(),
        )
    assert overall.list_verdict_options() != errors.list_verdict_options()


def test_chains_name_their_stages_and_roles() -> None:
    assert LlmScoreConfig(grounder=None).chain == ("captions", "descriptions", "verdicts", "scores")
    assert "grounder" not in LlmScoreConfig(grounder=None).roles
    assert SentenceMatchingConfig(measure="meteor").roles == {"captioner": "captioner"}
