"""Judges of single images or edits get the released wording, and return scores with ratings."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from plugins.released_judges.tests.made_checkouts import (
    RATIONAL_REWARDS_FILES,
    UNIFIED_REWARD_FILES,
    WEGENBENCH_FILES,
)
from plugins.released_judges.tests.replying_vlm import save_replying_vlm
from plugins.released_judges.tests.test_pair_wordings import write_think_reply
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.judge import map_ratings
from plumbline.operators.metrics.metric import Evidence, Verdict
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.plugins.released_judges.judges.rational_rewards import RationalRewardsConfig, RationalRewardsEditConfig
from plumbline.plugins.released_judges.judges.released_judge import ReleasedJudgeConfig
from plumbline.plugins.released_judges.judges.unified_reward import UnifiedRewardConfig, UnifiedRewardEditConfig
from plumbline.plugins.released_judges.judges.wegenbench import WeGenBenchCotConfig
from tests.bench_of import read_run_tables, run_bench, write_benchmark
from tests.operators.metrics.made_releases import write_release
from tests.operators.metrics.scripted import run
from tests.operators.metrics.test_wording import fill_in_defaults
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_completion

FILES: Mapping[type[ReleasedJudgeConfig], Mapping[str, str]] = {
    UnifiedRewardConfig: UNIFIED_REWARD_FILES,
    UnifiedRewardEditConfig: UNIFIED_REWARD_FILES,
    RationalRewardsConfig: RATIONAL_REWARDS_FILES,
    RationalRewardsEditConfig: RATIONAL_REWARDS_FILES,
    WeGenBenchCotConfig: WEGENBENCH_FILES,
}
MakeMetric = Callable[..., ReleasedJudgeConfig]


@pytest.fixture
def make_metric(tmp_path: Path) -> MakeMetric:
    """Return a function that returns a metric of the given class, with the wording of a made-up checkout."""

    def make(kind: type[ReleasedJudgeConfig], **options: Any) -> ReleasedJudgeConfig:
        metric: ReleasedJudgeConfig = fill_in_defaults(kind(wording=write_release(tmp_path, FILES[kind]), **options))
        return metric

    return make


def write_aspects(*values: object) -> str:
    """Return UnifiedReward 2.0's reply about one image."""
    names = ("Alignment", "Coherence", "Style")
    return "\n".join(f"{name} Score (1-5): {value}" for name, value in zip(names, values, strict=False))


def write_critique(*values: object, names: Sequence[str] = ("Text Faithfulness", "Physical and Visual Quality")) -> str:
    """Return RationalRewards' reply about one image or edit: scores for the named aspects, and for text rendering."""
    aspects = "\n".join(
        f"{number}. {name}:\n## Justification: Two of\n3 cats.\n## Score: {value}"
        for number, (name, value) in enumerate(zip((*names, "Text Rendering"), values, strict=False), 1)
    )
    end = (
        "# Summary: Good\ncats.\n\n# User Request Refinement:\n## Refinement Comments: More.\n## Refined Request: Cats."
    )
    return f"# User Request Analysis\n1. Two cats.\n# Detailed Judgement\n{aspects}\n{end}"


EDIT_NAMES = ("Text Faithfulness", "Image Faithfulness", "Physical and Visual Quality")


def score(metric: ReleasedJudgeConfig, verdict: Verdict) -> float | None:
    ratings = [rating._asdict() for rating in verdict.ratings]
    return metric.score(Evidence({"ratings": ratings, "rationale": verdict.rationale})).score


def test_unified_reward_rates_three_aspects(make_metric: MakeMetric) -> None:
    reply = write_aspects(2.694700002670288, 3, "4.5")
    metric = make_metric(UnifiedRewardConfig, seed=3)
    verdict, ((request,),) = run(metric.inspect("a {red} cat"), [reply])
    assert request.messages[0].text == "Score it.\nCaption: [a {red} cat]"
    assert (request.max_tokens, request.temperature, request.seed, request.image_at) == (4096, 0.0, 3, 0)
    assert map_ratings(verdict.ratings) == {"alignment": 2.694700002670288, "coherence": 3.0, "style": 4.5}
    assert score(metric, verdict) == pytest.approx(10.194700002670288 / 3)
    assert score(make_metric(UnifiedRewardConfig, rating="style"), verdict) == 4.5


