"""Renders conversations as the tokens that a chat model reads, in the same way for every engine.

Nothing here imports torch: `tokenizer` is any transformers tokenizer.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import Generation, Message, Request

TOO_LONG = (
    "the conversation takes {} tokens and its reply up to {}, together beyond the model's context of {}; shorten the "
    "prompt, lower the metric's max_tokens, or the thinking_tokens of a model that may think, or use a model with a "
    "longer context (in vLLM: a larger max_model_len)"
)
THOUGHT_MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
)
"""Opening and closing marks of a thought, by model family."""
THINKING_NAME = re.compile(r"(^|[-_. ])thinking($|[-_. ])", re.IGNORECASE)
"""Names of thinking models."""
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
THINKING_PROBLEM = (
    "a thinking model: it would be scored on the first token of a thought and not of an answer; "
    "use the checkpoint of the same model that answers at once, often called Instruct, or thinking=allowed where a "
    "metric has the model reply"
)
MARKER = "said"
"""A word in a test conversation. Its position in the rendered text shows how a chat template works."""
Reply = Generation | RowError


class Conversation(NamedTuple):
    """A request and its tokens."""

    request: Request
    ids: list[int]

    def asking(self, request: Request, ids: Sequence[int] = ()) -> "Conversation":
        return Conversation(request, [*self.ids, *ids])


def reply_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """Decode a reply's tokens."""
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def cut_at_stop(text: str, request: Request) -> str:
    """Return the text before the first of the request's stop strings."""
    places = [place for place in (text.find(stop) for stop in request.stop if stop) if place >= 0]
    return text[: min(places)] if places else text


def generation(
    tokenizer: Any, request: Request, ids: Sequence[int], *, ends: Collection[int], usage: Usage
) -> Generation:
    """Return a reply with these tokens, up to its end token (in `ends`) or before its first stop string."""
    text = reply_text(tokenizer, ids)
    kept = cut_at_stop(text, request)
    ended = bool(ids) and (ids[-1] in ends or ids[-1] in request.ends)
    return Generation(kept, kept != text or ended, usage, tuple(ids))


def conversation_ids(tokenizer: Any, messages: Sequence[Message], *, thinks: bool = False) -> list[int]:
    """Return the conversation's tokens, ready for the reply; without a chat template, one text per line.

    A template contains its own special tokens; a plain text gets the tokenizer's.
    """
    text = conversation_text(tokenizer, messages, thinks=thinks)
    return list(tokenizer(text, add_special_tokens=tokenizer.chat_template is None).input_ids)


def conversation_text(tokenizer: Any, messages: Sequence[Message], *, thinks: bool = False) -> str:
    """Render the conversation in the chat template, ready for the reply; without a template, a text per line."""
    if tokenizer.chat_template is None:
        return "\n".join(message.text for message in messages)
    in_parts = _takes_parts(tokenizer)
    turns = [{"role": one.role, "content": _part(one.text) if in_parts else one.text} for one in messages]
    return _render(tokenizer, turns, thinks=thinks)


def _takes_parts(tokenizer: Any) -> bool:
    """Return True if the chat template only reads texts in a list of parts, as some vision models' do."""
    try:
        return MARKER not in _render(tokenizer, [{"role": "user", "content": MARKER}])
    except ModelError:
        return True


def _part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def image_conversation_text(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    system: str | None,
    images: int = 1,
    is_open: bool = True,
    thinks: bool = False,
) -> str:
    """Render a conversation about images in the chat template, the images first.

    The `system` message comes before it. Each image has one placeholder, however many tokens it takes. If `is_open`,
    the reply begins at the end of the text; if it `thinks`, the model may think before it replies.
    """
    if tokenizer.chat_template is None:
        raise ModelError(
            f"{tokenizer.name_or_path}: the tokenizer has no chat template, so it is not known how to show the model "
            "an image; add the checkpoint's chat_template.jinja or chat_template.json"
        )
    turns = [{"role": message.role, "content": _part(message.text)} for message in messages]
    turns[0]["content"] = [*([{"type": "image"}] * images), *_part(messages[0].text)]
    before = [] if system is None else [{"role": "system", "content": _part(system)}]
    return _render(tokenizer, [*before, *turns], is_open=is_open, thinks=thinks)


