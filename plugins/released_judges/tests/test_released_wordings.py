"""Requests in a release's wording equal those of the release's code, and replies are parsed in the same way."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from plugins.released_judges.tests.test_pair_wordings import write_critique, write_preference
from plugins.released_judges.tests.test_ratings import EDIT_NAMES
from plugins.released_judges.tests.test_ratings import write_critique as write_rating
from plumbline.operators.metrics.judges.pairwise import PairwiseConfig
from plumbline.operators.models.calls import Request
from plumbline.plugins.released_judges.judges.pairwise_edit import PairwiseEditConfig
from plumbline.plugins.released_judges.judges.rational_rewards import RationalRewardsConfig, RationalRewardsEditConfig
from plumbline.plugins.released_judges.judges.unified_reward import UnifiedRewardConfig, UnifiedRewardEditConfig
from plumbline.plugins.released_judges.judges.wegenbench import WeGenBenchCotConfig
from tests.operators.metrics.test_released_wordings import (
    IMAGE_PLACEHOLDER,
    PROMPTS,
    ProgramRun,
    find_checkout,
    get_profile,
    run_ours,
    run_released,
)

SCRIPT_START = """
import re
ABSENT += ["aiohttp", "av", "datasets", "fire", "huggingface_hub", "pandas", "regex", "tqdm", "google", "tenacity"]
"""
UNIFIED_REWARD_SCRIPT = """
from pathlib import Path

def run(given):
    file, prompt = given
    asked = []
    def evaluate_batch(data, *rest, **options):
        asked.append(data[0])
        return [{"model_output": "", "answer": "none"}]
    rows = [{"vote_type": "leftvote", "left_image": MagicMock(), "right_image": MagicMock(), "prompt": prompt}]
    sys.modules["datasets"] = SimpleNamespace(load_dataset=lambda *_: {"test": rows})
    sys.modules["tqdm"] = SimpleNamespace(trange=range)
    sys.modules["vllm_qwen.vllm_request"] = SimpleNamespace(evaluate_batch=evaluate_batch)
    source = re.sub("(?m)^(prompt|instruction) = *(''|\\"\\").*$", r"\\1 = GIVEN_PROMPT", Path(file).read_text())
    with contextlib.redirect_stdout(io.StringIO()):
        exec(source, {"GIVEN_PROMPT": prompt, "open": lambda *_, **__: io.StringIO()})
    return [[len(one["images"]), one["problem"]] for one in asked], None
"""
UNIFIED_REWARD_SCRIPTS = {
    "unified_reward": "benchmark_evaluation/vLLM_evaluation/test_qwen_genai_image.py",
    "unified_reward_2": "inference_qwen/UnifiedReward-2.0-inference/pair_score_image_generation.py",
    "unified_reward_flex": "UnifiedReward-Flex/flex_pair_rank_image_generation.py",
    "unified_reward_think": "UnifiedReward-Think/inference_qwen/UnifiedReward-Think-qwen3-inference/"
    "qwen3_infer_cot_image_generation.py",
}


def make_metric(checkout: str, release: str) -> PairwiseConfig:
    metric: PairwiseConfig = PairwiseConfig(wording=find_checkout(checkout), release=release)
    return metric.complete_options(get_profile)


def list_parts(request: Request) -> list[str]:
    """Return the parts of a request about two images as a service gets them; IMAGE_PLACEHOLDER stands for an image."""
    text, places = request.messages[0].text, request.image_at
    first, second = (places, places) if isinstance(places, int) else places
    return [
        part for part in (text[:first], IMAGE_PLACEHOLDER, text[first:second], IMAGE_PLACEHOLDER, text[second:]) if part
    ]


@pytest.mark.parametrize("name", UNIFIED_REWARD_SCRIPTS)
def test_unified_rewards_questions_equal_those_of_the_release(name: str) -> None:
    given = [(UNIFIED_REWARD_SCRIPTS[name], prompt) for prompt in PROMPTS]
    released = run_released("UnifiedReward", SCRIPT_START + UNIFIED_REWARD_SCRIPT, given)
    metric = make_metric("UnifiedReward", name)
    for prompt, theirs in zip(PROMPTS, released, strict=True):
        ours, swapped = next(metric.compare(prompt))
        ((count, problem),) = theirs.requests
        assert count == 2 and list_parts(ours) == list_parts(swapped) == [IMAGE_PLACEHOLDER, IMAGE_PLACEHOLDER, problem]


def compare_with_release(
    metric: PairwiseConfig, replies: Sequence[str], released: Sequence[ProgramRun], joined: bool
) -> list[Any]:
    """Assert that requests and choices equal the release's; return the release's choices.

    If `joined`, the parts of each request are joined before they are compared.
    """
    for index, (prompt, theirs) in enumerate(zip(PROMPTS, released, strict=True)):
        reply = replies[index % len(replies)]
        ours = run_ours(metric.compare(prompt), [reply, reply], lambda request: {"parts": list_parts(request)})
        parts = theirs.requests
        assert ("".join if joined else list)(ours.requests[0]["parts"]) == ("".join if joined else list)(parts)
        assert (ours.result and ours.result[0].choice) == theirs.result
    return [one.result for one in released]


RATIONAL_REWARDS_SCRIPT = """
sys.path.insert(0, "reward_model_evaluation")
from modular_rm_eval import inference_core, parsing, scoring

