"""VIEScore, EditScore and ImgEdit-Bench ask judges the right questions, and combine the ratings into a score."""

import json
import math
from functools import partial
from typing import Any

import pytest

from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.metrics.judges.judge import ask_repeatedly
from plumbline.operators.metrics.metric import Evidence, average_images
from plumbline.operators.metrics.wording import read_prompt_template
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.plugins.edits.editscore import EditScoreConfig
from plumbline.plugins.edits.imgedit import ImgEditConfig, read_kinds
from plumbline.plugins.edits.viescore_edit import VieScoreEditConfig
from tests.operators.metrics.scripted import run

RELEASED_CRITERIA = {
    "replace": ("prompt_compliance", "visual_naturalness", "physical_detail_integrity"),
    "add": ("prompt_compliance", "visual_naturalness", "physical_detail_coherence"),
    "adjust": ("prompt_compliance", "visual_seamlessness", "physical_detail_fidelity"),
    "remove": ("prompt_compliance", "visual_naturalness", "physical_detail_integrity"),
    "style": ("style_fidelity", "content_preservation", "rendering_quality"),
    "action": ("action_fidelity", "identity_preservation", "visual_anatomical_coherence"),
    "extract": ("object_identity", "mask_precision", "visual_quality"),
    "background": ("instruction_compliance", "visual_seamlessness", "physical_consistency"),
    "compose": ("instruction_compliance", "visual_naturalness", "physical_consistency_fine_detail"),
}
"""Rating criteria by kind of edit, from Benchmark/Basic/prompts.json of PKU-YuanGroup/ImgEdit at 547185d, in lower
case.
"""


def write_reply(**rated: int) -> str:
    return json.dumps({**rated, "rationale": "So."})


def make_evidence(verdict: Any) -> Evidence:
    return Evidence({"ratings": [rating._asdict() for rating in verdict.ratings], "rationale": verdict.rationale})


def write_editing_reply(success: int, overediting: int) -> str:
    return write_reply(editing_success=success, overediting=overediting)


def write_quality_reply(naturalness: int, artifacts: int) -> str:
    return write_reply(naturalness=naturalness, artifacts=artifacts)


def test_viescore_asks_one_question_about_the_edit_and_one_about_the_edited_image() -> None:
    ran = run(VieScoreEditConfig().inspect("paint\n {it} red"), [write_editing_reply(8, 6), write_quality_reply(9, 3)])
    ((edit, perceptual),) = ran.rounds
    assert (edit.view, perceptual.view) == (0, 1) and VieScoreEditConfig().views == ("edit", "result")
    assert "\npaint {it} red\n" in edit.messages[0].text and "paint" not in perceptual.messages[0].text
    scores = {part: VieScoreEditConfig(part=part).score(make_evidence(ran.result)).score
              for part in ("consistency", "quality", "overall")}  # fmt: skip
    assert scores == {"consistency": 6, "quality": 3, "overall": math.sqrt(6 * 3)}


def test_an_unreadable_reply_is_requested_once_more_for_the_same_images() -> None:
    ran = run(VieScoreEditConfig().inspect("a"), [write_editing_reply(8, 6), "Well."], [write_quality_reply(10, 10)])
    ((again,),) = ran.rounds[1:]
    assert again.view == 1 and "could not be read" in again.messages[-1].text
    with pytest.raises(UnreadableReply):
        run(VieScoreEditConfig().inspect("a"), ["Well.", write_quality_reply(1, 1)], [write_editing_reply(11, 0)])


def test_editscore_averages_its_replies_and_scales_ratings_from_25_to_10() -> None:
    metric = EditScoreConfig(repeats=2, seed=7)
    ran = run(
        ask_repeatedly(partial(metric.inspect, "a"), 2),
        [write_editing_reply(25, 10), write_quality_reply(20, 15)],
        [write_editing_reply(5, 25), write_quality_reply(25, 20)],
    )
    assert [[(one.view, one.seed, one.temperature) for one in asked] for asked in ran.rounds] == [
        [(0, 7, 0.7), (1, 7, 0.7)], [(0, 8, 0.7), (1, 8, 0.7)],
    ]  # fmt: skip
    first, second = math.sqrt(min(10, 4) * min(8, 6)), math.sqrt(min(2, 10) * min(10, 8))
    expected = {"prompt_following": 6, "consistency": 7, "perceptual_quality": 7, "overall": (first + second) / 2}
    for rating, number in expected.items():
        by_pass = [EditScoreConfig(rating=rating).score(make_evidence(one)) for one in ran.result]
        scored = average_images(by_pass, "Ask")
        assert scored.score == pytest.approx(number) and len(scored.ratings) == 4


def test_repeats_of_editscore_are_refused_at_temperature_0() -> None:
    with pytest.raises(ConfigError, match="editscore repeats: at temperature 0 all 4 replies are the same"):
        EditScoreConfig(repeats=4, temperature=0)


@pytest.mark.parametrize("kind", RELEASED_CRITERIA)
def test_imgedit_rates_each_kind_of_edit_by_its_own_criteria(kind: str) -> None:
    names = RELEASED_CRITERIA[kind]
    ran = run(
        ImgEditConfig().inspect("do it", skills=("animal", kind.title())),
        [write_reply(**dict(zip(names, (2, 4, 5), strict=True)))],
    )
    ((asked,),) = ran.rounds
    assert all(f"\n{name}: from 1 (" in asked.messages[0].text for name in names)
    assert "No rating may be higher than the first one." in asked.messages[0].text, (
        "ratings above the first are kept anyway"
    )
    assert ImgEditConfig().score(make_evidence(ran.result)).score == pytest.approx((2 + 4 + 5) / 3)
    assert (
        run(ImgEditConfig(edit_kind=kind).inspect("do it"), [write_reply(**dict.fromkeys(names, 3))]).rounds
        == ran.rounds
    )


@pytest.mark.parametrize("skills", [(), ("animal",), ("add", "remove")])
def test_imgedit_reports_the_skills_it_found_unless_exactly_one_is_a_kind_of_edit(skills: tuple[str, ...]) -> None:
    ran = run(ImgEditConfig().inspect("do it", skills=skills))
    assert isinstance(ran.result, RowError) and ran.result.kind == "no_edit_kind"
    assert all(repr(skill) in ran.result.message for skill in skills) and "edit_kind" in ran.result.message


def test_every_kind_of_edit_has_three_criteria() -> None:
    assert set(read_kinds(read_prompt_template("imgedit_kinds"))) == set(RELEASED_CRITERIA)
