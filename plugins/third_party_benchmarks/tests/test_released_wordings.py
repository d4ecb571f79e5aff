"""Requests with published wording equal those of upstream's code, and replies are parsed in the same way."""

from collections.abc import Sequence
from typing import Any

import pytest

from plumbline.operators.metrics.metric import Evidence, Verdict
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.plugins.third_party_benchmarks.judges.checklists import BizGenEvalConfig
from plumbline.plugins.third_party_benchmarks.judges.prism_bench import PrismBenchConfig
from plumbline.plugins.third_party_benchmarks.judges.qwen_image_bench import QwenImageBenchConfig
from plumbline.plugins.third_party_benchmarks.judges.rubric import RubricConfig
from tests.operators.metrics.test_released_wordings import (
    IMAGE_PLACEHOLDER,
    PROMPTS,
    describe_image_request,
    drop_options,
    find_checkout,
    get_profile,
    list_contents,
    run_ours,
    run_released,
)

UNIGENBENCH_SCRIPT = """
sys.path.insert(0, "eval/src")
import eval_common, vllm_request

def run(given):
    prompt, names, wanted, language, replies = given
    task = {"index": 0, "prompt": prompt, "testpoint": names, "test_desc": wanted, "img_path": "http://image",
            "lang": language, "max_retries": 10, "api_url": "http://judge"}
    def act(create):
        def post(url, json, timeout):
            text = create(**json).choices[0].message.content
            said = {"choices": [{"message": {"content": text}}]}
            return SimpleNamespace(json=lambda: said, status_code=200, raise_for_status=lambda: None)
        vllm_request.VLMessageClient._get_session = lambda self: SimpleNamespace(post=post)
        said = eval_common.call_evaluation_vllm(task)["result_json"]
        return said and [float(score == 1) for score in said["score"]]
    return asking(replies, act)
"""
UNIGENBENCH_REPLIES = [
    ["<analysis>['a', \"it's b\"]</analysis> so <score>[1, 0]</score>"],
    ["<analysis>\n['a', 'b']\n</analysis><score> [1, 2] </score>"],
    [
        "<score>[1]</score>",
        "<analysis>['a', 'b']</analysis><score>[1]</score>",
        "<analysis>[1, 2]</analysis><score>(1, 1)</score>",
    ],
    ["<analysis>['a', 'b</analysis><score>[1, 0]</score>"] * 11,
]
CHECKPOINT_NAMES = {"en": ["Style", "Attribute - Quantity"], "zh": ["风格", "属性-数量"]}


def test_unigenbench_has_the_same_requests_and_results_as_upstreams_code() -> None:
    given = []
    for index, prompt in enumerate(PROMPTS):
        language, replies = ("zh", "en", "en")[index % 3], UNIGENBENCH_REPLIES[index % 4]
        given.append((prompt, CHECKPOINT_NAMES[language], [f"{prompt}?", "two {cats}"], language, replies))
    released = run_released("UniGenBench", UNIGENBENCH_SCRIPT, given)
    metric = RubricConfig(rubric="checkpoints", wording=find_checkout("UniGenBench")).complete_options(get_profile)
    for (prompt, names, wanted, _, replies), theirs in zip(given, released, strict=True):
        asked = [WrittenQuestion(name, text, (), kind=name) for name, text in zip(names, wanted, strict=True)]
        ours = run_ours(metric.inspect(prompt, asked), replies, describe_image_request)
        assert drop_options(ours.requests, "temperature") == list(
            map(list_contents, drop_options(theirs.requests, "model", "do_sample"))
        )
        assert {request["temperature"] for request in ours.requests} == {0.0}
        assert ([rating.value for rating in ours.result.ratings] if ours.result else None) == theirs.result
    assert sum(one.result is not None for one in released) == 75


