"""vLLM's answers about images equal those of teacher forcing and of transformers, and use the prefix cache."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.ask import QUESTIONS
from tests.vllm.tiny import make_llava, make_qwen2_vl

ROOT = Path(__file__).parents[2]
TORCHVISION_FOLDER = ROOT / "build" / "torchvision"
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module", params=[make_qwen2_vl, make_llava], ids=["qwen2_vl", "llava"])
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the output of tests.vllm.ask in a process with the torchvision and operators that this process lacks."""
    if not TORCHVISION_FOLDER.is_dir():
        pytest.fail("build/torchvision is missing; run the tests with make vllm")
    make: Callable[[Path], Path] = request.param
    folder = make(tmp_path_factory.mktemp("vlm"))
    path = os.pathsep.join(map(str, [TORCHVISION_FOLDER, Path(__file__).parent / "site", ROOT]))
    process = subprocess.run(
        [sys.executable, "-m", "tests.vllm.ask", str(folder)],
        env=os.environ | {"PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    answers: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return answers


def flatten(answers: list[list[list[float]]]) -> list[float]:
    return [logprob for choices in answers for choice in choices for logprob in choice]


@pytest.mark.parametrize("other", ["reference", "transformers"])
def test_likelihoods_equal_those_of_teacher_forcing(outputs: dict[str, Any], other: str) -> None:
    assert flatten(outputs["fast"]) == pytest.approx(flatten(outputs[other]), abs=1e-3)


def test_two_images_in_one_question_give_the_answers_of_transformers_in_both_orders(outputs: dict[str, Any]) -> None:
    expected = outputs["transformers two"]
    assert flatten(outputs["two"]) == pytest.approx(flatten(expected), abs=1e-3)
    assert flatten(expected[:3]) != pytest.approx(flatten(expected[3:]), abs=0.1), "the order matters"
    assert [text for text, *_ in outputs["talk of two"][: len(QUESTIONS)]] == outputs["transformers talk of two"]


def test_choices_of_one_and_of_several_tokens_end_with_the_end_of_the_turn(outputs: dict[str, Any]) -> None:
    lengths = [[len(choice) for choice in choices] for choices in outputs["fast"]]
    assert [len(choices) for choices in lengths] == [len(question.choices) for question in QUESTIONS]
    assert lengths[0] == [2, 2]
    assert min(lengths[2]) > 3


def test_probabilities_are_over_the_whole_vocabulary(outputs: dict[str, Any]) -> None:
    assert max(flatten(outputs["fast"])) < -0.01


def test_all_requests_about_an_image_except_one_read_it_from_the_prefix_cache(outputs: dict[str, Any]) -> None:
    calls, _, cached = outputs["usage"]
    images = len({question.image for question in QUESTIONS})
    assert cached >= (calls - images) * 128


def test_a_question_beyond_the_context_is_refused_permanently(outputs: dict[str, Any]) -> None:
    kind, message, retryable = outputs["too long"]
    assert (kind, retryable) == ("request_refused", False)
    assert "1024" in message


def test_a_model_answers_in_its_own_words(outputs: dict[str, Any]) -> None:
    assert len(outputs["replies"]) == len(QUESTIONS)
    assert all(isinstance(reply, str) for reply in outputs["replies"])


def test_a_reply_about_an_image_continues_after_its_thought(outputs: dict[str, Any]) -> None:
    reply, expected = outputs["thought"]
    assert reply == expected != ""


def test_greedy_replies_about_an_image_equal_those_of_transformers(outputs: dict[str, Any]) -> None:
    greedy = outputs["talk"][: len(QUESTIONS)]
    assert [text for text, *_ in greedy] == outputs["transformers talk"]
    assert all(0 < new <= 12 for *_, new, _ in greedy)


def test_a_seed_fixes_the_reply_about_an_image(outputs: dict[str, Any]) -> None:
    drawn = [text for text, *_ in outputs["talk"][len(QUESTIONS) : -1]]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_conversation_beyond_the_context_fails_alone(outputs: dict[str, Any]) -> None:
    kind, message, retryable = outputs["talk"][-1]
    assert (kind, retryable) == ("request_refused", False)
    assert "1024" in message