def turn_end(tokenizer: Any, ends: Sequence[int], *, system: str | None) -> int:
    """Return the token in `ends` that the chat template writes after a reply, to end it or to begin the next turn.

    Returns the tokenizer's own end if the template shows none.
    """
    exchange = [Message("user", "?"), Message("assistant", MARKER), Message("user", "?")]
    try:
        text = image_conversation_text(tokenizer, exchange, system=system, is_open=False)
    except ModelError:  # a template for a single question
        text = ""
    written = tokenizer(text.rpartition(MARKER)[2], add_special_tokens=False).input_ids
    return int(next((token for token in written if token in ends), tokenizer.eos_token_id))


def check_template(tokenizer: Any, *, system: str | None) -> None:
    """Raise ModelError if the tokenizer has no chat template, or one that lets the model think first."""
    if opens_thought(image_conversation_text(tokenizer, [Message("user", "")], system=system)):
        raise ModelError(f"{tokenizer.name_or_path}: {THINKING_PROBLEM}")


def check_system(tokenizer: Any, system: str) -> None:
    """Raise ModelError if the chat template leaves a system message out."""
    if system.strip() not in image_conversation_text(tokenizer, [Message("user", "")], system=system):
        raise ModelError(
            f"{tokenizer.name_or_path}: the chat template has no place for a system message; set the model's "
            "system=null"
        )


def choice_ids(tokenizer: Any, prompt: str, choice: str, *, end: int) -> list[int]:
    """Return the tokens that `choice` adds to `prompt`, and `end`, the token that ends the turn.

    A space separates the choice from the prompt, except after white space, a special token or the end of a thought.
    """
    marked = prompt.endswith((*tokenizer.all_special_tokens, *(closing for _, closing in THOUGHT_MARKS)))
    gap = "" if not prompt or prompt[-1].isspace() or marked else " "
    before, both = template_ids(tokenizer, prompt), template_ids(tokenizer, prompt + gap + choice)
    if both[: len(before)] != before:  # the choice's first letters were drawn into the prompt's last token
        both = before + list(tokenizer(choice, add_special_tokens=False).input_ids)
    return [*both[len(before) :], end]


def template_ids(tokenizer: Any, text: str) -> list[int]:
    """Tokenize a rendered conversation; the model's first token is added unless the text begins with it."""
    return list(tokenizer(text, add_special_tokens=not is_begun(tokenizer, text)).input_ids)


def is_begun(tokenizer: Any, text: str) -> bool:
    """Return True if a rendered conversation begins with the token that the model expects first."""
    return tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)


def _render(tokenizer: Any, turns: Sequence[Mapping[str, Any]], *, is_open: bool = True, thinks: bool = False) -> str:
    """Render the turns in the chat template; `thinks` is passed to the template as `enable_thinking`."""
    try:
        text = tokenizer.apply_chat_template(
            list(turns), tokenize=False, add_generation_prompt=is_open, enable_thinking=thinks
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{tokenizer.name_or_path}: the chat template does not render ({type(error).__name__}: {reason}); "
            "correct the checkpoint's chat template"
        ) from error
    return str(text)


def opens_thought(prompt: str) -> bool:
    """Return True if a rendered prompt ends within a thought."""
    return any(prompt.rfind(opening) > prompt.rfind(closing) for opening, closing in THOUGHT_MARKS)


def file_thinks(file: Path) -> bool:
    """Return True if the chat template in one of TEMPLATE_FILES opens a thought for the reply and never closes it.

    No template is run; a file that cannot be read is reported at loading.
    """
    text = file.read_text(errors="replace")
    ending = (text if file.suffix == ".jinja" else _template_in_json(text)).rpartition("add_generation_prompt")[2]
    return any(opening in ending and closing not in ending for opening, closing in THOUGHT_MARKS)


def _template_in_json(text: str) -> str:
    """Return the chat template of a JSON file; empty if it has none."""
    try:
        return str(json.loads(text).get("chat_template"))
    except (ValueError, AttributeError):
        return ""


def is_named_thinking(source: str) -> bool:
    """Return True if a hub id or folder is called thinking: some chat templates do not show it."""
    return THINKING_NAME.search(PurePath(source).name) is not None
