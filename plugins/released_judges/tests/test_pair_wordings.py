"""A pairwise judge gets the released wording, and its replies are parsed in the format that released models write."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from plugins.released_judges.tests.made_checkouts import (
    GENAI_BENCH_FILES,
    MMRB2_FILES,
    RATIONAL_REWARDS_FILES,
    UNIFIED_REWARD_FILES,
)
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.pairwise import PairwiseConfig
from plumbline.operators.metrics.writing import UnreadableReply
from tests.jobs.test_pairwise_sweep import JudgedBenchmark, read_images, read_pixel
from tests.operators.metrics.made_releases import write_release
from tests.operators.metrics.scripted import make_reply, run
from tests.operators.metrics.test_wording import fill_in_defaults
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_completion

FILES_BY_NAME: Mapping[str, Mapping[str, str]] = {
    "unified_reward": UNIFIED_REWARD_FILES,
    "unified_reward_2": UNIFIED_REWARD_FILES,
    "unified_reward_think": UNIFIED_REWARD_FILES,
    "unified_reward_flex": UNIFIED_REWARD_FILES,
    "rational_rewards": RATIONAL_REWARDS_FILES,
    "genai_bench": GENAI_BENCH_FILES,
    "mmrb2": MMRB2_FILES,
}


def write_shares(*shares: object) -> str:
    """Return a reply of UnifiedReward 2.0 with these scores for both images, listed aspect by aspect."""
    names = ("Alignment", "Coherence", "Style")
    return "\n".join(
        f"{name} Score:\n Image 1: {shares[2 * place]}\n Image 2: {shares[2 * place + 1]}\n"
        for place, name in enumerate(names)
    )


def write_think_reply(first: int, second: int, winner: str, end: str = "</answer>") -> str:
    """Return a reply in the form that UnifiedReward-Think's prompt shows."""
    return (
        f"<think>\n1. Semantic consistency: \n    Image 1 ({first}/10) - Two cats. Image 2 is better lit.; \n"
        f"    Image 2 ({second}/10) - One cat.\nTotal score:\nImage 1: {first}={first}\nImage 2: {second}={second}\n"
        f"</think>\n<answer>{winner}{end}"
    )


def write_flex_reply(winner: str, reason: str = "It has both.") -> str:
    """Return a reply in the form that UnifiedReward-Flex's prompt shows, with many nested objects."""
    dimension = {"name": "Count", "reason_1": "{two}", "reason_2": "one", "score_1": 8, "score_2": 2}
    category = {"name": "A. Semantic", "dims": [dimension] * 30, "cat_reason": "Counted.", "cat_winner": "Image 2"}
    reply = {"prompt": "two cats", "categories": [category], "reason": reason, "winner": winner}
    return f"```json\n{json.dumps(reply, indent=2)}\n```"


def write_critique(scores: Mapping[str, tuple[object, object]]) -> str:
    """Return a reply in the form that RationalRewards' prompt shows, given both images' scores by aspect."""
    aspects = "\n".join(
        f"{number}. {name}:\n## Justification: Score A is fair.\n## Score A: {first}\n## Score B: {second}\n"
        "## Winner: Image A"
        for number, (name, (first, second)) in enumerate(scores.items(), 1)
    )
    return f"# User Request Analysis\n1. Cats.\n# Detailed Judgement\n{aspects}\n# Summary: A has two\ncats."


def write_preference(letter: str) -> str:
    reasons = {"faithfulness_to_prompt": "A.", "comparison_summary": "A is right."}
    return json.dumps({"reasoning": reasons, "score": 5, "better_response": letter, "confidence": 0.4})


