"""Requests and parsed replies equal those of the released code if a release's wording is used."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.judges.llmscore import CaptionedImage, LlmScoreConfig
from plumbline.operators.metrics.judges.viescore import TwoQuestionConfig, VieScoreConfig
from plumbline.operators.metrics.metric import Verdict
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vpeval import VpevalConfig
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion
from plumbline.operators.models.calls import Generation, Region, Request
from plumbline.operators.models.vqa_profiles import VqaProfile
from tests.operators.tiny import CLIP_FLANT5_PROFILE

CHECKOUTS = Path(os.environ.get("RELEASE_CHECKOUTS", "none"))
THINGS = ("a red cat", "two  dogs, running", 'a sign that says "STOP"', "ein Käfer", "the $5 {cup} | of tea", "5 dogs'")
PLACES = ("", " on a table", "\nin the snow", ", oil painting", " left of a blue car.")
PROMPTS = [f"{first} and {second}{place}" for first in THINGS for second in THINGS[:4] for place in PLACES][:100]


class ProgramRun(NamedTuple):
    """Requests that a program (ours or a release's) made for one prompt, and its result."""

    requests: list[dict[str, Any]]
    """Requests as a service receives them."""
    result: Any
    """The result, or None if a reply could not be parsed."""


def find_checkout(name: str) -> str:
    folder = CHECKOUTS / name
    if not folder.is_dir():
        pytest.skip(f"needs a checkout in RELEASE_CHECKOUTS/{name}")
    return str(folder)


def run_released(name: str, code: str, given: Any) -> list[ProgramRun]:
    """Run Python code in the checkout of the release `name`, once for each input in `given`; return the results."""
    script = RUN_SCRIPT + code + "\nprint(json.dumps([run(one) for one in GIVEN]))"
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(given), cwd=find_checkout(name), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [ProgramRun(*one) for one in json.loads(done.stdout.splitlines()[-1])]


RUN_SCRIPT = """
import contextlib, importlib.machinery, io, json, sys
from types import SimpleNamespace
from unittest.mock import MagicMock

GIVEN = json.load(sys.stdin)
sys.path.insert(0, "")
ABSENT = "openai word2number requests cv2 modelscope promptcap transformers torch lavis PIL json_repair".split()
ABSENT += ["demjson3", "qwen_vl_utils"]

class Nothing:
    # In place of what releases import to load models and pictures.
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.split(".")[0] in ABSENT else None
    def create_module(self, spec): return MagicMock(__path__=[], __spec__=spec)
    def exec_module(self, module): pass

sys.meta_path.insert(0, Nothing())

def asking(replies, act):
    # Runs act(create), whose create(**arguments) is the call of a service that gives the replies in turn.
    asked, left = [], iter(replies)
    def create(**arguments):
        asked.append(arguments)
        message = SimpleNamespace(content=next(left))
        class Choice(SimpleNamespace):
            def __getitem__(self, name): return {"content": message.content}
        choice = Choice(message=message)
        class Completion(SimpleNamespace):
            def __getitem__(self, name): return [choice]
        return Completion(choices=[choice])
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            result = act(create)
        except (ValueError, LookupError, StopIteration):
            result = None
    return asked, result
"""


def describe_request(request: Request) -> dict[str, Any]:
    """Return a request as a service receives it, without the model and the seed, which no release sends."""
    limits = {"max_tokens": request.max_tokens, "temperature": request.temperature}
    messages = [{"role": message.role, "content": message.text} for message in request.messages]
    return {"messages": messages, **limits, **({"stop": list(request.stop)} if request.stop else {})}


IMAGE_PLACEHOLDER = "[image]"


def describe_image_request(request: Request) -> dict[str, Any]:
    """Return a request about an image as a service receives it, with IMAGE_PLACEHOLDER in place of the image."""
    (message,) = request.messages
    parts = [
        part for part in (message.text[: request.image_at], IMAGE_PLACEHOLDER, message.text[request.image_at :]) if part
    ]
    system = [] if request.system is None else [{"role": "system", "content": [request.system]}]
    return {**describe_request(request), "messages": [*system, {"role": "user", "content": parts}]}


DescribeRequest = Callable[[Request], dict[str, Any]]


def run_ours(
    program: Writing[Any], replies: Sequence[str], describe_request: DescribeRequest = describe_request
) -> ProgramRun:
    """Run one of our own programs with the given replies; return the requests it made, and its result."""
    requests: list[Request] = []
    left = iter(replies)
    try:
        asked = next(program)
        while True:
            requests += asked
            asked = program.send([Generation(next(left), True, Usage()) for _ in asked])
    except StopIteration as end:
        return ProgramRun(list(map(describe_request, requests)), end.value)
    except UnreadableReply:
        return ProgramRun(list(map(describe_request, requests)), None)


def drop_model(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in request.items() if key not in ("model", "engine")} for request in requests]


