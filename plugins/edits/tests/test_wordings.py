"""Edits are judged with the published prompts; results equal those of the original code, if it is checked out here."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean

import pytest

from plumbline.operators.metrics.judges.judge import ask_repeatedly, map_ratings
from plumbline.plugins.edits.editscore import EditScoreConfig
from plumbline.plugins.edits.viescore_edit import VieScoreEditConfig
from tests.operators.metrics.made_releases import VIESCORE_FILES, write_release
from tests.operators.metrics.scripted import run
from tests.operators.metrics.test_released_wordings import (
    PROMPTS,
    describe_image_request,
    drop_model,
    drop_options,
    find_checkout,
    get_profile,
    keep_first_image,
    list_contents,
    require_equal_viescores,
    run_ours,
    run_released,
)
from tests.operators.metrics.test_wording import fill_in_defaults

GEDIT_FILES: Mapping[str, str] = {"GEdit-Bench/viescore/vie_prompts.py": VIESCORE_FILES["viescore/vie_prompts.py"]}


EDITSCORE_FILES: Mapping[str, str] = {
    "editscore/vie_prompts.py": """
_context_no_delimit_reasoning_first = "ImageQuery 10 times."
_prompts_0shot_two_image_edit_rule = "Two images."
_prompts_0shot_tie_rule_SC = "0 to 10, is it done: <instruction>?"
_prompts_0shot_rule_PQ = "0 to 10, is it well made?"
""",
}


@pytest.mark.parametrize("files", [VIESCORE_FILES, GEDIT_FILES])
def test_viescore_and_gedit_ask_with_their_published_wording(files: Mapping[str, str], tmp_path: Path) -> None:
    metric = fill_in_defaults(VieScoreEditConfig(wording=write_release(tmp_path, files)))
    replies = ['{"score": [8, 3], "reasoning": "Done."}', '{"score": [9, 4, 2], "reasoning": ""}']
    verdict, (requests,) = run(metric.inspect("make  it red"), replies)
    assert [(request.messages[0].text, request.view) for request in requests] == [
        ("Look.\nTwo images.\nIs it done: make  it red?", 0), ("Look.\nIs it well made?", 1),
    ]  # fmt: skip
    assert map_ratings(verdict.ratings) == {
        "editing_success": 8,
        "overediting": 3,
        "naturalness": 9,
        "artifacts": 2,
    }


def test_editscore_asks_with_its_published_wording_and_repeats_as_configured(tmp_path: Path) -> None:
    metric = fill_in_defaults(EditScoreConfig(wording=write_release(tmp_path, EDITSCORE_FILES), repeats=2))
    first = ['{"reasoning": "Done.", "score": [20, 10]}', '{"score": [25, 15]}']
    program = ask_repeatedly(partial(metric.inspect, "paint  10 doors"), metric.repeats)
    verdicts, rounds = run(program, first, ['{"score": [25, 20]}', "[20, 20]"])
    assert [(request.messages[0].text, request.view) for request in rounds[0]] == [
        ("ImageQuery 10 times.\nTwo images.\n0 to 25, is it done: paint  10 doors?", 0),
        ("ImageQuery 10 times.\n0 to 25, is it well made?", 1),
    ]
    assert [(one.seed, one.temperature, one.max_tokens) for (one, _) in rounds] == [(42, 0.7, 512), (43, 0.7, 512)]
    rated = [
        {"prompt_following": 8, "consistency": 4, "perceptual_quality": 6, "overall": 24**0.5},
        {"prompt_following": 10, "consistency": 8, "perceptual_quality": 8, "overall": 8},
    ]
    assert [map_ratings(verdict.ratings) for verdict in verdicts] == list(map(pytest.approx, rated))


@pytest.mark.parametrize("name", ["VIEScore", "GEdit"])
def test_viescore_for_edits_has_the_same_results_as_upstreams_code(name: str) -> None:
    require_equal_viescores(name, "tie", VieScoreEditConfig)


EDITSCORE_SCRIPT = """
import requests
from editscore import EditScore
model = EditScore(backbone="openai", key="none", num_pass=2)

def run(given):
    prompt, replies = given
    def act(create):
        def post(url, json, headers, timeout):
            text = create(**json).choices[0].message.content
            return SimpleNamespace(json=lambda: {"choices": [{"message": {"content": text}}]})
        requests.post = post
        said = model.evaluate(["http://source", "http://image"], prompt)
        guessed = any("guess_if_cannot_parse" in said[f"{part}_reasoning"] for part in ("SC", "PQ"))
        return None if guessed else [said[name] for name in
                                     ("prompt_following", "consistency", "perceptual_quality", "overall")]
    return asking(replies, act)
"""


FIRST_PASS_REPLIES = ['{"reasoning": "Done.", "score": [20, 11]}', "So: [25, 15]"]


EDITSCORE_REPLIES = [
    [*FIRST_PASS_REPLIES, '{"reasoning": "Not all.",\n"score": [10.5, 25]}', '{"reasoning": "", "score": [7, 25, 3]}'],
    [*FIRST_PASS_REPLIES, "none", "none", '{"reasoning": "", "score": [5, 6]}', "[8, 9]"],
    [*FIRST_PASS_REPLIES, *["none"] * 6],
]


def test_editscore_has_the_same_results_as_upstreams_code() -> None:
    given = [(prompt, EDITSCORE_REPLIES[index % 3]) for index, prompt in enumerate(PROMPTS)]
    released = run_released("EditScore", EDITSCORE_SCRIPT, given)
    metric = EditScoreConfig(wording=find_checkout("EditScore"), repeats=2).complete_options(get_profile)
    for (prompt, replies), theirs in zip(given, released, strict=True):
        ours = run_ours(ask_repeatedly(partial(metric.inspect, prompt), 2), replies, describe_image_request)
        asked = [{**each, "messages": [keep_first_image(*each["messages"])]} for each in drop_model(theirs.requests)]
        assert drop_options(ours.requests, "temperature", "max_tokens") == list(map(list_contents, asked))
        verdicts = ours.result if ours.result and None not in ours.result else None  # the release guesses a pass
        ratings = verdicts and zip(*([rating.value for rating in verdict.ratings] for verdict in verdicts), strict=True)
        assert (ratings and list(map(fmean, ratings))) == (theirs.result and pytest.approx(theirs.result))
    assert sum(one.result is not None for one in released) == 67