WISE_SCRIPT = """
import requests, vllm_eval

def run(given):
    prompt, explanation, replies = given
    vllm_eval.encode_image = lambda path: "0000"
    cfg = {"api_base": "http://judge", "api_key": "", "model": "judge", "timeout": 1}
    def act(create):
        def post(url, headers, json, timeout):
            text = create(**json).choices[0].message.content
            said = {"choices": [{"message": {"content": text}}]}
            return SimpleNamespace(json=lambda: said, raise_for_status=lambda: None)
        requests.post = post
        data = {"Prompt": prompt, "Explanation": explanation, "Subcategory": "a"}
        return vllm_eval.evaluate_image(1, data, "image", cfg).get("score", {}).get("score")
    return asking(replies, act)
"""
WISE_REPLIES = [
    ["Score: 1"],
    ["**score** 0 because"],
    ["<think>Score: 0</think>\n1"],
    ["so", "Score: 5", "1\n0"],
    ["it is\n 0 \n", "Score: 1"],
]


def test_wise_verified_has_the_same_requests_and_results_as_upstreams_code() -> None:
    given = [(prompt, f"It is  {prompt}\n.", WISE_REPLIES[index % 5]) for index, prompt in enumerate(PROMPTS)]
    released = run_released("WISE", WISE_SCRIPT, given)
    metric = RubricConfig(rubric="knowledge", wording=find_checkout("WISE")).complete_options(get_profile)
    for (prompt, explanation, replies), theirs in zip(given, released, strict=True):
        ours = run_ours(
            metric.inspect(prompt, [WrittenQuestion("1", explanation, ())]), replies, describe_image_request
        )
        assert ours.requests == [
            list_contents(each) for each in drop_options(theirs.requests, "model", "chat_template_kwargs")
        ]
        assert (ours.result.ratings[0].value if ours.result else None) == theirs.result
    assert sum(one.result is not None for one in released) == 80


PRISM_BENCH_SCRIPT = """
import tempfile
from pathlib import Path
sys.path.insert(0, "evaluation")
import eval_qwen25 as release

class Broken(Exception): pass
def refuse(text): raise Broken
release.demjson3 = SimpleNamespace(decode=refuse, JSONDecodeError=Broken)  # what it mends is unreadable here

def run(given):
    prompt, track, replies = given
    messages = release.get_message_templates()
    asked = [message.format(text_prompt=prompt) for message in (messages["alignment"][track], messages["aesthetic"])]
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        found = [release.clean_and_parse_json(reply) for reply in replies]
        for name, one in zip(("alignment", "aesthetic"), found):
            (Path(folder) / name / track).mkdir(parents=True)
            (Path(folder) / name / track / "0.jsonl").write_text(json.dumps(one))
        release.summarize_results(Path(folder), [track], 1)
        said = (Path(folder) / "evaluation_summary.txt").read_text()
    whole = all(isinstance(one.get("score"), (int, float)) for one in found)
    return asked, float(said.split("AVERAGE SCORE: ")[1].split()[0]) if whole else None
"""
PRISM_REPLIES = [
    ('{"justification": "So.", "score": 8}', '{"score": 3,}'),
    ('```json\n{"score": 7.5,\n}\n```', '{"score": 0, "justification": [1,]}'),
    ('{"score": "8"}', '{"score": 3}'),
    ("Eight.", '{"rating": 3}'),
]
PRISM_TRACKS = ("affection", "composition", "entity", "imagination", "style", "text_rendering", "long_text")


def make_evidence(verdict: Verdict) -> Evidence:
    return Evidence({"ratings": [rating._asdict() for rating in verdict.ratings], "rationale": verdict.rationale})


def test_prism_bench_has_the_same_requests_and_results_as_upstreams_code() -> None:
    given = [(prompt, PRISM_TRACKS[index % 7], PRISM_REPLIES[index % 4]) for index, prompt in enumerate(PROMPTS)]
    released = run_released("PRISM", PRISM_BENCH_SCRIPT, given)
    metric = PrismBenchConfig(wording=find_checkout("PRISM")).complete_options(get_profile)
    for (prompt, track, replies), theirs in zip(given, released, strict=True):
        ours = run_ours(metric.inspect(prompt, skills=(track,)), replies, describe_image_request)
        assert [request["messages"][0]["content"] for request in ours.requests] == [
            [IMAGE_PLACEHOLDER, text] for text in theirs.requests
        ]
        assert (metric.score(make_evidence(ours.result)).score if ours.result else None) == theirs.result
    assert sum(one.result is not None for one in released) == 50