def get_profile(role: str) -> VqaProfile:
    return CLIP_FLANT5_PROFILE


DSG_SCRIPT = """
import openai
from dsg import openai_utils, parse_utils, query_utils

def run(given):
    prompt, replies = given
    def act(create):
        openai.chat.completions.create = create
        written = query_utils.generate_dsg({"0": {"input": prompt}}, openai_utils.openai_completion, verbose=False)
        tuples, questions, parents = (each["0"]["output"] for each in written)
        parse_utils.parse_tuple_output(tuples)
        parents = parse_utils.parse_dependency_output(parents)
        questions = parse_utils.parse_question_output(questions)
        return [[question, [questions[parent] for parent in parents.get(number, []) if parent in questions]]
                for number, question in questions.items()]
    return asking(replies, act)
"""
DSG_REPLIES: list[tuple[str, str, str]] = [
    (
        "1 | entity - whole (cat)\n2 | attribute - color (cat, red)",
        "1 | Is there a cat?\n2 | Is it red?",
        "1 | 0\n2 | 1",
    ),
    (" output: 1 | entity - whole (cat)\n", "output: 1 | A cat? \ninput: more\n1 | b", "1 | 0, background\n2 | 1"),
    ("1 | entity - whole (cat)\n\ninput: a dog\noutput: 1 | c", "1 | no mark\n3 | Is there more?", "3 | 0, 1"),
    ("1 | global - (oil)", "Here they are:\n1 | Is it oil?", "1 | 0"),
    ("1 | global - (oil)", "1 | Is it oil?", "1 | none"),
    ("nothing to say", "1 | Is it oil?", "1 | 0"),
    ("1 | global - (oil)", "1 | Is it oil?\n1 | Is it a painting?", "1 | -"),
]


def test_dsgs_requests_and_questions_equal_those_of_the_release() -> None:
    replies = [DSG_REPLIES[index % len(DSG_REPLIES)] for index in range(len(PROMPTS))]
    released = run_released("DSG", DSG_SCRIPT, list(zip(PROMPTS, replies, strict=True)))
    metric = DsgConfig(wording=find_checkout("DSG")).complete_options(get_profile)
    for prompt, given, theirs in zip(PROMPTS, replies, released, strict=True):
        ours = run_ours(metric.write(prompt), given)
        assert ours.requests == drop_model(theirs.requests)[: len(ours.requests)]
        by_id = {question.question_id: question.text for question in ours.result or ()}
        found = [[question.text, [by_id[name] for name in question.parents]] for question in ours.result or ()]
        assert (found or None) == theirs.result
    assert sum(one.result is not None for one in released) > 40 < sum(one.result is None for one in released)


TIFA_SCRIPT = """
import openai
from tifascore import question_gen

def run(given):
    prompt, reply = given
    def act(create):
        openai.OpenAI = lambda: SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
        question_gen.open = lambda *_: io.StringIO()  # it keeps the reply in the working directory
        written = question_gen.get_question_and_answers(prompt)
        return [[one["question"], one["choices"], one["answer"], one["element"]] for one in written] or None
    return asking([reply], act)
"""
HEADING = ": cat\nActivities:\nColors: red\nCounting:\nOther attributes:\nQuestions and answers are below:\n"
TIFA_REPLIES = [
    f"{HEADING}About cat (animal):\nQ: is there a cat?\nChoices: yes, no\nA: yes\nQ: what?\nChoices: cat, dog\nA: cat",
    f"{HEADING}About red (color):\nQ: what color?\nChoices: red, blue, green,white\nA: red\nA: blue",
    f"{HEADING}About red (hue):\nQ: what color?\nChoices: red, blue\nA: red",
    f"{HEADING}About red\nQ: what color?\nChoices: red, blue\nA: red",
    f"{HEADING}About the (old) red (color):\n Q: spaced?\nQ: what color?\nA: red\nQ: so?\nChoices: \nA: no",
    "About cat (animal):\nQ: is there a cat?\nChoices: yes, no\nA: yes",
    f"{HEADING}About cat (animal)\nQ: is there a cat?\nChoices: yes, no\nA: maybe",
]


