"""The reply after a thought is the same as in transformers.

The test is in a separate file, because closing an engine ends all engines of its process.
"""

from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.models import loading
from plumbline.operators.models.calls import Generation
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.resolution import resolve_model
from tests.operators.models.families.test_thinking import MAX_THOUGHT_TOKENS, TEXTS, make_text_thinker
from tests.vllm.test_generate import SPANS_SCHEMA, make_request

pytestmark = pytest.mark.vllm


def test_a_reply_after_a_thought_equals_that_of_transformers(tmp_path: Path) -> None:
    """A stop string and a schema only apply after the thought."""
    thinker = make_text_thinker(tmp_path, head_dim=32)
    requests = [make_request(text) for text in TEXTS]
    requests += [make_request(TEXTS[0], schema=SPANS_SCHEMA, max_tokens=96), make_request(TEXTS[0], stop=("a", "e"))]
    thinking: dict[str, Any] = {"thinking": "allowed", "thinking_tokens": MAX_THOUGHT_TOKENS}
    config = make_model_config(family="causal_lm", checkpoint=str(tmp_path), engine="vllm", **thinking)
    model = loading.load(resolve_model(config, on_gpu=False), "generate")
    replies = [model.generate(requests), thinker.ask(requests)]
    model.engine.close()
    here, there = ([one.text if isinstance(one, Generation) else one for one in each] for each in replies)
    assert here == there
    assert isinstance(here[0], str) and str(here[-2]).startswith("{")