def run(given):
    prompt, reply = given
    image = {"bytes": b""}
    (message,) = inference_core.build_messages(prompt, [], image, image, "gen")
    parts = [part.get("text", "[image]") for part in message["content"]]
    aspects = ["text_faithfulness", "physical_quality", "text_rendering"]
    read = parsing.parse_pairwise_response(reply, aspects)
    totals = [scoring.compute_pred_total(read, "gen", "all", each, 2.5) for each in "ab"]
    return parts, {"A>B": "first", "B>A": "second", "A=B": "tie"}[scoring.get_ranking(*totals)]
"""
ASPECT_NAMES = ("Text Faithfulness", "Physical Quality", "Text Rendering")
CRITIQUES = [
    write_critique(dict(zip(ASPECT_NAMES, [(3.5, 2), (3, 3), ("N/A", "N/A")], strict=True))),
    write_critique(dict(zip(ASPECT_NAMES, [(2, "3.25 (good)"), (4, 3), (1, 1)], strict=True))),
    write_critique(dict(zip(ASPECT_NAMES, [(2.5, 2), (3, "3.50"), ("N/A", "N/A")], strict=True))),
    write_critique(dict(zip(ASPECT_NAMES[:2], [(2.5, 2), (3, 3.25)], strict=True))),
]


def test_rational_rewards_questions_and_sums_equal_those_of_the_release() -> None:
    """The release's prompt and parser differ in the second aspect's heading; the replies here use the parser's."""
    given = [(prompt, CRITIQUES[index % len(CRITIQUES)]) for index, prompt in enumerate(PROMPTS)]
    released = run_released("RationalRewards", SCRIPT_START + RATIONAL_REWARDS_SCRIPT, given)
    metric = make_metric("RationalRewards", "rational_rewards")
    choices = compare_with_release(metric, CRITIQUES, released, joined=False)
    assert {*choices} == {"first", "second", "tie"}


GENAI_BENCH_SCRIPT = """
sys.modules["regex"] = re
sys.modules["genaibench.mllm_tools"] = MagicMock()
import inference
from genaibench.utils import load_template

CHOICES = {"[[A>B]]": "first", "[[A>>B]]": "first", "[[B>A]]": "second"}
CHOICES |= {"[[A=B=Good]]": "tie", "[[A=B=Bad]]": "neither"}

def run(given):
    prompt, reply = given
    asked = []
    example = {"prompt": prompt, "left_image": "[image]", "right_image": "[image]"}
    config = json.load(open("inference_configs.json"))["image_generation"]
    keys = config["input_keys"]
    said = inference.run_pairwise_example(lambda parts: asked.extend(parts) or reply, example, keys["left"],
                                          keys["right"], config["input_types"],
                                          load_template("image_generation", "pairwise"), {})
    return [part["content"] for part in asked], CHOICES.get(inference.parse_response(said, "leftvote")[0])
"""
VERDICTS = ["So.\n1. A: [[A>B]]", "[[B>A]] it is", "[[A=B=Good]]", "[[A=B=Bad]]", "A > B", "[[A>>B]]\n[[B>A]]", "[[C]]"]


def test_genai_benchs_questions_and_labels_equal_those_of_the_release() -> None:
    given = [(prompt, VERDICTS[index % len(VERDICTS)]) for index, prompt in enumerate(PROMPTS)]
    released = run_released("GenAI-Bench", SCRIPT_START + GENAI_BENCH_SCRIPT, given)
    choices = compare_with_release(make_metric("GenAI-Bench", "genai_bench"), VERDICTS, released, joined=False)
    assert {*choices} == {"first", "second", "tie", "neither", None}


MMRB2_SCRIPT = """
sys.path.insert(0, "evaluate/generate_judgements")
from evaluator_apis.llm_judges import api_pairwise_evaluator as release
release.json_repair.loads = json.loads

def run(given):
    prompt, reply = given
    asked = []
    judge = object.__new__(release.APIPairwiseEvaluator)
    judge.generate_response = lambda parts: asked.extend(parts) or reply
    image = [["image", "[image]"]]
    try:
        (found,) = judge.pairwise_evaluate([["text", prompt]], image, image, "image")
        choice = {"A": "first", "B": "second"}.get(found.judgement)
    except (ValueError, LookupError, TypeError):
        choice = None
    return [text for _, text in asked], choice
"""
MMRB2_REPLIES = [write_preference("A"), f"```json\n{write_preference('B')}\n```", write_preference("C"), "A"]


