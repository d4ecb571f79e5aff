"""What is sent by a release's wording is what the release's own code sends, and replies are read as it reads them.

The code runs in a process of its own, from checkouts in RELEASE_CHECKOUTS/NAME (docs/wording.md); without these, tests
are skipped. It gets scripted replies in place of a model's.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plumbline.operators.metrics.dsg import DsgConfig
from plumbline.operators.metrics.tifa import TifaConfig
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion
from plumbline.operators.models.calls import Generation, Request, Usage
from plumbline.operators.models.vqa_profiles import VqaProfile
from tests.operators.tiny import CLIP_FLANT5

CHECKOUTS = Path(os.environ.get("RELEASE_CHECKOUTS", "none"))
THINGS = ("a red cat", "two  dogs, running", 'a sign that says "STOP"', "ein Käfer", "the $5 {cup} | of tea", "5 dogs'")
PLACES = ("", " on a table", "\nin the snow", ", oil painting", " left of a blue car.")
PROMPTS = [f"{first} and {second}{place}" for first in THINGS for second in THINGS[:4] for place in PLACES][:100]


class Asked(NamedTuple):
    """What one program or release has asked about one prompt, and what came of it."""

    requests: list[dict[str, Any]]
    result: Any
    """None where a reply could not be read."""


def checkout(name: str) -> str:
    folder = CHECKOUTS / name
    if not folder.is_dir():
        pytest.skip(f"needs a checkout in RELEASE_CHECKOUTS/{name}")
    return str(folder)


def as_released(name: str, code: str, given: Any) -> list[Asked]:
    """What the release's own code does for each of `given`."""
    script = RUN + code + "\nprint(json.dumps([run(one) for one in GIVEN]))"
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(given), cwd=checkout(name), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [Asked(*one) for one in json.loads(done.stdout.splitlines()[-1])]


RUN = """
import contextlib, importlib.machinery, io, json, sys
from types import SimpleNamespace
from unittest.mock import MagicMock

GIVEN = json.load(sys.stdin)
sys.path.insert(0, "")
ABSENT = "openai word2number requests cv2 detectron2 modelscope promptcap transformers torch lavis PIL".split()

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
        except (ValueError, LookupError):
            result = None
    return asked, result
"""


def as_ours(program: Writing[Any], replies: Sequence[str]) -> Asked:
    """What our program asks for, and what it makes of the same replies."""
    requests: list[Request] = []
    left = iter(replies)
    try:
        asked = next(program)
        while True:
            requests += asked
            asked = program.send([Generation(next(left), True, Usage()) for _ in asked])
    except StopIteration as end:
        return Asked(list(map(sent, requests)), end.value)
    except UnreadableReply:
        return Asked(list(map(sent, requests)), None)


def sent(request: Request) -> dict[str, Any]:
    """What a service gets, but for the model and the seed, which no release sends."""
    limits = {"max_tokens": request.max_tokens, "temperature": request.temperature}
    messages = [{"role": message.role, "content": message.text} for message in request.messages]
    return {"messages": messages, **limits, **({"stop": list(request.stop)} if request.stop else {})}


def without_model(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in request.items() if key not in ("model", "engine")} for request in requests]


def profile(role: str) -> VqaProfile:
    return CLIP_FLANT5


DSG = """
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


def test_dsg() -> None:
    replies = [DSG_REPLIES[index % len(DSG_REPLIES)] for index in range(len(PROMPTS))]
    released = as_released("DSG", DSG, list(zip(PROMPTS, replies, strict=True)))
    metric = DsgConfig(wording=checkout("DSG")).settled(profile)
    for prompt, given, theirs in zip(PROMPTS, replies, released, strict=True):
        ours = as_ours(metric.write(prompt), given)
        assert ours.requests == without_model(theirs.requests)[: len(ours.requests)]
        by_id = {question.question_id: question.text for question in ours.result or ()}
        found = [[question.text, [by_id[name] for name in question.parents]] for question in ours.result or ()]
        assert (found or None) == theirs.result
    assert sum(one.result is not None for one in released) > 40 < sum(one.result is None for one in released)


TIFA = """
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
HEADER = ": cat\nActivities:\nColors: red\nCounting:\nOther attributes:\nQuestions and answers are below:\n"
TIFA_REPLIES = [
    f"{HEADER}About cat (animal):\nQ: is there a cat?\nChoices: yes, no\nA: yes\nQ: what?\nChoices: cat, dog\nA: cat",
    f"{HEADER}About red (color):\nQ: what color?\nChoices: red, blue, green,white\nA: red\nA: blue",
    f"{HEADER}About red (hue):\nQ: what color?\nChoices: red, blue\nA: red",
    f"{HEADER}About red\nQ: what color?\nChoices: red, blue\nA: red",
    f"{HEADER}About the (old) red (color):\n Q: spaced?\nQ: what color?\nA: red\nQ: so?\nChoices: \nA: no",
    "About cat (animal):\nQ: is there a cat?\nChoices: yes, no\nA: yes",
    f"{HEADER}About cat (animal)\nQ: is there a cat?\nChoices: yes, no\nA: maybe",
]


def test_tifa() -> None:
    replies = [TIFA_REPLIES[index % len(TIFA_REPLIES)] for index in range(len(PROMPTS))]
    released = as_released("tifa", TIFA, list(zip(PROMPTS, replies, strict=True)))
    metric = TifaConfig(wording=checkout("tifa"), filter=False).settled(profile)
    for prompt, reply, theirs in zip(PROMPTS, replies, released, strict=True):
        ours = as_ours(metric.write(prompt), [reply])
        assert ours.requests == without_model(theirs.requests)
        assert _tifa_questions(ours.result) == theirs.result
    assert sum(one.result is not None for one in released) > 40 < sum(one.result is None for one in released)


def _tifa_questions(questions: Sequence[WrittenQuestion] | None) -> list[Any] | None:
    return [[one.text, list(one.choices), one.answer, one.span] for one in questions] if questions else None
