"""Conversations as the tokens a chat model reads: the same for every engine, so that engines agree.

Nothing here imports torch: `tokenizer` is any transformers tokenizer.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from operators.errors import ModelError
from operators.models.calls import Message
from operators.models.thinking import PROBLEM, opens_thought


def with_template(tokenizer: Any, *folders: Path) -> Any:
    """The tokenizer, given the chat template of the first folder that keeps one apart from its tokenizer's files.

    Raises ModelError where a chat_template.json cannot be read.
    """
    for folder in folders:
        if tokenizer.chat_template is None:
            tokenizer.chat_template = _separate_template(folder)
    return tokenizer


def _separate_template(folder: Path) -> str | None:
    plain, wrapped = folder / "chat_template.jinja", folder / "chat_template.json"
    if plain.is_file():
        return plain.read_text()
    if not wrapped.is_file():
        return None
    try:
        return str(json.loads(wrapped.read_text())["chat_template"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{wrapped}: not a chat template ({error!r}); download the checkpoint again") from error


def conversation_text(tokenizer: Any, messages: Sequence[Message]) -> str:
    """The conversation in the tokenizer's chat template, open for the reply; without a template, a text a line.

    Templates that offer to think aloud first are told not to: what is wanted is the reply.
    """
    if tokenizer.chat_template is None:
        return "\n".join(message.text for message in messages)
    turns = [{"role": message.role, "content": message.text} for message in messages]
    return _render(tokenizer, turns)


def conversation_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The conversation's tokens; a template brings its own special tokens, a plain text gets the tokenizer's."""
    text = conversation_text(tokenizer, messages)
    return list(tokenizer(text, add_special_tokens=tokenizer.chat_template is None).input_ids)


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