def test_mmrb2s_questions_and_choices_equal_those_of_the_release() -> None:
    given = [(prompt, MMRB2_REPLIES[index % len(MMRB2_REPLIES)]) for index, prompt in enumerate(PROMPTS)]
    released = run_released("MMRB2", SCRIPT_START + MMRB2_SCRIPT, given)
    choices = compare_with_release(make_metric("MMRB2", "mmrb2"), MMRB2_REPLIES, released, joined=True)
    assert {*choices} == {"first", "second", None}


EDIT_SCRIPTS = {
    "unified_reward": "inference_qwen/UnifiedReward-2.0-inference/point_score_ACS_image_generation.py",
    "following": "UnifiedReward-Edit/edit_pointwise_instruction_following.py",
    "quality": "UnifiedReward-Edit/edit_pointwise_quality.py",
}


@pytest.mark.parametrize("name", EDIT_SCRIPTS)
def test_unified_rewards_questions_about_one_image_equal_those_of_the_release(name: str) -> None:
    given = [(EDIT_SCRIPTS[name], prompt) for prompt in PROMPTS]
    released = run_released("UnifiedReward", SCRIPT_START + UNIFIED_REWARD_SCRIPT, given)
    kind = UnifiedRewardConfig if name == "unified_reward" else UnifiedRewardEditConfig
    metric = kind(wording=find_checkout("UnifiedReward")).complete_options(get_profile)
    for prompt, theirs in zip(PROMPTS, released, strict=True):
        ours = next(metric.inspect(prompt))[name == "quality"]
        assert (ours.messages[0].text, ours.image_at) == (theirs.requests[0][1], 0)
        assert theirs.requests[0][0] == (2 if name == "following" else 1)


RATING_SCRIPT = """
from pathlib import Path
page = Path("README.md").read_text().split("```python\\n")[1:]
blocks = [block.split("\\n```")[0].split("# --- usage example ---")[0] for block in page]
code = {}
for block in blocks:
    if "def build_t2i_messages" in block or "def build_i2i_messages" in block:
        exec(block, code)

def run(given):
    kind, prompt, reply = given
    images = [b""] * (1 if kind == "t2i" else 2)
    system, user = code[f"build_{kind}_messages"](prompt, *images)
    parts = [system["content"], *(part.get("text", "[image]") for part in user["content"])]
    score, found = code[f"parse_{kind}_scores"](reply)
    return parts, score
"""


@pytest.mark.parametrize("kind", ["t2i", "i2i"])
def test_rational_rewards_questions_about_one_image_and_scores_equal_those_of_the_release(kind: str) -> None:
    names = EDIT_NAMES if kind == "i2i" else EDIT_NAMES[::2]
    scores: Sequence[tuple[object, ...]] = [(3.5, 2, 3, "N/A"), (1, "2.75 (so)", 4, 2.5), ("4.0", 4, 4, 4)]
    replies = [write_rating(*row[4 - len(names) - 1 :], names=names) for row in scores]
    given = [(kind, prompt, replies[index % len(replies)]) for index, prompt in enumerate(PROMPTS)]
    released = run_released("RationalRewards", SCRIPT_START + RATING_SCRIPT, given)
    config = RationalRewardsConfig if kind == "t2i" else RationalRewardsEditConfig
    metric = config(wording=find_checkout("RationalRewards")).complete_options(get_profile)
    for (_, prompt, reply), theirs in zip(given, released, strict=True):
        ours = run_ours(metric.inspect(prompt), [reply], lambda request: {"parts": list_rating_parts(request)})
        assert ours.requests[0]["parts"] == theirs.requests
        assert metric.score_ratings(ours.result.ratings) == pytest.approx(theirs.result)


def list_rating_parts(request: Request) -> list[str]:
    """Return a request's system message and the parts of its user message; IMAGE_PLACEHOLDER stands for an image."""
    text, places = request.messages[0].text, request.image_at
    assert isinstance(places, tuple) and request.system is not None
    parts, start = [request.system], 0
    for place in places:
        parts += [text[start:place], IMAGE_PLACEHOLDER]
        start = place
    return [*parts, text[start:]]


