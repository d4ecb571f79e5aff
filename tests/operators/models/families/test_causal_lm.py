"""A reply depends only on its own request: not on its batch, nor on the sampling settings of the checkpoint."""

import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.models import loading
from plumbline.operators.models.calls import Generation, Message, Request
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.networks.causal_lm import CausalLM
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny

TEXTS = ["hi", "Write questions about: two red circles left of a blue square, and a star", "", "é, ü?", "a b c"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.save_causal_lm(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> CausalLM:
    return load(folder)


def load(folder: Path, **options: Any) -> CausalLM:
    config = make_model_config(family="causal_lm", checkpoint=str(folder), **options)
    loaded = loading.load(resolve_model(config, on_gpu=False), "generate")
    assert isinstance(loaded, CausalLM)
    return loaded


def make_request(text: str, **options: Any) -> Request:
    return Request((Message("user", text),), **{"max_tokens": 12} | options)


def generate_replies(model: CausalLM, requests: Sequence[Request]) -> list[Generation]:
    answered = model.generate(requests)
    generations = [reply for reply in answered if isinstance(reply, Generation)]
    assert len(generations) == len(requests), answered
    return generations


@torch.inference_mode()
def reply_greedily(folder: Path, text: str, tokens: int) -> list[int]:
    """Return the likeliest tokens, computing the whole text again for each token."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text).input_ids
    new: list[int] = []
    while len(new) < tokens and (not new or new[-1] != tokenizer.eos_token_id):
        new.append(int(model(input_ids=torch.tensor([ids + new])).logits[0, -1].argmax()))
    return new


# Greedy replies


def test_a_greedy_reply_repeatedly_takes_the_likeliest_token(folder: Path, model: CausalLM) -> None:
    for reply, text in zip(generate_replies(model, [make_request(text) for text in TEXTS]), TEXTS, strict=True):
        ids = reply_greedily(folder, f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", 12)
        assert reply.text == model.tokenizer.decode(ids, skip_special_tokens=True)


def test_every_reply_is_truncated_at_its_own_limit_and_marked_as_truncated(model: CausalLM) -> None:
    short, long = generate_replies(model, [make_request("hi", max_tokens=2), make_request("hi", max_tokens=9)])
    assert (short.usage.new_tokens, long.usage.new_tokens) == (2, 9)
    assert not short.complete and not long.complete
    assert short.usage.prompt_tokens == len("user\nhi\nassistant\n") + 3


def test_a_reply_ends_with_its_end_token_which_is_not_shown(tmp_path: Path, folder: Path, model: CausalLM) -> None:
    """Any end token listed in the generation settings ends the reply."""
    (reply,) = generate_replies(model, [make_request("hi", max_tokens=4)])
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    third = reply_greedily(folder, prompt, 4)[2]
    own = tiny.save_causal_lm(tmp_path / "own")
    tiny.edit_json(own / "generation_config.json", eos_token_id=[tiny.BYTE_VOCABULARY["<|im_end|>"], third])
    cut, other = generate_replies(load(own), [make_request("hi", max_tokens=4), make_request("other", max_tokens=4)])
    assert (cut.complete, cut.usage.new_tokens) == (True, 3)
    assert reply.text.startswith(cut.text[:-1]), "the batch continues after one reply has ended"
    assert other.usage.new_tokens >= 3


def test_a_reply_ends_before_its_first_stop_string(model: CausalLM) -> None:
    (whole,) = generate_replies(model, [make_request("hi")])
    stop = next(text for text in (whole.text[start : start + 2] for start in range(4, 10)) if "�" not in text)
    stopped, other = generate_replies(
        model, [make_request("hi", stop=("never to be seen", stop)), make_request("hi", stop=("never",))]
    )
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.complete
    assert stopped.usage.new_tokens < whole.usage.new_tokens
    assert other.text == whole.text


def test_the_checkpoints_own_penalties_do_not_matter(tmp_path: Path, model: CausalLM) -> None:
    own = tiny.save_causal_lm(tmp_path / "own")
    tiny.edit_json(
        own / "generation_config.json",
        repetition_penalty=9.0,
        do_sample=True,
        temperature=2.0,
        min_new_tokens=99,
        suppress_tokens=list(range(9, 99)),
    )
    requests = [make_request(text) for text in TEXTS] + [make_request("hi", temperature=1.0)]
    assert generate_replies(load(own), requests) == generate_replies(model, requests)


def test_a_tokenizer_without_a_chat_template_reads_the_texts_line_by_line(tmp_path: Path) -> None:
    own = tiny.save_causal_lm(tmp_path / "own", template=None)
    turns = (Message("user", "ab"), Message("assistant", "c"), Message("user", "d"))
    (reply,) = generate_replies(load(own), [Request(turns, 8)])
    model = load(own)
    assert reply.text == model.tokenizer.decode(reply_greedily(own, "ab\nc\nd", 8), skip_special_tokens=True)
    assert reply.usage.prompt_tokens == len("ab\nc\nd")


# Sampled replies


def test_a_sample_depends_only_on_its_seed(model: CausalLM) -> None:
    requests = [make_request("hi", temperature=1.0, seed=seed) for seed in range(4)]
    alone = [generate_replies(model, [request])[0].text for request in requests]
    assert len(set(alone)) == 4
    torch.manual_seed(1)
    mixed = generate_replies(model, [make_request(TEXTS[1]), *reversed(requests), make_request("ü", temperature=2.0)])
    assert [reply.text for reply in mixed[4:0:-1]] == alone


def test_samples_are_drawn_with_the_models_probabilities(folder: Path, model: CausalLM) -> None:
    temperature, draws = 0.7, 150
    ids = torch.tensor([model.tokenizer("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n").input_ids])
    with torch.inference_mode():
        probabilities = (model.model(input_ids=ids).logits[0, -1] / temperature).softmax(-1)
    requests = [make_request("hi", max_tokens=1, temperature=temperature, seed=seed) for seed in range(draws)]
    drawn = Counter(reply.text for reply in generate_replies(model, requests))
    likeliest = int(probabilities.argmax())
    share, expected = drawn[model.tokenizer.decode([likeliest])] / draws, float(probabilities[likeliest])
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / draws)
    assert len(drawn) > 3


def test_a_low_temperature_is_nearly_greedy(model: CausalLM) -> None:
    greedy, cold = (generate_replies(model, [make_request(text, temperature=t) for text in TEXTS]) for t in (0.0, 1e-4))
    assert cold == greedy


# Failures


def test_a_prompt_beyond_the_context_fails_alone(tmp_path: Path) -> None:
    model = load(tiny.save_causal_lm(tmp_path / "own", max_position_embeddings=64))
    room = 64 - len("user\n\nassistant\n") - 3
    answered = model.generate([make_request("hi"), make_request("x" * (room - 11)), make_request("x" * (room - 12))])
    assert [isinstance(reply, Generation) for reply in answered] == [True, False, True]
    refused = answered[1]
    assert isinstance(refused, RowError)
    assert (refused.kind, refused.retryable) == ("prompt_too_long", False)
    assert "takes 53 tokens and its reply up to 12, together beyond the model's context of 64" in refused.message


def test_a_batch_that_fails_is_halved_until_the_failing_request_is_alone(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = generate_replies(model, [make_request(text) for text in TEXTS])
    whole = CausalLM._generate_batch

    def fail_for_one(self: CausalLM, prompts: Sequence[Any]) -> list[Generation]:
        if any("é" in prompt.request.messages[0].text for prompt in prompts):
            raise RuntimeError("out of memory")
        return whole(self, prompts)

    monkeypatch.setattr(CausalLM, "_generate_batch", fail_for_one)
    answered = model.generate([make_request(text) for text in TEXTS])
    assert answered == [*expected[:3], RowError("model_failed", "RuntimeError: out of memory", True), expected[4]]


def test_several_threads_may_call_at_the_same_time(model: CausalLM) -> None:
    requests = [[make_request(text), make_request(text, temperature=1.0)] for text in TEXTS]
    expected = [generate_replies(model, asked) for asked in requests]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda asked: generate_replies(model, asked), requests)) == expected


def test_a_chat_template_that_does_not_render_is_a_readable_error(tmp_path: Path) -> None:
    own = tiny.save_causal_lm(tmp_path / "own", template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ModelError, match=r"own: the chat template cannot be rendered .*roles must alternate"):
        load(own).generate([make_request("hi")])