def test_unified_reward_edit_rates_the_edit_and_then_the_image(make_metric: MakeMetric) -> None:
    metric = make_metric(UnifiedRewardEditConfig)
    replies = [
        '{\n"reasoning": "So.",\n"score": [20, 9]\n}',
        '```json\n{"reasoning": "It.", "score": [25, 16.0]}\n```',
    ]
    verdict, ((first, second),) = run(metric.inspect("make it {red}"), replies)
    assert [each.messages[0].text for each in (first, second)] == [
        "Did it follow\n{}: make it {red}\n", "How good is it?\n"
    ]  # fmt: skip
    assert (first.view, second.view) == (0, 1) and metric.views == ("edit", "result")
    assert verdict.rationale == "So. It." and score(metric, verdict) == pytest.approx(12 * 10 / 25)


def test_rational_rewards_criticises_and_rates_an_image(make_metric: MakeMetric) -> None:
    metric = make_metric(RationalRewardsConfig)
    verdict, ((request,),) = run(metric.inspect("a {red} cat"), [write_critique(3.5, "2.75 (seams)", "N/A")])
    before, after = "Instruction: a {red} cat\n1. Generated ", "\n\nJudge."
    assert (request.messages[0].text, request.image_at) == (before + after, (len(before),))
    assert request.system == "You judge images."
    assert (request.max_tokens, request.temperature) == (2048, 0.1)
    assert map_ratings(verdict.ratings) == {"text_faithfulness": 3.5, "physical_quality": 2.75}
    assert verdict.rationale == "Good cats." and score(metric, verdict) == pytest.approx((3.125 - 1) / 3)
    clipped, _ = run(metric.inspect("a cat"), [write_critique(5, 0, 4)])
    assert score(metric, clipped) == pytest.approx((3 - 1) / 3)


def test_wegenbenchs_judge_takes_points_off_for_faults(make_metric: MakeMetric) -> None:
    metric = make_metric(WeGenBenchCotConfig)
    reply = "综合评价：猫是蓝的。\n扣分细节：\n1. color：猫应为红色，扣3分\n总扣分：3分\n得分： 7 分"
    verdict, ((request,),) = run(metric.inspect("a {red} cat"), [reply])
    assert request.messages[0].text == "看图。描述如下：a {red} cat"
    assert (request.max_tokens, request.temperature, request.image_at) == (1024, 0.0, 0)
    assert verdict.rationale.startswith("综合评价：猫是蓝的。") and score(metric, verdict) == 7
    for unreadable in ("得分：11分", "得分：0分", "7", f"得分：{'9' * 5000}分"):
        with pytest.raises(UnreadableReply):
            run(metric.inspect("a cat"), [unreadable])


def test_rational_rewards_sees_the_source_of_an_edit_first(make_metric: MakeMetric) -> None:
    metric = make_metric(RationalRewardsEditConfig)
    verdict, ((request,),) = run(metric.inspect("paint it"), [write_critique(4, 3, 2, 1, names=EDIT_NAMES)])
    text = request.messages[0].text
    first, second = request.image_at  # type: ignore[misc]
    assert (text[:first], text[first:second], text[second:]) == (
        "Instruction: paint it\n1. Source ", "\n2. Edited ", "\n\nAnswer. \n\nFour aspects."
    )  # fmt: skip
    assert metric.views == ("edit",) and request.system == "You judge edits."
    assert score(metric, verdict) == pytest.approx(0.5) and len(verdict.ratings) == 4


@pytest.mark.parametrize(
    ("kind", "replies", "problem"),
    [
        (UnifiedRewardConfig, [write_aspects(2, 3)], "a line for each of .*, found no Style Score"),
        (UnifiedRewardConfig, [write_aspects(2, 3, 6)], "Style Score from 1 to 5, found '6'"),
        (UnifiedRewardConfig, ["It is a 4."], "found no Alignment Score"),
        (UnifiedRewardEditConfig, ['{"score": [3, 4]}', '{"score": 4}'], 'a list "score" of 2 numbers, found none'),
        (UnifiedRewardEditConfig, ['{"score": [3, 40]}', '{"score": [4, 4]}'], "overediting from 0 to 25, found '40'"),
        (RationalRewardsConfig, [write_critique(3.5)], "below each aspect, found none for physical_quality"),
        (RationalRewardsConfig, [write_critique(3.5, "fine", 2)], "N/A as the score for physical_quality, found"),
        (RationalRewardsConfig, [write_critique("N/A", "N/A", "N/A")], "at least one aspect, found N/A for all"),
        (RationalRewardsEditConfig, [write_critique(4, 3, 2)], "below each aspect, found none for image_faithfulness"),
    ],
)
def test_a_reply_in_another_form_is_unreadable(
    kind: type[ReleasedJudgeConfig], replies: list[str], problem: str, make_metric: MakeMetric
) -> None:
    with pytest.raises(UnreadableReply, match=problem) as raised:
        run(make_metric(kind).inspect("a cat"), replies)
    assert "the reply ends with '" in str(raised.value)