TEXT, VISUAL, RENDERING = "Text Faithfulness", "Physical and Visual Quality", "Text Rendering"
READABLE: list[tuple[str, str, str, str | None]] = [
    ("unified_reward", "Image 1 is better.", "first", "Image 1 is better."),
    ("unified_reward", "Alignment: equal.\nConclusion: Image 2 is better.", "second", None),
    ("unified_reward", "Both images are equally good.", "tie", None),
    ("unified_reward_2", write_shares(0.435699999332428, 0.564300000667572, 0.4, 0.6, 0.5, 0.5), "second", None),
    ("unified_reward_2", write_shares(1, 0, 0.4, 0.6, 0.5, 0.5), "first", "Alignment 1 to 0, Coherence 0.4 to 0.6, "
     "Style 0.5 to 0.5"),
    ("unified_reward_2", write_shares(0.6, 0.4, 0.4, 0.6, 0.5, 0.5), "tie", None),
    ("unified_reward_think", write_think_reply(9, 5, "Image 1 is better"), "first", None),
    ("unified_reward_think", write_think_reply(3, 5, "\nImage 2 is better\n"), "second", None),
    ("unified_reward_flex", write_flex_reply("Image 1"), "first", "It has both."),
    ("unified_reward_flex", write_flex_reply("image 2."), "second", "It has both."),
    ("rational_rewards", write_critique({TEXT: (3.5, 2), VISUAL: (3, 3.2), RENDERING: ("N/A", "N/A")}), "first",
     "A has two cats."),
    ("rational_rewards", write_critique({TEXT: (2, "3.25 (minor)"), "Physical Quality": (3, 3)}), "second", None),
    ("rational_rewards", write_critique({TEXT: (2, 3), VISUAL: (3, 2), RENDERING: ("[N/A]", "N/A")}).replace("[", "")
     .replace("]", ""), "tie", None),
    ("rational_rewards", "**1. Text Faithfulness**\n**Score A:** 2.0\n**Score B:** 4\n", "second", None),
    ("genai_bench", "A is sharper.\n### Verdict:\n1. Model A is better: [[A>B]]", "first", None),
    ("genai_bench", "[[B>>A]]", "second", None),
    ("genai_bench", "[[A=B=Good]]", "tie", None),
    ("genai_bench", "Both show dogs. [[A=B=Bad]]", "neither", None),
    ("mmrb2", write_preference("A"), "first", "A is right."),
    ("mmrb2", f"```json\n{write_preference('B')}\n```", "second", "A is right."),
]  # fmt: skip
UNREADABLE: list[tuple[str, str, str]] = [
    ("unified_reward", "The first image is better.", "expected exactly one of 'Image 1 is better', .*, found 0"),
    ("unified_reward", "Image 1 is better. No, Image 2 is better.", "found 2"),
    ("unified_reward_2", "Alignment Score:\n Image 1: 0.4", "found no image 2's Alignment score"),
    (
        "unified_reward_2",
        write_shares(0.4, 0.6, 0.4, 0.6, 7, 0.5),
        "image 1's Style score from 0 to 1, found '7'",
    ),
    ("unified_reward_2", write_shares(0.4, "nan", 0.4, 0.6, 0.5, 0.5), "image 2's Alignment score from 0 to 1"),
    ("unified_reward_think", write_think_reply(9, 5, "Image 1 is better", end=""), "between <answer> and </answer>"),
    ("unified_reward_think", write_think_reply(9, 5, "Image 1"), "found 0;"),
    ("unified_reward_flex", write_flex_reply("Image 1/2"), "Image 1 or Image 2, found 'Image 1/2'"),
    ("unified_reward_flex", write_flex_reply("Image 1")[:-20], 'a JSON object with a "winner", found none'),
    ("rational_rewards", "Image A is better.", "lines '## Score A: NUMBER' below the aspects, found none"),
    (
        "rational_rewards",
        write_critique({TEXT: ("good", 2)}),
        "as the score for text_faithfulness, found '## Score A: good'",
    ),
    ("rational_rewards", write_critique({TEXT: ("N/A", 2), VISUAL: (2, 2)}), "text_faithfulness, found only one"),
    ("genai_bench", "Model A is better.", "expected one of the labels .*, found none"),
    ("genai_bench", "[[A>B] or [B>A]]", "found '"),
    ("mmrb2", write_preference("C"), "A or B, found 'C'"),
    ("mmrb2", "A", 'a JSON object with a "better_response", found none'),
]


