"""vLLM's replies equal those of transformers at temperature 0, and requests do not affect each other."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.metrics.questions.gecko import SPAN_FORMS as GECKO_SPANS
from plumbline.operators.models import loading
from plumbline.operators.models.calls import Generation, Message, Request
from plumbline.operators.models.engines.engine_options import RESULT_OPTIONS, THROUGHPUT_OPTIONS
from plumbline.operators.models.engines.vllm_calls import VllmGenerate
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.resolution import resolve_model
from tests.vllm.tiny import make_llama

pytestmark = pytest.mark.vllm
SCHEMA = (
    '{"type": "object", "properties": {"seen": {"type": "boolean"}}, "required": ["seen"], '
    '"additionalProperties": false}'
)
SPANS_SCHEMA = json.dumps(GECKO_SPANS["json"].schema(96))
PROMPTS = ["Hello the world", "A red cube", "Two dogs on the left of a cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[VllmGenerate]:
    model = load(folder, max_model_len=512)
    yield model
    model.engine.close()


def load(folder: Path, **options: Any) -> VllmGenerate:
    config = make_model_config(family="causal_lm", checkpoint=str(folder), engine="vllm", engine_options=options)
    model = loading.load(resolve_model(config, on_gpu=False), "generate")
    assert isinstance(model, VllmGenerate)
    return model


def make_request(text: str, **fields: Any) -> Request:
    return Request((Message("user", text),), **{"max_tokens": 24, **fields})


def generate_replies(model: VllmGenerate, *requests: Request) -> list[Generation]:
    generations = model.generate(requests)
    assert all(isinstance(generation, Generation) for generation in generations), generations
    return [generation for generation in generations if isinstance(generation, Generation)]


@torch.inference_mode()
def reply_with_transformers(folder: Path, text: str) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    tokens = network.generate(**inputs, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(tokens[0, inputs.input_ids.shape[1] :], skip_special_tokens=True))


def test_greedy_replies_equal_those_of_transformers(model: VllmGenerate, folder: Path) -> None:
    expected = [reply_with_transformers(folder, prompt) for prompt in PROMPTS]
    assert [reply.text for reply in generate_replies(model, *map(make_request, PROMPTS))] == expected
    assert len(set(expected)) == len(PROMPTS)


def test_callers_in_several_threads_get_their_own_replies(model: VllmGenerate) -> None:
    texts = [f"caption number {index}" for index in range(12)]
    alone = [generate_replies(model, make_request(text))[0].text for text in texts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: generate_replies(model, make_request(text))[0].text, texts))
    assert together == alone


def test_a_prompt_beyond_the_context_fails_alone(model: VllmGenerate) -> None:
    long, short = model.generate([make_request("x" * 600), make_request("A red cube")])
    assert isinstance(long, RowError)
    assert long.kind == "prompt_too_long"
    assert "max_model_len" in long.message
    assert isinstance(short, Generation)


def test_a_schema_that_cannot_be_enforced_fails_alone(model: VllmGenerate) -> None:
    refused, short = model.generate([make_request("a", schema='{"type": "nonsense"}'), make_request("A red cube")])
    assert isinstance(refused, RowError)
    assert "nonsense" in refused.message
    assert isinstance(short, Generation)


def test_a_reply_follows_its_schema(model: VllmGenerate) -> None:
    (reply,) = generate_replies(model, make_request("Is it there?", schema=SCHEMA, max_tokens=64))
    assert isinstance(json.loads(reply.text)["seen"], bool)


def test_replies_with_a_schema_equal_those_of_transformers(model: VllmGenerate, folder: Path) -> None:
    """Both vLLM and transformers use the same library to determine which tokens a schema allows next."""
    in_transformers = loading.load(
        resolve_model(make_model_config(family="causal_lm", checkpoint=str(folder)), on_gpu=False), "generate"
    )
    requests = [make_request(text, schema=SPANS_SCHEMA, max_tokens=96) for text in PROMPTS]
    replies_there = in_transformers.generate(requests)
    assert [reply.text for reply in generate_replies(model, *requests)] == [
        reply.text for reply in replies_there if isinstance(reply, Generation)
    ]


def test_a_seed_fixes_the_reply_at_any_temperature(model: VllmGenerate) -> None:
    texts = [
        reply.text
        for reply in generate_replies(model, *(make_request("a", temperature=1.0, seed=seed) for seed in (1, 1, 2)))
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_reply_ends_before_a_stop_text_and_is_complete(model: VllmGenerate) -> None:
    (whole,) = generate_replies(model, make_request("A red cube"))
    assert not whole.complete
    stop = next(letter for letter in whole.text[4:] if letter.isascii())
    (ended,) = generate_replies(model, make_request("A red cube", stop=(stop,)))
    assert ended.complete
    assert ended.text == whole.text[: whole.text.index(stop)]


def test_a_shared_prefix_is_read_from_the_cache(model: VllmGenerate) -> None:
    first, second = (generate_replies(model, make_request("example " * 40 + ending))[0] for ending in ("one", "two"))
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens >= 128
    assert second.usage.prompt_tokens == 40 * len("example ") + len("two")


def test_an_option_that_vllm_lacks_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"engine_options \(kv_cache_dtype=float3\)"):
        load(folder, kv_cache_dtype="float3")


def test_every_allowed_option_exists_in_vllm() -> None:
    from vllm import EngineArgs

    assert {field.name for field in fields(EngineArgs)} >= THROUGHPUT_OPTIONS | RESULT_OPTIONS
