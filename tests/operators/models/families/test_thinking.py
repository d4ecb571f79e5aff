"""For models that think first, the reply is the text after the thought, and no score uses the thought."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.models import loading
from plumbline.operators.models.calls import Generation, ImageRequest, Message, Request
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny
from tests.operators.models.alike import IMAGES
from tests.operators.models.endpoint import Server, connect, make_completion
from tests.operators.models.families.test_vlm import CHECKPOINTS, QWEN_PROMPT, WholeModel

MAX_THOUGHT_TOKENS = 24
MAX_REPLY_TOKENS = 6
TEXTS = [
    "Describe it.",
    "Is it red?",
    "a?",
    "What is there, and where?",
    "Now in one word.",
    "Is it red, or is it blue?",
]
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n"


TRUNCATED_THOUGHT_ERROR = RowError(
    "unfinished_thought", "the model did not finish thinking within 24 tokens; raise its thinking_tokens"
)


class Thinker(NamedTuple):
    """A model that thinks first, and transformers' own continuation of a prompt."""

    ask: Callable[[Sequence[Request]], Sequence[Generation | RowError]]
    continue_text: Callable[[str, int], list[int]]
    """Function that returns the likeliest tokens after a question, up to the given number."""
    tokenizer: Any
    end: int


def add_end_of_thought(folder: Path) -> int:
    """Replace an unused token of the tokenizer with one that ends a thought, and return the token's id."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((folder / name).read_text().replace("<image>", "</think>"))
    return int(AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("</think>"))


def end_thoughts(network: Any, said: list[int], end: int) -> None:
    """Make the network end its thought after two tokens.

    `said` contains the tokens that the network would otherwise write; it now writes `end` instead of the third one.
    """
    head, third = network.lm_head.weight.data, said[2]
    head[[third, end]] = head[[end, third]]


def make_text_thinker(folder: Path, head_dim: int = 8, **options: Any) -> Thinker:
    tiny.save_causal_lm(folder, template=tiny.THINKING_TEMPLATE, head_dim=head_dim)
    end, tokenizer = add_end_of_thought(folder), AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder).eval()

    def continue_text(text: str, most: int) -> list[int]:
        inputs = tokenizer(PROMPT.format(text), return_tensors="pt")
        said = network.generate(**inputs, max_new_tokens=most, do_sample=False)
        return [int(token) for token in said[0, inputs.input_ids.shape[1] :]]

    end_thoughts(network, continue_text(TEXTS[0], 3), end)
    network.save_pretrained(folder)
    return Thinker(load("causal_lm", folder, "generate", **options).generate, continue_text, tokenizer, end)


def make_image_thinker(folder: Path, **options: Any) -> Thinker:
    CHECKPOINTS["qwen3_5"].save(folder)
    end = add_end_of_thought(folder)
    whole = WholeModel(CHECKPOINTS["qwen3_5"], folder)

    def continue_text(text: str, most: int) -> list[int]:
        inputs = whole.make_inputs(IMAGES[0], (QWEN_PROMPT + "<think>\n").format(text))
        said = whole.model.generate(
            **inputs, max_new_tokens=most, do_sample=False, eos_token_id=whole.tokenizer.eos_token_id
        )
        return [int(token) for token in said[0, inputs["input_ids"].shape[1] :]]

    end_thoughts(whole.model, continue_text(TEXTS[0], 3), end)
    whole.model.save_pretrained(folder)
    model = load("vlm", folder, "generate_from_images", pair_batch=4, **options)

    def ask(requests: Sequence[Request]) -> Sequence[Generation | RowError]:
        seen = model.encode([model.preprocess(IMAGES[0])])
        replies: Sequence[Generation | RowError] = model.generate_from_images(
            seen, [ImageRequest(0, request) for request in requests]
        )
        return replies

    return Thinker(ask, continue_text, whole.tokenizer, end)


def load(family: str, folder: Path, call: Any, **options: Any) -> Any:
    given = {"thinking": "allowed", "thinking_tokens": MAX_THOUGHT_TOKENS} | options
    return loading.load(
        resolve_model(make_model_config(family=family, checkpoint=str(folder), **given), on_gpu=False), call
    )


@pytest.fixture(scope="module", params=[make_text_thinker, make_image_thinker])
def thinker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Thinker:
    torch.set_num_threads(1)
    made: Thinker = request.param(tmp_path_factory.mktemp("thinker"))
    return made


def make_request(text: str, **options: Any) -> Request:
    return Request((Message("user", text),), **{"max_tokens": MAX_REPLY_TOKENS} | options)


def test_a_reply_equals_the_librarys_text_after_the_thought(thinker: Thinker) -> None:
    replies = thinker.ask([make_request(text) for text in TEXTS])
    ended = 0
    for text, reply in zip(TEXTS, replies, strict=True):
        thought = thinker.continue_text(text, MAX_THOUGHT_TOKENS)
        if thinker.end not in thought:
            assert isinstance(reply, RowError) and (reply.kind, reply.retryable) == ("unfinished_thought", False)
            assert "raise its thinking_tokens" in reply.message or "within a thought" in reply.message
            continue
        ended += 1
        length = thought.index(thinker.end) + 1
        whole = thinker.continue_text(text, length + MAX_REPLY_TOKENS)
        assert isinstance(reply, Generation)
        assert reply.text == thinker.tokenizer.decode(whole[length:], skip_special_tokens=True).lstrip()
        assert reply.usage.new_tokens == len(whole)
    assert ended, "otherwise the test would show nothing"


def test_a_stop_string_and_a_schema_only_apply_to_the_reply(thinker: Thinker) -> None:
    (whole,) = thinker.ask([make_request(TEXTS[0], max_tokens=20)])
    assert isinstance(whole, Generation)
    thought = thinker.tokenizer.decode(thinker.continue_text(TEXTS[0], 2))
    stop = next(letter for letter in whole.text if letter.isascii() and letter.strip())
    schema = json.dumps({"type": "object", "properties": {"score": {"enum": [1, 2]}}, "required": ["score"]})
    stopped, held = thinker.ask(
        [
            make_request(TEXTS[0], max_tokens=20, stop=(thought, stop)),
            make_request(TEXTS[0], max_tokens=40, schema=schema),
        ]
    )
    assert isinstance(stopped, Generation) and isinstance(held, Generation)
    assert (stopped.text, stopped.complete) == (whole.text.partition(stop)[0], True)
    assert json.loads(held.text)["score"] in (1, 2) and held.complete


@pytest.mark.parametrize("make", [make_text_thinker, make_image_thinker])
def test_the_error_of_a_truncated_thought_names_the_key_and_the_budget_must_fit_the_context(
    tmp_path: Path, make: Callable[..., Thinker]
) -> None:
    short = make(tmp_path / "short", thinking_tokens=2)
    (cut,) = short.ask([make_request(TEXTS[0])])
    assert cut == TRUNCATED_THOUGHT_ERROR._replace(message=TRUNCATED_THOUGHT_ERROR.message.replace("24", "2"))
    (long,) = make(tmp_path / "long", thinking_tokens=512).ask([make_request(TEXTS[0])])
    assert isinstance(long, RowError) and long.kind == "prompt_too_long"


def test_a_model_that_replies_without_a_thought_is_accepted(tmp_path: Path) -> None:
    tiny.save_causal_lm(tmp_path)
    add_end_of_thought(tmp_path)
    plain, thinking = (load("causal_lm", tmp_path, "generate", thinking=one) for one in ("refused", "allowed"))
    requests = [make_request(text, max_tokens=MAX_THOUGHT_TOKENS) for text in TEXTS]
    at_once = [
        request for request, reply in zip(requests, plain.generate(requests), strict=True) if "<" not in reply.text
    ]
    stopped = [request._replace(stop=("a", "e")) for request in at_once]
    replies = thinking.generate(stopped)
    assert replies
    for own, expected in zip(replies, plain.generate(stopped), strict=True):
        assert (own.text, own.complete) == (expected.text, expected.complete)


def test_thinking_is_in_the_key_and_refused_for_likelihoods_and_without_an_end_token(tmp_path: Path) -> None:
    folder = tiny.save_qwen2_vl(tmp_path / "qwen", kind="qwen3_5")

    def compute_key(**options: Any) -> Any:
        return resolve_model(
            make_model_config(family="vlm", checkpoint=str(folder), **options), on_gpu=False
        ).list_key_properties()

    assert compute_key() == compute_key(thinking="refused", thinking_tokens=7) != compute_key(thinking="allowed")
    assert compute_key(thinking="allowed") != compute_key(thinking="allowed", thinking_tokens=7)
    with pytest.raises(ModelError, match=r"likelihoods are for immediate answers.*set thinking=refused"):
        load("vlm", folder, "likelihood")
    with pytest.raises(ModelError, match="a tokenizer with an end-of-thinking token"):
        load("vlm", folder, "generate_from_images")


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        ("Yes", "stop", "Yes"),
        ("<think>\nHm.\n</think>\n\nYes", "stop", "Yes"),
        ("Hm.\n</think>\n\nYes", "stop", "Yes"),
        (None, "length", TRUNCATED_THOUGHT_ERROR),
        ("<think>\nHm", "length", TRUNCATED_THOUGHT_ERROR),
    ],
)
def test_a_services_reply_is_the_text_after_its_thought(
    server: Server, text: str | None, reason: str, expected: str | RowError
) -> None:
    server.script = lambda number, body: make_completion(text, reason=reason, reasoning_content="Hm.")
    (reply,) = connect(server, thinking="allowed", thinking_tokens=MAX_THOUGHT_TOKENS).generate(
        [make_request("Is it red?")]
    )
    assert (reply.text if isinstance(reply, Generation) else reply) == expected
    assert [body["max_tokens"] for body in server.bodies] == [MAX_REPLY_TOKENS + MAX_THOUGHT_TOKENS]