@pytest.fixture
def make_metric(tmp_path: Path) -> Callable[[str], PairwiseConfig]:
    """Return a function that returns the pairwise metric with the named wording, read from a made-up checkout."""

    def make(name: str) -> PairwiseConfig:
        folder = write_release(tmp_path / name, FILES_BY_NAME[name])
        metric: PairwiseConfig = fill_in_defaults(PairwiseConfig(wording=folder, release=name))
        return metric

    return make


@pytest.mark.parametrize(("name", "reply", "choice", "reason"), READABLE)
def test_a_reply_in_the_released_format_is_read(
    name: str, reply: str, choice: str, reason: str | None, make_metric: Callable[[str], PairwiseConfig]
) -> None:
    (first, second), ((request, swapped),) = run(make_metric(name).compare("a {red}  cat"), [reply, reply])
    assert first == second and first.choice == choice
    assert first.p_first == {"first": 1.0, "second": 0.0}.get(choice, 0.5)
    assert reason is None or first.reason == reason
    assert (request.view, swapped.view) == (0, 1) and "a {red}  cat" in request.messages[0].text
    assert swapped._replace(view=0) == request


@pytest.mark.parametrize(("name", "reply", "problem"), UNREADABLE)
def test_a_reply_in_another_form_is_unreadable_and_the_message_quotes_it(
    name: str, reply: str, problem: str, make_metric: Callable[[str], PairwiseConfig]
) -> None:
    with pytest.raises(UnreadableReply, match=problem) as raised:
        run(make_metric(name).compare("a cat"), [reply, reply])
    assert f"the reply ends with {reply[-200:]!r}; replies are parsed as in" in str(raised.value)


def test_a_truncated_or_very_long_reply_is_unreadable(make_metric: Callable[[str], PairwiseConfig]) -> None:
    metric = make_metric("unified_reward_flex")
    with pytest.raises(UnreadableReply, match="and it was cut at the maximum number of tokens"):
        run(metric.compare("a cat"), [write_flex_reply("Image 1"), make_reply("{" * 50, complete=False)])
    for name in FILES_BY_NAME:
        with pytest.raises(UnreadableReply, match="expected at most 60000 characters, found 1000000"):
            run(make_metric(name).compare("a cat"), ["{" * 1_000_000] * 2)
        with pytest.raises(UnreadableReply, match="expected"):
            run(make_metric(name).compare("a cat"), ["[[# *1. " * 7_000] * 2)


def test_images_are_found_where_the_release_stores_them(make_metric: Callable[[str], PairwiseConfig]) -> None:
    shown = {}
    for name in FILES_BY_NAME:
        request = next(make_metric(name).compare("{x}"))[0]
        text, places = request.messages[0].text, request.image_at
        places = (places, places) if isinstance(places, int) else places
        shown[name] = f"{text[: places[0]]}#{text[places[0] : places[1]]}#{text[places[1] :]}"
    assert shown == {
        "unified_reward": "##Which is better?\nCaption: [{x}]",
        "unified_reward_2": "##Score both.\nCaption: [{x}]",
        "unified_reward_think": "##Think.\n        The caption is 「{x}」.\n        ",
        "unified_reward_flex": '##Prompt: [{x}]\n{\n  "winner": "Image 1/2"\n}\n',
        "rational_rewards": "Request: {x}\n1. A #\n2. B #\n\nCompare.",
        "genai_bench": "Judge.\nPrompt: {x}\nA: #\nB: #\n\nSay [[A>B]] or [[B>A]].",
        "mmrb2": 'Compare. {"better_response": "A" or "B"}[ORIGINAL PROMPT TO MODEL:]{x}[RESPONSE A:]#[RESPONSE B:]#',
    }