def test_tifas_requests_and_questions_equal_those_of_the_release() -> None:
    replies = [TIFA_REPLIES[index % len(TIFA_REPLIES)] for index in range(len(PROMPTS))]
    released = run_released("tifa", TIFA_SCRIPT, list(zip(PROMPTS, replies, strict=True)))
    metric = TifaConfig(wording=find_checkout("tifa"), filter=False).complete_options(get_profile)
    for prompt, reply, theirs in zip(PROMPTS, replies, released, strict=True):
        ours = run_ours(metric.write(prompt), [reply])
        assert ours.requests == drop_model(theirs.requests)
        assert _list_tifa_questions(ours.result) == theirs.result
    assert sum(one.result is not None for one in released) > 40 < sum(one.result is None for one in released)


def _list_tifa_questions(questions: Sequence[WrittenQuestion] | None) -> list[Any] | None:
    return [[one.text, list(one.choices), one.answer, one.span] for one in questions] if questions else None


VPEVAL_SCRIPT = """
sys.path.insert(0, "src/open_ended_prompt_generation")
import openai
import generate_open_ended_prompts as release

def run(given):
    prompt, reply = given
    def act(create):
        openai.ChatCompletion.create = create
        written = release.get_question_and_answers({"caption": prompt})
        return written["output"].split(";") if written["output"] else None
    return asking([reply], act)
"""
PROGRAM_HEADER = HEADING.replace("Counting:\n", "Counting:\nText:\n")
VPEVAL_REPLIES = [
    f"{PROGRAM_HEADER}About cat (animal):\nobjectEval(image, 'cat')\nvqa(image, 'what is it?', 'cat,dog', 'cat')",
    f"{PROGRAM_HEADER}About two (counting):\ncountEval(objDet(image, 'dog'), '>1')\ntextEval(ocr(image), 'STOP')",
    f"{PROGRAM_HEADER}About left (spatial):\nspatialEval(image, 'cat,car,left')\nscaleEval(image, 'cat,car,bigger')",
    "objectEval(image, 'cat')",
]


def test_vpevals_requests_and_questions_equal_those_of_the_release() -> None:
    replies = [VPEVAL_REPLIES[index % len(VPEVAL_REPLIES)] for index in range(len(PROMPTS))]
    released = run_released("VPEval", VPEVAL_SCRIPT, list(zip(PROMPTS, replies, strict=True)))
    metric = VpevalConfig(wording=find_checkout("VPEval")).complete_options(get_profile)
    for prompt, reply, theirs in zip(PROMPTS, replies, released, strict=True):
        ours = run_ours(metric.write(prompt), [reply])
        assert drop_options(ours.requests, "max_tokens") == drop_model(theirs.requests)
        assert ([question.text for question in ours.result] if ours.result else None) == theirs.result
    assert sum(one.result is not None for one in released) == 75


def drop_options(requests: Sequence[dict[str, Any]], *left_open: str) -> list[dict[str, Any]]:
    """Return the requests without the options named in `left_open`, which the release does not set."""
    return [{key: value for key, value in request.items() if key not in left_open} for request in requests]


LLMSCORE_SCRIPT = """
import openai
from llm_descriptor.visual_descriptor import VisualDescriptor
from llm_evaluator.evaluation_instruction import EvaluationInstructor

def run(given):
    prompt, caption, seen, replies = given
    def act(create):
        openai.ChatCompletion.create = create
        said = VisualDescriptor("").generate_multi_granualrity_description(caption, seen, 640, 480)
        overall, errors, *reasons = EvaluationInstructor("").generate_score_with_rationale(said, prompt)
        return [said, int(overall), int(errors), reasons]
    return asking(replies, act)
"""
LLMSCORE_REPLIES = ["80\n2\nGood.\nOne is missing.", "80\n\n2\n\nGood.\nTwo.\nMore.", "X1: 80\n2\nGood.\nNo.", "80"]
REGIONS = [Region("a cat: on a mat", 1, 2, 30, 40), Region("a red car", 5, 6, 7, 8)]