QWEN_IMAGE_BENCH_SCRIPT = """
import checklists, score_utils as scores

def run(given):
    prompt, dims, replies = given
    asked, results, left = [], {}, iter(replies)
    for name in checklists.parse_dims_by_level1(dims):
        words = checklists.USER_PROMPT_TEMPLATE.format(
            prompt=prompt, level1_dim=name, format_checklist=checklists.DIM_TO_CHECKLIST[name]
        )
        asked.append([checklists.SYSTEM_PROMPT, words])
        found = scores.extract_json_from_response(next(left))
        results[name] = found and scores.compute_dimension_score(scores.fix_score_json(found, name))
    if any(one is None for one in results.values()):
        return asked, None  # it takes the mean of the others, where the image is null here
    return asked, scores.aggregate_total_score(results)
"""
DIMENSION_LISTS = (
    "Quality / Realism / Physical Logic; Quality / Detail / Noise",
    "Aesthetics / Lighting / Lighting; Creative Generation / Text Rendering / Font; Alignment / Layout / 2D Space",
)
QWEN_REPLIES = [
    ['<think>{"a": 1}</think>\n{"Realism": {"Physical Logic": {"score": 2}, "Edge Clarity": {"score": "N/A"}}}'],
    [
        'So:\n{"Composition": {"score": 1}, "Color Harmony": {"score": 2}, "Style Control": {"score": 0}}',
        '{"Anything": {"Feature Mapping": {"score": "2"}, "Font": 1, "Own": {"score": 0}, "Font": {"score": 7}}}',
        '{"Layout": {"2D Space": {"score": "n/a"}}, "Scene": "none"}',
    ],
    ['{"Realism": {"Physical Logic": {"score": "good"}}}'],
    ["none", '{"Font": {"score": 1}}', '{"2D Space": {"score": 1}}'],
]


@pytest.mark.parametrize("name", ["QwenImageBench", "QwenImageBenchShort"])
def test_qwen_image_bench_has_the_same_requests_and_results_as_upstreams_code(name: str) -> None:
    """The test covers the original repository and the fork with shorter checklists."""
    given = [(prompt, DIMENSION_LISTS[index % 2], QWEN_REPLIES[index % 4]) for index, prompt in enumerate(PROMPTS)]
    released = run_released(name, QWEN_IMAGE_BENCH_SCRIPT, given)
    metric = QwenImageBenchConfig(wording=find_checkout(name)).complete_options(get_profile)
    for (prompt, dims, replies), theirs in zip(given, released, strict=True):
        order = [part.partition(" /")[0] for part in dims.split("; ")]
        ours = run_ours(
            metric.inspect(prompt, skills=dims.split("; ")), sort_replies(replies, order), describe_image_request
        )
        said = [[one["messages"][0]["content"][0], IMAGE_PLACEHOLDER.join(_find_texts(one))] for one in ours.requests]
        assert sorted(said) == sorted(
            [system, words.replace("<image>", IMAGE_PLACEHOLDER)] for system, words in theirs.requests
        )
        score = metric.score(make_evidence(ours.result)).score if ours.result else None
        assert score == (theirs.result if theirs.result is None else pytest.approx(theirs.result))
    assert sum(one.result is not None for one in released) == 50


def _find_texts(request: dict[str, Any]) -> list[str]:
    return [part for part in request["messages"][1]["content"] if part != IMAGE_PLACEHOLDER]