def test_each_wording_has_its_own_key(make_metric: Callable[[str], PairwiseConfig]) -> None:
    options = [make_metric(name).list_comparison_options() for name in FILES_BY_NAME]
    assert len({each["wording"] for each in options}) == len(FILES_BY_NAME)
    assert all(make_metric(name).json_role is None for name in FILES_BY_NAME)


def test_a_checkout_of_several_judges_needs_the_name_of_one(tmp_path: Path) -> None:
    folder = write_release(tmp_path, UNIFIED_REWARD_FILES)
    with pytest.raises(ConfigError, match=r"contains the prompts of unified_reward, .*; name one of them"):
        fill_in_defaults(PairwiseConfig(wording=folder))
    with pytest.raises(ConfigError, match=r"expected a checkout of facebookresearch/MMRB2 \(evaluate/"):
        fill_in_defaults(PairwiseConfig(wording=folder, release="mmrb2"))
    with pytest.raises(ConfigError, match=r"expected one of .*, genai_bench, .*, found hpsv3; choose one of them"):
        PairwiseConfig(wording=folder, release="hpsv3")
    with pytest.raises(ConfigError, match=r"requires .*wording, found none; set it to the folder"):
        PairwiseConfig(release="mmrb2")
    with pytest.raises(ConfigError, match="tie: False is ignored with the wording of CodeGoat24/UnifiedReward"):
        fill_in_defaults(PairwiseConfig(wording=folder, release="unified_reward", tie=False))


@pytest.mark.parametrize(
    ("name", "file", "text", "problem"),
    [
        ("unified_reward_flex", "UnifiedReward-Flex/flex_pair_rank_image_generation.py", 'problem = f"{other}"',
         "has a problem with the slots other, not prompt"),
        ("rational_rewards", "reward_model_evaluation/modular_rm_eval/prompts.py", 'GEN_PROMPT_TEMPLATE = "{request}"',
         "has a GEN_PROMPT_TEMPLATE without one {request} and 2 <image>"),
        ("genai_bench", "genaibench/templates/image_generation/pairwise.txt", "<prompt> <left_image>",
         "lacks <prompt>"),
        ("mmrb2", "evaluate/generate_judgements/evaluator_apis/llm_judges/evaluation_prompts.py", "",
         "has 0 returns in get_image_gen_prompt, expected one text"),
    ],
)  # fmt: skip
def test_a_changed_checkout_is_refused(name: str, file: str, text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        fill_in_defaults(PairwiseConfig(wording=write_release(tmp_path, {file: text}), release=name))


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgedBenchmark]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    server = Server()
    server.trial = make_completion("yes")
    yield JudgedBenchmark(tmp_path, server)
    server.close()


def test_a_sweep_sends_the_released_wording_to_a_service(judged: JudgedBenchmark, tmp_path: Path) -> None:
    def prefer_brighter(number: int, body: Mapping[str, Any]) -> Answer:
        first, second = (read_pixel(image)[0] for image in read_images(body))
        if {first, second} == {100, 200}:
            return make_completion("I cannot tell.")
        return make_completion(write_critique({TEXT: (1 + first / 100, 1 + second / 100)}))

    judged.server.script = prefer_brighter
    folder = write_release(tmp_path / "RationalRewards", RATIONAL_REWARDS_FILES)
    said = judged.sweep(f"metrics.pairwise.wording={folder}")
    assert "12 pairs compared in both orders" in said or "8 pairs" in said
    content = judged.server.bodies[0]["messages"][0]["content"]
    assert [part.get("text", "image") for part in content][1::2] == ["image", "image"]
    assert judged.server.bodies[0]["temperature"] == 0.1 and "response_format" not in judged.server.bodies[0]
    assert judged.read_means() == {"dim": 0.0, "grey": 1.0, "light": 1.0}
    compared = judged.read_table("comparisons")
    assert set(compared[compared["p_first"].notna()]["choice"]) == {"first", "second"}
    (error,) = {each["message"] for each in compared["error"].dropna()}
    assert "the reply ends with 'I cannot tell.'" in error and "expected lines '## Score A: NUMBER'" in error
