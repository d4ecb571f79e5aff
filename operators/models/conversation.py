"""Conversations as the tokens a chat model reads: the same for every engine, so that engines agree.

Nothing here imports torch: `tokenizer` is any transformers tokenizer.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from operators.errors import ModelError, RowError
from operators.models.calls import Generation, Message, Request
from operators.models.thinking import PROBLEM, opens_thought

TOO_LONG = (
    "the conversation takes {} tokens and its reply up to {}, together beyond the model's context of {}; shorten the "
    "prompt, lower the metric's max_tokens, or use a model with a longer context (in vLLM: a larger max_model_len)"
)
Reply = Generation | RowError


class Conversation(NamedTuple):
    """A request and its tokens."""

    request: Request
    ids: list[int]


def reply_to_fitting(
    tokenizer: Any,
    requests: Sequence[Request],
    *,
    context: int | None,
    answer: Callable[[Sequence[Conversation]], Sequence[Reply]],
) -> list[Reply]:
    """What `answer` gives to the requests that fit the context with their replies, and an error for each other."""
    asked = [Conversation(request, conversation_ids(tokenizer, request.messages)) for request in requests]
    refusals = [_refusal(conversation, context) for conversation in asked]
    fitting = [conversation for conversation, refusal in zip(asked, refusals, strict=True) if refusal is None]
    replies = iter(answer(fitting))
    return [next(replies) if refusal is None else refusal for refusal in refusals]


def _refusal(asked: Conversation, context: int | None) -> RowError | None:
    length, limit = len(asked.ids), asked.request.max_tokens
    if context is None or length + limit <= context:
        return None
    return RowError("prompt_too_long", TOO_LONG.format(length, limit, context))


def reply_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of a reply's tokens."""
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def before_stop(text: str, request: Request) -> str:
    """The text up to the first of the request's stop strings."""
    places = [place for place in (text.find(stop) for stop in request.stop if stop) if place >= 0]
    return text[: min(places)] if places else text


def separate_template(folder: Path) -> str | None:
    """The chat template that a folder keeps apart from its tokenizer's files.

    Raises ModelError where a chat_template.json cannot be read.
    """
    plain, wrapped = folder / "chat_template.jinja", folder / "chat_template.json"
    if plain.is_file():
        return plain.read_text()
    if not wrapped.is_file():
        return None
    try:
        return str(json.loads(wrapped.read_text())["chat_template"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{wrapped}: not a chat template ({error!r}); download the checkpoint again") from error


def conversation_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The conversation's tokens in the tokenizer's chat template, open for the reply; without one, a text a line.

    Templates that offer to think aloud first are told not to: what is wanted is the reply. A template brings its own
    special tokens, a plain text gets the tokenizer's.
    """
    if tokenizer.chat_template is None:
        return list(tokenizer("\n".join(message.text for message in messages)).input_ids)
    text = _render(tokenizer, [{"role": message.role, "content": message.text} for message in messages])
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def image_question_text(tokenizer: Any, question: str, *, system: str | None) -> str:
    """A question about one image in the chat template, the image first, open for the answer.

    `system` is the message before it. The image's placeholder stands in it once, however many tokens the image takes.
    """
    if tokenizer.chat_template is None:
        raise ModelError(
            f"{tokenizer.name_or_path}: the tokenizer has no chat template, so it is not known how to show the model "
            "an image; add the checkpoint's chat_template.jinja or chat_template.json"
        )
    shown = [{"type": "image"}, {"type": "text", "text": question}]
    turns: list[dict[str, Any]] = [{"role": "user", "content": shown}]
    if system is not None:
        turns.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
    return _render(tokenizer, turns)


def check_template(tokenizer: Any, *, system: str | None) -> None:
    """Raises ModelError where the tokenizer has no chat template, or one that lets the model think first."""
    if opens_thought(image_question_text(tokenizer, "", system=system)):
        raise ModelError(f"{tokenizer.name_or_path}: {PROBLEM}")


def image_question_ids(tokenizer: Any, question: str, *, system: str | None) -> list[int]:
    """The tokens of `image_question_text`, the image's placeholder being one of them."""
    text = image_question_text(tokenizer, question, system=system)
    return _ids(tokenizer, text)


def choice_ids(tokenizer: Any, prompt: str, choice: str) -> list[int]:
    """The tokens by which `choice` continues `prompt`, and the token that ends the turn.

    A choice is set off by a space where the prompt does not end in white space.
    """
    gap = "" if prompt[-1:].isspace() or not prompt else " "
    before, both = _ids(tokenizer, prompt), _ids(tokenizer, prompt + gap + choice)
    if both[: len(before)] != before:  # the choice's first letters were drawn into the prompt's last token
        both = before + list(tokenizer(choice, add_special_tokens=False).input_ids)
    return [*both[len(before) :], tokenizer.eos_token_id]


def _ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a rendered conversation, the first one being what the model expects there, but not twice."""
    own = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    return list(tokenizer(text, add_special_tokens=not own).input_ids)


def _render(tokenizer: Any, turns: Sequence[dict[str, Any]]) -> str:
    try:
        text = tokenizer.apply_chat_template(
            list(turns), tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{tokenizer.name_or_path}: the chat template does not render ({type(error).__name__}: {reason}); "
            "correct the checkpoint's chat template"
        ) from error
    return str(text)
