"""Judges see the image; VIEScore asks them for two verdicts, and GPT4V-Eval asks for one."""

import math

import pytest

from plumbline.operators.metrics.judges.gpt4v_eval import Gpt4vEvalConfig
from plumbline.operators.metrics.judges.viescore import VieScoreConfig
from plumbline.operators.metrics.metric import Evidence, Rating
from plumbline.operators.metrics.writing import UnreadableReply
from tests.operators.metrics.scripted import run

CONSISTENCY_REPLY = '{"semantic_consistency": 8, "rationale": "One of two is missing."}'
QUALITY_REPLY = '{"naturalness": 9, "artifacts": 6, "rationale": "A blurred face."}'


def make_evidence(**rated: float) -> Evidence:
    return Evidence({"ratings": [{"name": name, "value": value} for name, value in rated.items()], "rationale": "so"})


def test_viescore_asks_about_the_prompt_and_separately_about_the_image() -> None:
    ran = run(VieScoreConfig().inspect("two {red} dogs"), [CONSISTENCY_REPLY, QUALITY_REPLY])
    ((semantic, perceptual),) = ran.rounds
    assert "\ntwo {red} dogs\n" in semantic.messages[0].text and "dogs" not in perceptual.messages[0].text
    assert [rating.name for rating in ran.result.ratings] == ["semantic_consistency", "naturalness", "artifacts"]
    assert ran.result.rationale == "One of two is missing. A blurred face."


def test_viescore_is_the_root_of_the_product_of_the_lowest_ratings() -> None:
    assert VieScoreConfig().score(make_evidence(semantic_consistency=8, naturalness=9, artifacts=6)).score == math.sqrt(
        8 * 6
    )
    assert VieScoreConfig().score(make_evidence(semantic_consistency=0, naturalness=9, artifacts=6)).score == 0


def test_only_the_unreadable_verdict_is_requested_again_and_no_number_is_invented() -> None:
    ran = run(VieScoreConfig().inspect("a dog"), ["Well.", QUALITY_REPLY], [CONSISTENCY_REPLY])
    assert len(ran.rounds[1]) == 1 and ran.result.ratings[0] == Rating("semantic_consistency", 8)
    with pytest.raises(UnreadableReply):
        run(VieScoreConfig().inspect("a dog"), [CONSISTENCY_REPLY, "Well."], ["Hm."])


def test_gpt4v_evals_score_is_its_rating() -> None:
    ran = run(Gpt4vEvalConfig().inspect("a dog"), ['{"rating": 0, "rationale": "A cat."}'])
    assert ran.result == ((Rating("rating", 0),), "A cat.")
    assert Gpt4vEvalConfig().score(make_evidence(rating=35)).score == 35
