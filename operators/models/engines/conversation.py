"""Conversations as the tokens a chat model reads: the same for every engine, so that engines agree.

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
MARKS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
)
NAMED = re.compile(r"(^|[-_. ])thinking($|[-_. ])", re.IGNORECASE)
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
PROBLEM = (
    "a thinking model: it would be scored on the first token of a thought and not of an answer; "
    "use the checkpoint of the same model that answers at once, often called Instruct, or thinking=allowed where a "
    "metric has the model reply"
)
SAID = "said"
"""Words by whose place in a rendered conversation one can see what the chat template does."""
Reply = Generation | RowError


class Conversation(NamedTuple):
    """A request and its tokens."""

    request: Request
    ids: list[int]

    def asking(self, request: Request, ids: Sequence[int] = ()) -> "Conversation":
        """The same with another request, `ids` being the first tokens of its reply."""
        return Conversation(request, [*self.ids, *ids])


def reply_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of a reply's tokens."""
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def before_stop(text: str, request: Request) -> str:
    """The text up to the first of the request's stop strings."""
    places = [place for place in (text.find(stop) for stop in request.stop if stop) if place >= 0]
    return text[: min(places)] if places else text


def generation(
    tokenizer: Any, request: Request, ids: Sequence[int], *, ends: Collection[int], usage: Usage
) -> Generation:
    """A reply of these tokens, up to the one of `ends` that ends it or before its first stop string."""
    text = reply_text(tokenizer, ids)
    kept = before_stop(text, request)
    ended = bool(ids) and (ids[-1] in ends or ids[-1] in request.ends)
    return Generation(kept, kept != text or ended, usage, tuple(ids))


def conversation_ids(tokenizer: Any, messages: Sequence[Message], *, thinks: bool = False) -> list[int]:
    """The conversation's tokens in the tokenizer's chat template, open for the reply; without one, a text a line.

    A template brings its own special tokens, a plain text gets the tokenizer's.
    """
    text = conversation_text(tokenizer, messages, thinks=thinks)
    return list(tokenizer(text, add_special_tokens=tokenizer.chat_template is None).input_ids)


def conversation_text(tokenizer: Any, messages: Sequence[Message], *, thinks: bool = False) -> str:
    """The conversation in the tokenizer's chat template, open for the reply; without one, a text a line."""
    if tokenizer.chat_template is None:
        return "\n".join(message.text for message in messages)
    in_parts = _takes_parts(tokenizer)
    turns = [{"role": one.role, "content": _part(one.text) if in_parts else one.text} for one in messages]
    return _render(tokenizer, turns, thinks=thinks)


def _takes_parts(tokenizer: Any) -> bool:
    """Whether the chat template leaves out a text that is not one of a turn's parts, as some of models that see do."""
    try:
        return SAID not in _render(tokenizer, [{"role": "user", "content": SAID}])
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
    """A conversation about images in the chat template, the images first, open for the reply unless told otherwise.

    `system` is the message before it. Each image has one placeholder in it, however many tokens the image takes.
    """
    if tokenizer.chat_template is None:
        raise ModelError(
            f"{tokenizer.name_or_path}: the tokenizer has no chat template, so it is not known how to show the model "
            "an image; add the checkpoint's chat_template.jinja or chat_template.json"
        )
    spoken = [{"role": message.role, "content": _part(message.text)} for message in messages]
    spoken[0]["content"] = [*([{"type": "image"}] * images), *_part(messages[0].text)]
    before = [] if system is None else [{"role": "system", "content": _part(system)}]
    return _render(tokenizer, [*before, *spoken], is_open=is_open, thinks=thinks)


def turn_end(tokenizer: Any, ends: Sequence[int], *, system: str | None) -> int:
    """The token of `ends` by which the chat template ends a reply, or else begins what follows it; the tokenizer's own
    where it shows none.
    """
    said = [Message("user", "?"), Message("assistant", SAID), Message("user", "?")]
    try:
        text = image_conversation_text(tokenizer, said, system=system, is_open=False)
    except ModelError:  # a template for a single question
        text = ""
    written = tokenizer(text.rpartition(SAID)[2], add_special_tokens=False).input_ids
    return int(next((token for token in written if token in ends), tokenizer.eos_token_id))


def check_template(tokenizer: Any, *, system: str | None) -> None:
    """Raises ModelError where the tokenizer has no chat template, or one that lets the model think first."""
    if opens_thought(image_conversation_text(tokenizer, [Message("user", "")], system=system)):
        raise ModelError(f"{tokenizer.name_or_path}: {PROBLEM}")


def check_system(tokenizer: Any, system: str) -> None:
    """Raise ModelError if the chat template leaves a system message out."""
    if system.strip() not in image_conversation_text(tokenizer, [Message("user", "")], system=system):
        raise ModelError(
            f"{tokenizer.name_or_path}: the chat template has no place for a system message; set the model's "
            "system=null"
        )


def choice_ids(tokenizer: Any, prompt: str, choice: str, *, end: int) -> list[int]:
    """The tokens by which `choice` continues `prompt`, and `end`, the token that ends the turn.

    A choice is set off by a space, but after white space, a special token or the end of a thought.
    """
    marked = prompt.endswith((*tokenizer.all_special_tokens, *(closing for _, closing in MARKS)))
    gap = "" if not prompt or prompt[-1].isspace() or marked else " "
    before, both = template_ids(tokenizer, prompt), template_ids(tokenizer, prompt + gap + choice)
    if both[: len(before)] != before:  # the choice's first letters were drawn into the prompt's last token
        both = before + list(tokenizer(choice, add_special_tokens=False).input_ids)
    return [*both[len(before) :], end]


def template_ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a rendered conversation, the first one being what the model expects there, but not twice."""
    return list(tokenizer(text, add_special_tokens=not is_begun(tokenizer, text)).input_ids)


def is_begun(tokenizer: Any, text: str) -> bool:
    """Whether a rendered conversation brings the token that the model expects first."""
    return tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)


def _render(tokenizer: Any, turns: Sequence[Mapping[str, Any]], *, is_open: bool = True, thinks: bool = False) -> str:
    """The turns in the chat template, which is told whether the model may think before it replies."""
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
    """Whether a rendered prompt leaves a thought open."""
    return any(prompt.rfind(opening) > prompt.rfind(closing) for opening, closing in MARKS)


def file_thinks(file: Path) -> bool:
    """Whether the chat template in one of TEMPLATE_FILES opens a thought for the reply and never closes it.

    No template is run; a file that cannot be read turns out at loading.
    """
    text = file.read_text(errors="replace")
    ending = (text if file.suffix == ".jinja" else _wrapped(text)).rpartition("add_generation_prompt")[2]
    return any(opening in ending and closing not in ending for opening, closing in MARKS)


def _wrapped(text: str) -> str:
    """The chat template that a JSON file has, if it has one."""
    try:
        return str(json.loads(text).get("chat_template"))
    except (ValueError, AttributeError):
        return ""


def named_thinking(source: str) -> bool:
    """Whether a hub id or a folder is called one: some chat templates leave the opening of the thought to the model."""
    return NAMED.search(PurePath(source).name) is not None