EDIT_PAIRS_SCRIPT = """
sys.path[:0] = ["reward_model_evaluation", "evaluate/generate_judgements", "src"]

def ask_rational_rewards(prompt):
    from modular_rm_eval import inference_core
    image = {"bytes": b""}
    (message,) = inference_core.build_messages(prompt, [image], image, image, "edit")
    return [part.get("text", "[image]") for part in message["content"]]

def ask_mmrb2(prompt):
    from evaluator_apis.llm_judges import api_pairwise_evaluator as release
    asked, image = [], [["image", "[image]"]]
    judge = object.__new__(release.APIPairwiseEvaluator)
    judge.generate_response = lambda parts: asked.extend(parts) or "{}"
    release.json_repair.loads = lambda text: {"better_response": "A"}
    judge.pairwise_evaluate([["text", prompt], *image], image, image, "edit")
    return [text for _, text in asked]

def ask_gedit(prompt, name):
    from prompts.prompt_manager import PromptAssetStore
    from types import ModuleType
    package = ModuleType("primitives")  # its own __init__.py imports models
    package.__path__ = ["src/autopipeline/components/primitives"]
    package.PROMPT_ADAPTER_REGISTRY = SimpleNamespace(register=lambda name: lambda kind: kind)
    sys.modules["primitives"] = package
    from primitives import prompt_adapters
    import schemas.prompt_template as templates
    templates.ImageWrapper = lambda image: SimpleNamespace(as_data_url=lambda: "[image]")
    template = PromptAssetStore().get_prompt(f"vlm/assessment/{name}/pairwise", "v1")
    given = {"instruction": prompt, "input_image": "", "edited_images": ["", ""]}
    system, user = prompt_adapters.OpenAIStylePromptAdapter().build_payload(template, **given)
    return [system["content"], *(part.get("text", "[image]") for part in user["content"])]

def run(given):
    name, prompt = given
    if name == "rational_rewards_edit":
        return ask_rational_rewards(prompt), None
    if name == "mmrb2_edit":
        return ask_mmrb2(prompt), None
    return ask_gedit(prompt, {"pvc_judge": "visual_consistency", "gedit_instruction": "instruction_following",
                              "gedit_quality": "visual_quality"}[name]), None
"""


@pytest.mark.parametrize(
    ("name", "checkout"),
    [
        ("rational_rewards_edit", "RationalRewards"),
        ("mmrb2_edit", "MMRB2"),
        ("pvc_judge", "GEditBench_v2"),
        ("gedit_instruction", "GEditBench_v2"),
        ("gedit_quality", "GEditBench_v2"),
    ],
)
def test_questions_about_two_edits_equal_those_of_the_release(name: str, checkout: str) -> None:
    released = run_released(checkout, SCRIPT_START + EDIT_PAIRS_SCRIPT, [(name, prompt) for prompt in PROMPTS])
    kind = PairwiseConfig if name == "gedit_quality" else PairwiseEditConfig
    metric = kind(wording=find_checkout(checkout), release=name).complete_options(get_profile)
    for prompt, theirs in zip(PROMPTS, released, strict=True):
        request = next(metric.compare(prompt))[0]
        text, places = request.messages[0].text, request.image_at
        assert isinstance(places, tuple)
        parts = [text[start:end] for start, end in pairwise([0, *places, len(text)])]
        assert (request.system or "") + IMAGE_PLACEHOLDER.join(parts) == "".join(theirs.requests)


def test_unified_reward_edits_question_about_two_edits_equals_that_of_the_release() -> None:
    given = [("UnifiedReward-Edit/edit_paiwise_score.py", prompt) for prompt in PROMPTS]
    released = run_released("UnifiedReward", SCRIPT_START + UNIFIED_REWARD_SCRIPT, given)
    metric = PairwiseEditConfig(wording=find_checkout("UnifiedReward")).complete_options(get_profile)
    for prompt, theirs in zip(PROMPTS, released, strict=True):
        request = next(metric.compare(prompt))[0]
        assert [[3, request.messages[0].text]] == theirs.requests and request.image_at == 0


WEGENBENCH_SCRIPT = """
sys.path.insert(0, "evaluation/Consistency/CoT/demo")
import infer_demo

def run(given):
    prompt, reply = given
    return [infer_demo.PROMPT + prompt], infer_demo.parse_response(reply)["score"]
"""
WEGENBENCH_REPLIES = [
    "综合评价：好\n得分：7分",
    "得分:  10\n分 得分：3分",
    "总扣分：3分",
    "",
    "综合评价：得分 3 分；得分：1 分",
]


def test_wegenbenchs_question_and_score_equal_those_of_the_release() -> None:
    given = [(prompt, WEGENBENCH_REPLIES[number % 5]) for number, prompt in enumerate(PROMPTS)]
    released = run_released("WeGenBench", WEGENBENCH_SCRIPT, given)
    metric = WeGenBenchCotConfig(wording=find_checkout("WeGenBench")).complete_options(get_profile)
    for (prompt, reply), theirs in zip(given, released, strict=True):
        ours = run_ours(metric.inspect(prompt), [reply])
        assert [request["messages"][0]["content"] for request in ours.requests] == theirs.requests
        assert (ours.result and ours.result.ratings[0].value) == theirs.result
    assert sum(one.result is not None for one in released) == 60
