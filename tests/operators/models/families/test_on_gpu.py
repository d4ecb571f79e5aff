"""On the GPU, every model family and chat model gives the same answers as the same tiny checkpoint on the CPU."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline.operators.models.calls import Call
from plumbline.operators.models.families import image_to_text, make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.operators.models.alike import IMAGES, Answer, prepare_call
from tests.operators.models.families.test_families import KINDS_AND_CALLS, select_inputs
from tests.operators.models.families.test_vlm import CHECKPOINTS
from tests.operators.tiny.families import KINDS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
MAX_DIFFERENCE = 2e-3
"""Tolerance for float32, because a GPU sums in a different order."""
CHAT_CALLS = [(name, call) for name in CHECKPOINTS for call in ("likelihood", "generate_from_images")]


@pytest.fixture(autouse=True)
def compute_as_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute convolutions in full float32, so that a GPU returns the same as a CPU, and shorten the replies."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(image_to_text, "MAX_READ_TOKENS", 12)
    monkeypatch.setattr(image_to_text, "MAX_REGION_TOKENS", 40)


@pytest.mark.parametrize(("name", "call"), KINDS_AND_CALLS)
def test_a_family_gives_the_same_answers_on_a_gpu_as_on_a_cpu(tmp_path: Path, name: str, call: Call) -> None:
    kind = KINDS[name]
    options = {"reading": "Read", "reading_tokens": 12} if (call, kind.family) == ("ocr", "vlm") else {}
    require_same(kind.family, kind.save(tmp_path / "own"), call, kind.measure, select_inputs(name, call), **options)


@pytest.mark.parametrize(("name", "call"), CHAT_CALLS)
def test_a_chat_model_gives_the_same_answers_on_a_gpu_as_on_a_cpu(tmp_path: Path, name: str, call: Call) -> None:
    require_same("vlm", CHECKPOINTS[name].save(tmp_path / "own"), call, "cosine", prepare_call(call)[0])


def require_same(family: str, folder: Path, call: Call, measure: Any, inputs: Sequence[Any], **options: Any) -> None:
    """Fail if the GPU's answer in float32 differs from the CPU's, or if bfloat16 (the GPU's default) fails."""

    def compute_answers(dtype: str, *, on_gpu: bool) -> list[Answer]:
        config = make_model_config(family=family, checkpoint=str(folder), dtype=dtype, **options)
        return prepare_call(call, measure)[1](load(resolve_model(config, on_gpu=on_gpu), call), IMAGES, inputs)

    expected, found = compute_answers("float32", on_gpu=False), compute_answers("float32", on_gpu=True)
    assert [answer.words for answer in found] == [answer.words for answer in expected]
    for answer, wanted in zip(found, expected, strict=True):
        assert answer.numbers == pytest.approx(wanted.numbers, abs=MAX_DIFFERENCE, rel=MAX_DIFFERENCE)
    short = compute_answers("auto", on_gpu=True)
    assert len(short) == len(expected)
    assert all(math.isfinite(number) for answer in short for number in answer.numbers)