def test_a_judge_without_its_released_wording_is_refused(tmp_path: Path) -> None:
    for kind, files in FILES.items():
        with pytest.raises(ConfigError, match="wording: expected the folder with a checkout of"):
            fill_in_defaults(kind())
        assert kind().json_role is None
        with pytest.raises(ConfigError, match="max_tokens: 9 is ignored with the wording of"):
            fill_in_defaults(kind(wording=write_release(tmp_path, files), max_tokens=9))
        with pytest.raises(ConfigError, match=r"expected a checkout of .*, but .* has none"):
            fill_in_defaults(kind(wording=str(Path(__file__).parent)))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    serving = Server()
    serving.trial = make_completion("yes")
    yield serving
    serving.close()


def test_a_sweep_asks_a_service_and_stores_unreadable_replies(server: Server, tmp_path: Path) -> None:
    def reply(number: int, body: Mapping[str, Any]) -> Answer:
        system, user = body["messages"]
        shown = [part.get("text", "image") for part in user["content"]]
        assert system["content"] == "You judge edits." and shown.count("image") == 2
        return make_completion("Fine." if number == 0 else write_critique(4, 3, 4, "N/A", names=EDIT_NAMES))

    server.script = reply
    bench = write_benchmark(tmp_path / "bench", ["atlas"], count=4)
    folder = write_release(tmp_path / "release", RATIONAL_REWARDS_FILES)
    judge = f"family: openai, checkpoint: judge, endpoint: '{server.url}', key_variable: {KEY_VARIABLE}"
    words = ["metric=[rational_rewards_edit]", f"metrics.rational_rewards_edit.wording={folder}"]
    columns = ["benchmark.columns.source=image", f"+models.vlm={{{judge}, max_retries: 0}}"]
    tables = read_run_tables(run_bench(bench, tmp_path / "store", *words, *columns, "max_failed=1"))
    scores = tables["scores"]["score"]
    assert scores.isna().sum() == 1 and set(scores.dropna().round(6)) == {round((11 / 3 - 1) / 3, 6)}
    (error,) = tables["errors"]["message"]
    assert "found none for text_faithfulness; the reply ends with 'Fine.'" in error


def test_a_local_checkpoint_rates_images_and_compares_pairs(tmp_path: Path) -> None:
    bench = write_benchmark(tmp_path / "bench", ["atlas", "flint"], count=4)
    folder = write_release(tmp_path / "release", UNIFIED_REWARD_FILES)
    judge = save_replying_vlm(tmp_path / "rating", write_aspects(2, 3, 5.0))
    words = ["metric=[unified_reward]", f"metrics.unified_reward.wording={folder}"]
    models = f"+models.vlm={{family: vlm, checkpoint: '{judge}'}}"
    rated = run_bench(bench, tmp_path / "store", *words, models).results.read_scores().to_pylist()
    assert len(rated) == 8 and {round(row["score"], 9) for row in rated} == {3.333333333}
    judge = save_replying_vlm(tmp_path / "ranking", write_think_reply(9, 3, "Image 1 is better"))
    words = ["metric=[pairwise]", f"metrics.pairwise.wording={folder}", "metrics.pairwise.release=unified_reward_think"]
    models = f"+models.vlm={{family: vlm, checkpoint: '{judge}'}}"
    compared = run_bench(bench, tmp_path / "store", *words, models).results.read_scores().to_pylist()
    assert len(compared) == 8 and {row["score"] for row in compared} == {0.5}, compared[0]["error"]


def test_quoted_replies_contain_no_characters_that_a_table_cannot_store(make_metric: MakeMetric) -> None:
    with pytest.raises(UnreadableReply) as raised:
        run(make_metric(UnifiedRewardConfig).inspect("a cat"), [json.dumps("\ud800") + "\x00\n" * 90])
    assert "\\x00" in str(raised.value) and "\n" not in str(raised.value)
