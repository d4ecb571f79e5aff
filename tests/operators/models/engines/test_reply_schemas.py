"""A reply follows its request's schema even if the model has random weights, and other requests are not affected."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.metrics.questions.dsg import DEPENDENCY_FORMS, TUPLE_FORMS
from plumbline.operators.metrics.questions.dsg import QUESTION_FORMS as DSG_QUESTIONS
from plumbline.operators.metrics.questions.gecko import QUESTION_FORMS, SPAN_FORMS, GeckoConfig
from plumbline.operators.metrics.questions.question_metric import WriterConfig
from plumbline.operators.metrics.questions.tifa import ANSWER_FORMS, CHOICE_FORMS, TifaConfig
from plumbline.operators.metrics.questions.tifa import QUESTION_FORMS as TIFA_QUESTIONS
from plumbline.operators.metrics.questions.vq2 import ANSWER_FORMS as VQ2_ANSWER
from plumbline.operators.metrics.questions.vq2 import QUESTION_FORMS as VQ2_QUESTION
from plumbline.operators.metrics.questions.vq2 import STEPS_BY_CONVENTION
from plumbline.operators.metrics.reply_forms import Form
from plumbline.operators.metrics.writing import ReplySampling
from plumbline.operators.models import loading
from plumbline.operators.models.calls import Generation, Message, Request
from plumbline.operators.models.engines.reply_schemas import SchemaGrammars
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.networks.causal_lm import CausalLM
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.stages.questions import write_questions
from tests.operators import tiny

REPLY_FORMS = [SPAN_FORMS, QUESTION_FORMS, TIFA_QUESTIONS, CHOICE_FORMS, ANSWER_FORMS, TUPLE_FORMS, DSG_QUESTIONS,
               DEPENDENCY_FORMS, VQ2_QUESTION, VQ2_ANSWER,
               STEPS_BY_CONVENTION["paper"].phrases, STEPS_BY_CONVENTION["released"].phrases]  # fmt: skip
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"seen": {"type": "boolean"}, "words": {"type": "string", "minLength": 1, "maxLength": 5}},
        "required": ["seen", "words"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.save_causal_lm(tmp_path_factory.mktemp("llama"), max_position_embeddings=16_384)


@pytest.fixture(scope="module")
def model(folder: Path) -> CausalLM:
    config = make_model_config(family="causal_lm", checkpoint=str(folder))
    loaded = loading.load(resolve_model(config, on_gpu=False), "generate")
    assert isinstance(loaded, CausalLM)
    return loaded


def make_request(text: str, schema: str | None = SCHEMA, *, temperature: float = 0.0, max_tokens: int = 64) -> Request:
    return Request((Message("user", text),), max_tokens, temperature, schema=schema)


def test_every_reply_of_a_batch_follows_its_own_schema_and_then_ends(model: CausalLM) -> None:
    requests = [
        make_request("hi"),
        make_request("hi", None),
        make_request("a longer text"),
        make_request("hi", temperature=1.5),
    ]
    replies = model.generate(requests)
    for request, reply in zip(requests, replies, strict=True):
        assert isinstance(reply, Generation)
        assert model.generate([request]) == [reply], "the reply is the same alone and in the batch"
        if request.schema is not None:
            assert reply.complete and isinstance(json.loads(reply.text)["seen"], bool)
            assert 1 <= len(json.loads(reply.text)["words"]) <= 5
    assert replies[1] != replies[0]


def test_a_schema_that_cannot_be_enforced_only_fails_its_own_request(model: CausalLM) -> None:
    refused, short = model.generate([make_request("a", '{"type": "nonsense"}'), make_request("a")])
    assert isinstance(refused, RowError)
    assert (refused.kind, refused.retryable) == ("request_refused", False)
    assert "nonsense" in refused.message
    assert isinstance(short, Generation)


@pytest.mark.parametrize("form", [form["json"] for form in REPLY_FORMS])
def test_the_examples_of_the_instructions_fit_the_schema(folder: Path, form: Form[Any]) -> None:
    """Even the spacing must fit, because a model may copy it from the examples."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    end = tokenizer.eos_token_id
    grammars = SchemaGrammars(tokenizer, end_ids=[end], width=len(tokenizer))
    replies = [line for line in form.instructions.splitlines() if line.startswith('{"')]
    assert replies
    schema = form.make_request(ReplySampling(), "").schema
    for reply in replies:
        matcher = grammars.make_matcher(schema)
        ids = tokenizer(reply, add_special_tokens=False).input_ids
        assert matcher.try_consume_tokens(ids) == len(ids), reply
        assert matcher.is_accepting()


@pytest.mark.parametrize(
    "metric", [GeckoConfig(replies="json", max_tokens=900), TifaConfig(replies="json", max_tokens=900, filter=False)]
)
def test_a_model_with_random_weights_writes_readable_questions(model: CausalLM, metric: WriterConfig) -> None:
    """The model's tokens are single bytes, so a question takes hundreds of them."""
    prompts = rows.table([{"prompt_id": "p", "text": "a red dog on a mat"}], schemas.PROMPTS)
    table = write_questions(prompts, metric, model)
    assert table.column("error").null_count == len(table) > 0


def test_a_tokenizer_that_cannot_follow_a_schema_is_refused() -> None:
    class SlowTokenizer:
        name_or_path = "slow"

    with pytest.raises(ModelError, match=r"slow: no schema can be enforced with this tokenizer .* replies=text"):
        SchemaGrammars(SlowTokenizer(), end_ids=[1], width=9)