def test_llmscores_requests_and_ratings_equal_those_of_its_released_code() -> None:
    seen = "a cat: on a mat: [1, 2, 30, 40]; a red car: [5, 6, 7, 8]; "
    replies = [[f" A cat\non {index}.\n", LLMSCORE_REPLIES[index % 4]] for index in range(len(PROMPTS))]
    given = [(prompt, f"{prompt}!", seen, both) for prompt, both in zip(PROMPTS, replies, strict=True)]
    released = run_released("LLMScore", LLMSCORE_SCRIPT, given)
    metric = LlmScoreConfig(wording=find_checkout("LLMScore")).complete_options(get_profile)
    for prompt, both, theirs in zip(PROMPTS, replies, released, strict=True):
        described = run_ours(metric.describe(CaptionedImage(f"{prompt}!", REGIONS, 640, 480)), both[:1])
        judged = run_ours(metric.judge_description(prompt, described.result), both[1:])
        requests = described.requests + judged.requests
        assert drop_options(requests, "max_tokens", "temperature") == drop_model(theirs.requests)
        assert {request["temperature"] for request in requests} == {1.0}
        verdict: Verdict | None = judged.result
        found = verdict and [described.result, *(each.value for each in verdict.ratings), verdict.rationale]
        assert found == (theirs.result and [*theirs.result[:3], " ".join(theirs.result[3])])
    assert sum(one.result is not None for one in released) == 50


VIESCORE_SCRIPT = """
import os, requests
if os.path.isdir("GEdit-Bench"):
    os.chdir("GEdit-Bench")
sys.path.insert(0, "viescore")
from mllm_tools import openai as service
service.get_api_key = lambda path: "none"
from viescore import VIEScore
models = {task: VIEScore(backbone="gpt4o", task=task) for task in ("t2i", "tie")}

def run(given):
    task, prompt, replies = given
    def act(create):
        def post(url, json, headers):
            text = create(**json).choices[0].message.content
            return SimpleNamespace(json=lambda: {"choices": [{"message": {"content": text}}]})
        requests.post = post
        images = ["http://source"] * (task == "tie") + ["http://image"]
        said = models[task].evaluate(images, prompt, extract_all_score=False)
        guessed = any("guess_if_cannot_parse" in str(each.get("reasoning")) for each in said.values())
        return None if guessed else [min(said["SC"]["score"]), min(said["PQ"]["score"])]
    return asking(replies, act)
"""
VIESCORE_REPLIES = [
    ['{"score": [8], "reasoning": "It fits."}', 'So:\n{\n"score" : [7, 5],\n"reasoning" : "A hand."\n}'],
    ['||V^=^V||{"score": 4, "reasoning": "so"}||V^=^V||', "[6, 3]"],
    ["7", "{score: 9, reasoning: so}"],
    ["Fine {score: 3}", "I say [9,2] of it"],
    ["none", "[6, 3]", '{"score": [1]}', '{"score": [2, 9]}'],
    ["none", "[6, 3]", "none again", "[6, 3]"],
]


def test_viescores_requests_and_ratings_equal_those_of_the_release() -> None:
    require_equal_viescores("VIEScore", "t2i", VieScoreConfig)


def require_equal_viescores(name: str, task: str, config: type[TwoQuestionConfig]) -> None:
    """Fail if a metric's requests or ratings differ from those of a release that uses VIEScore's code."""
    replies = [VIESCORE_REPLIES[index % len(VIESCORE_REPLIES)] for index in range(len(PROMPTS))]
    given = [(task, prompt, each) for prompt, each in zip(PROMPTS, replies, strict=True)]
    released = run_released(name, VIESCORE_SCRIPT, given)
    metric = config(wording=find_checkout(name)).complete_options(get_profile)
    for (_, prompt, said), theirs in zip(given, released, strict=True):
        ours = run_ours(metric.inspect(prompt), said, describe_image_request)
        asked = [
            {**request, "messages": [keep_first_image(*request["messages"])]} for request in drop_model(theirs.requests)
        ]
        assert drop_options(ours.requests, "temperature") == list(map(list_contents, asked))
        assert {request["temperature"] for request in ours.requests} == {1.0}
        rated = {rating.name: rating.value for rating in ours.result.ratings} if ours.result else {}
        *consistency, naturalness, artifacts = rated.values() or (None, None)
        assert ([min(consistency), min(naturalness, artifacts)] if rated else None) == theirs.result
    assert sum(one.result is not None for one in released) > 60 and any(one.result is None for one in released)


def keep_first_image(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with only its first image; the metric's `views` decide which images a question gets."""
    text, image, *_ = message["content"]
    return {**message, "content": [text, image]}


def list_contents(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request with each message's content as a list of texts; IMAGE_PLACEHOLDER stands for an image."""
    said = [{**each, "content": list(map(_describe_part, each["content"]))} for each in request["messages"]]
    return {**request, "messages": said}


def _describe_part(part: dict[str, Any]) -> str:
    return part["text"] if part["type"] == "text" else IMAGE_PLACEHOLDER
