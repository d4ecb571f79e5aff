"""Judges are asked in the published wording, which is read from a checkout of the benchmark's repository."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from plugins.third_party_benchmarks.tests.made_checkouts import UNIGENBENCH_FILES, WISE_FILES
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.judge import map_ratings
from plumbline.operators.metrics.writing import UnreadableReply, WrittenQuestion
from plumbline.plugins.third_party_benchmarks.judges.rubric import RubricConfig
from tests.operators.metrics.made_releases import write_release
from tests.operators.metrics.scripted import run
from tests.operators.metrics.test_wording import fill_in_defaults


def test_unigenbench_can_use_its_published_wording(tmp_path: Path) -> None:
    folder = write_release(tmp_path, UNIGENBENCH_FILES)
    metric = fill_in_defaults(RubricConfig(rubric="checkpoints", wording=folder))
    asked = [
        WrittenQuestion(name, wanted, (), kind=name) for name, wanted in (("Style", "ink"), ("Style 2", "old {ink}"))
    ]
    reply = "<analysis>['It is ink.', 'New.']</analysis>\n<score>[1, 0]</score>"
    verdict, rounds = run(metric.inspect("a  dog", asked), ["<score>[1, 0]</score>"], [reply])
    assert rounds[0][0].messages[0].text == (
        "Of a  dog check ['Style', 'Style'], Means:「\nStyle: how it is painted\nStyle: how it is painted\n」, "
        "Wants:「\nStyle: ink\nStyle: old {ink}\n」."
    )
    assert map_ratings(verdict.ratings) == {"Style": 1, "Style 2": 0} and verdict.rationale == "It is ink. New."
    chinese, ((request,),) = run(
        metric.inspect("狗", [asked[0]._replace(kind="风格")]), ["<analysis>['a']</analysis><score>[1]</score>"]
    )
    assert "说明:「\n风格: 画风\n」" in request.messages[0].text and map_ratings(chinese.ratings) == {"风格": 1}
    with pytest.raises(UnreadableReply, match="does not define the checkpoint 'Smell'"):
        run(metric.inspect("a dog", [asked[0]._replace(kind="Smell")]))
    with pytest.raises(UnreadableReply):
        run(metric.inspect("a dog", asked), *[["<analysis>[]</analysis><score>[__import__('os')]</score>"]] * 11)


def test_wise_can_use_its_published_wording_with_three_attempts(tmp_path: Path) -> None:
    metric = fill_in_defaults(RubricConfig(rubric="knowledge", wording=write_release(tmp_path, WISE_FILES)))
    asked = [WrittenQuestion("1", "a  mooncake", (), kind="culture")]
    verdict, rounds = run(
        metric.inspect("the\npastry", asked), ["It is."], ["score: 2"], ["<think>Score: 0</think> **Score**: 1"]
    )
    ((request,), *_) = rounds
    assert (request.system, request.messages[0].text) == ("You judge.", "Is the\npastry so: a  mooncake?")
    assert request.image_at == len(request.messages[0].text) and (request.max_tokens, request.temperature) == (500, 0.0)
    assert request.messages_with_system[0].text == "You judge.\n\nIs the\npastry so: a  mooncake?"
    assert map_ratings(verdict.ratings) == {"score": 1}
    with pytest.raises(UnreadableReply):
        run(metric.inspect("a", asked), ["1\n0"], ["1 or 0"], ["Yes"])


def test_repeats_are_refused_if_the_published_temperature_is_0(tmp_path: Path) -> None:
    greedy = write_release(tmp_path, UNIGENBENCH_FILES)
    with pytest.raises(ConfigError, match="all 3 replies are the same; CodeGoat24/UniGenBench uses this temperature"):
        fill_in_defaults(RubricConfig(rubric="checkpoints", wording=greedy, repeats=3))


@pytest.mark.parametrize(
    ("rubric", "files", "problem"),
    [
        ("checkpoints", {"eval/src/eval_common.py": "LANG_CONFIGS = {}"}, "lacks the headings of the language en"),
        ("knowledge", {"vllm_eval.py": ""}, "has 0 texts in build_evaluation_messages, expected 2"),
    ],
)
def test_an_incomplete_checkout_is_refused(
    rubric: Literal["checkpoints", "knowledge"], files: Mapping[str, str], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem):
        fill_in_defaults(RubricConfig(rubric=rubric, wording=write_release(tmp_path, files)))