def sort_replies(replies: Sequence[str], names: Sequence[str]) -> list[str]:
    """Sort replies about the named dimensions into the fixed order of our requests."""
    ours = ("Quality", "Aesthetics", "Alignment", "Real-world Fidelity", "Creative Generation")
    of_name = dict(zip(dict.fromkeys(names), replies, strict=True))
    return [of_name[name] for name in ours if name in of_name]


BIZGENEVAL_SCRIPT = """
import tempfile
from pathlib import Path
from evaluation import image_evaluation as release, summarize

def run(given):
    item, reply = given
    asked = []
    def answer(client, model, img_path, user_prompt, system_prompt, **options):
        asked.append([system_prompt, user_prompt])
        return reply, True
    release.request_gemini_i2t, release.create_gemini_client = answer, lambda config: None
    release.load_config = lambda path: {"max_workers": 1}
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        data, results = Path(folder) / "data.jsonl", Path(folder) / "results"
        data.write_text(json.dumps(item))
        (Path(folder) / f"{item['domain']}_{item['dimension']}_{item['id']}.png").write_bytes(b"")
        sys.argv = ["x", "--data_path", str(data), "--img_dir", folder, "--save_dir", str(results)]
        try:
            release.main()
        except AttributeError:  # a reply that is a list
            return asked, None
        parts = (0.1, None), (0.2, "easy_qidxs"), (0.2, "hard_qidxs")
        return asked, [summarize._compute_scores([item], results, *part)[0]["error_score"] for part in parts]
"""
BIZGENEVAL_REPLIES = [
    '{"1": {"result": true, "reason": "so"}, "2": {"result": "False"}, "3": {"result": "yes"}, "4": {"result": 1}}',
    "```json\n{'1': {'result': True}, '2': {'result': None}, '3': {'result': False}, '4': {'result': True}}\n```",
    'So: {"1": {"result": "a "b" c"}, {"result": true} {"result": 1} {"result" : False} {"result":"true"} "result": 0',
    'Well, {"1": {"result": True}, "2": {"result": true}, "3": {"result": false}, "4": {"result": null}} it is.',
    '{"1": {"result": true}, "2": {"result": true}}',
    "[1, 2]",
    "no",
]


def test_bizgeneval_has_the_same_requests_and_scores_as_upstreams_code() -> None:
    tags = ("layout", "attribute", "text", "text1", "knowledge")
    given = []
    for index, prompt in enumerate(PROMPTS):
        own: dict[str, Any] = {
            "id": index,
            "domain": "chart",
            "dimension": "text",
            "eval_tag": tags[index % 5],
            "prompt": prompt,
        }
        asked = [f"{prompt}?", "Is it {red}?", "Is it\n high?", "Is it wide?"]
        item = {**own, "questions": asked, "easy_qidxs": [1, 4], "hard_qidxs": [2, 3]}
        given.append((item, BIZGENEVAL_REPLIES[index % 7]))
    released = run_released("BizGenEval", BIZGENEVAL_SCRIPT, given)
    metrics = [
        BizGenEvalConfig(wording=find_checkout("BizGenEval"), part=part).complete_options(get_profile)
        for part in ("overall", "easy", "hard")
    ]
    for (item, reply), theirs in zip(given, released, strict=True):
        questions = [
            WrittenQuestion(
                str(number), text, (), kind=f"{item['eval_tag']} - {('hard', 'easy')[number in (1, 4)]} {number}"
            )
            for number, text in enumerate(item["questions"], start=1)
        ]
        ours = run_ours(metrics[0].inspect(item["prompt"], questions), [reply] * 2, describe_image_request)
        first = ours.requests[0]["messages"]
        said: list[Any] = [[first[0]["content"][0], first[1]["content"][0]]]
        assert said == theirs.requests
        assert first[1]["content"][1:] == [IMAGE_PLACEHOLDER]
        if ours.result is None:  # upstream's code counts missing answers as wrong
            assert reply in BIZGENEVAL_REPLIES[4:]
        else:
            scores = [metric.score(make_evidence(ours.result)).score for metric in metrics]
            assert scores == pytest.approx(theirs.result)
