"""Converts conversations to the tokens a chat model reads, handles thinking, and checks chat templates.

Shared by all engines. Nothing here imports torch: `tokenizer` is any transformers tokenizer.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import Generation, Message, Request
from plumbline.operators.models.checkpoints.parts import Part
from plumbline.operators.models.model import ModelConfig

TOO_LONG_MESSAGE = (
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
"""Opening and closing marks of a thought in different model families."""
THINKING_NAME_PATTERN = re.compile(r"(^|[-_. ])thinking($|[-_. ])", re.IGNORECASE)
"""Pattern for the names of models that think before they reply."""
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
THINKING_PROBLEM = (
    "a thinking model, which would be scored on the first token of a thought instead of an answer; "
    "use the variant of the model that answers directly, often called Instruct, or set thinking=allowed for a "
    "metric that reads the model's reply"
)
LIKELIHOOD_PROBLEM = (
    "likelihoods are for immediate answers, but the model has thinking=allowed; set thinking=refused, or use "
    "a metric that reads the model's reply"
)
THOUGHT_TOO_LONG_MESSAGE = "the model did not finish thinking within {} tokens; raise its thinking_tokens"
ENDED_IN_THOUGHT_MESSAGE = "the model ended its turn within a thought; use another model, or set thinking=refused"
TEST_WORD = "said"
"""Word in a test conversation. Its position in the rendered text shows how a chat template works."""
Reply = Generation | RowError


class Conversation(NamedTuple):
    """A request with the tokens of its prompt and with its images, ready for an engine."""

    request: Request
    ids: list[int]
    """Tokens of the prompt, without the image's prefix if the model has read the prefix beforehand."""
    image: Any = None
    """The images, in the form that the model's engine reads."""


def decode_reply(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def trim_at_stop(text: str, request: Request) -> str:
    """Return the text before the first of the request's stop strings; unchanged if it contains none."""
    found = [index for index in (text.find(stop) for stop in request.stop if stop) if index >= 0]
    return text[: min(found)] if found else text


def make_generation(
    tokenizer: Any, request: Request, ids: Sequence[int], *, ends: Collection[int], usage: Usage
) -> Generation:
    """Return the reply that consists of these tokens, cut before its first stop string.

    The reply is complete if it was cut at a stop string, or if its last token is in `ends` or in `request.ends`.
    """
    text = decode_reply(tokenizer, ids)
    kept = trim_at_stop(text, request)
    ended = bool(ids) and (ids[-1] in ends or ids[-1] in request.ends)
    return Generation(kept, kept != text or ended, usage, tuple(ids))


def tokenize_conversation(tokenizer: Any, messages: Sequence[Message], *, thinks: bool = False) -> list[int]:
    """Return the tokens of the conversation, up to the start of the model's reply."""
    text = render_conversation(tokenizer, messages, thinks=thinks)
    # a template contains its own special tokens; a plain text gets the tokenizer's
    return list(tokenizer(text, add_special_tokens=tokenizer.chat_template is None).input_ids)


def render_conversation(tokenizer: Any, messages: Sequence[Message], *, thinks: bool = False) -> str:
    """Return a conversation as text, up to the start of the model's reply.

    Without a chat template, each message becomes a line.
    """
    if tokenizer.chat_template is None:
        return "\n".join(message.text for message in messages)
    try:
        as_parts = TEST_WORD not in _render_template(tokenizer, [{"role": "user", "content": TEST_WORD}])
    except ModelError:  # some vision models' templates fail unless a message is a list of parts
        as_parts = True
    turns = [{"role": one.role, "content": _make_text_content(one.text) if as_parts else one.text} for one in messages]
    return _render_template(tokenizer, turns, thinks=thinks)


def _make_text_content(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def render_image_conversation(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    system: str | None,
    images: int = 1,
    is_open: bool = True,
    thinks: bool = False,
) -> str:
    """Return the text of a conversation about images, rendered with the chat template; the images come first.

    The `system` message comes before the conversation. Each image has one placeholder, even if it takes many tokens. If
    `is_open`, the reply can be appended to the text; if `thinks`, the model may think before it replies.
    """
    if tokenizer.chat_template is None:
        raise ModelError(
            f"{tokenizer.name_or_path}: the tokenizer has no chat template, which is needed to show the model "
            "an image; add the checkpoint's chat_template.jinja or chat_template.json"
        )
    turns = [{"role": message.role, "content": _make_text_content(message.text)} for message in messages]
    turns[0]["content"] = [*([{"type": "image"}] * images), *_make_text_content(messages[0].text)]
    before = [] if system is None else [{"role": "system", "content": _make_text_content(system)}]
    return _render_template(tokenizer, [*before, *turns], is_open=is_open, thinks=thinks)


def _render_template(
    tokenizer: Any, turns: Sequence[Mapping[str, Any]], *, is_open: bool = True, thinks: bool = False
) -> str:
    try:
        text = tokenizer.apply_chat_template(
            list(turns), tokenize=False, add_generation_prompt=is_open, enable_thinking=thinks
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{tokenizer.name_or_path}: the chat template cannot be rendered ({type(error).__name__}: {reason}); "
            "correct the checkpoint's chat template"
        ) from error
    return str(text)


def find_turn_end(tokenizer: Any, ends: Sequence[int], *, system: str | None) -> int:
    """Return the token, of those in `ends`, that the chat template writes first after a reply.

    It is an end mark, or starts the next turn. If the template writes none of `ends`, return the tokenizer's end token.
    """
    exchange = [Message("user", "?"), Message("assistant", TEST_WORD), Message("user", "?")]
    try:
        text = render_image_conversation(tokenizer, exchange, system=system, is_open=False)
    except ModelError:  # a template for a single question
        text = ""
    written = tokenizer(text.rpartition(TEST_WORD)[2], add_special_tokens=False).input_ids
    return int(next((token for token in written if token in ends), tokenizer.eos_token_id))


def tokenize_choice(tokenizer: Any, prompt: str, choice: str, *, end: int) -> list[int]:
    """Return the tokens that `choice` adds to `prompt`, followed by `end`, the token that ends the turn.

    A space separates the choice from the prompt, except after white space, a special token or the end of a thought.
    """
    marked = prompt.endswith((*tokenizer.all_special_tokens, *(closing for _, closing in THOUGHT_MARKS)))
    gap = "" if not prompt or prompt[-1].isspace() or marked else " "
    before, both = tokenize_rendered(tokenizer, prompt), tokenize_rendered(tokenizer, prompt + gap + choice)
    if both[: len(before)] != before:  # the choice's first letters became part of the prompt's last token
        both = before + list(tokenizer(choice, add_special_tokens=False).input_ids)
    return [*both[len(before) :], end]


def tokenize_rendered(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a rendered conversation, adding a beginning-of-sequence token unless the text has one."""
    return list(tokenizer(text, add_special_tokens=not starts_with_bos(tokenizer, text)).input_ids)


def starts_with_bos(tokenizer: Any, text: str) -> bool:
    """Return True if a rendered conversation starts with the tokenizer's beginning-of-sequence token."""
    return tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)


def opens_thought(prompt: str) -> bool:
    """Return True if a rendered prompt ends inside a thought."""
    return any(prompt.rfind(opening) > prompt.rfind(closing) for opening, closing in THOUGHT_MARKS)


def is_thinking_checkpoint(*parts: Part) -> bool:
    """Return True if the name or chat template of one of the model's parts shows that the model thinks first.

    Templates are searched but never executed. Files that cannot be read are skipped here; loading the model reports
    them.
    """
    for part in dict.fromkeys(parts):
        if THINKING_NAME_PATTERN.search(PurePath(part.source).name) is not None:  # some chat templates do not show it
            return True
        for file in filter(None, map(part.find_file, TEMPLATE_FILES)):
            template = file.read_text(errors="replace")
            if file.suffix == ".json":
                try:
                    template = str(json.loads(template).get("chat_template"))
                except (ValueError, AttributeError):
                    continue
            reply = template.rpartition("add_generation_prompt")[2]  # what the template writes before the reply
            if any(opening in reply and closing not in reply for opening, closing in THOUGHT_MARKS):
                return True
    return False


class ThinkingMode(NamedTuple):
    """How a model's thoughts are recognised and limited: their first and last token, and their maximum length."""

    tokens: int
    """Maximum length of a thought in tokens."""
    begin: int
    """The token that begins a thought, if the model generates it."""
    end: int
    """The token that ends a thought."""
    opened: bool
    """True if the chat template opens the thought."""

    def generate_replies(
        self, conversations: Sequence[Conversation], answer: Callable[[Sequence[Conversation]], Sequence[Reply]]
    ) -> list[Reply]:
        """Return the reply that follows the model's thinking in each conversation.

        Stop strings and schemas apply only to the reply, not to the thinking.

        `answer` generates a reply to each conversation's request. It is called once for the thoughts, and once for the
        replies after them.
        """
        requests = [
            one.request._replace(max_tokens=self.tokens, stop=(), schema=None, ends=(self.end,))
            for one in conversations
        ]
        thoughts = answer([one._replace(request=r) for one, r in zip(conversations, requests, strict=True)])
        continued = [
            conversation._replace(ids=[*conversation.ids, *thought.ids])
            for conversation, thought in zip(conversations, thoughts, strict=True)
            if isinstance(thought, Generation) and thought.ids[-1:] == (self.end,)
        ]
        after_thoughts = iter(answer(continued))
        replies: list[Reply] = []
        for conversation, thought in zip(conversations, thoughts, strict=True):
            if isinstance(thought, RowError):
                reply: Reply = thought
            elif thought.ids[-1:] == (self.end,):
                reply = next(after_thoughts)
                if isinstance(reply, Generation):
                    new_tokens = thought.usage.new_tokens + reply.usage.new_tokens
                    usage = thought.usage._replace(new_tokens=new_tokens)
                    reply = reply._replace(text=reply.text.lstrip(), usage=usage)
            elif self.opened or self.begin in thought.ids:
                problem = ENDED_IN_THOUGHT_MESSAGE if thought.complete else THOUGHT_TOO_LONG_MESSAGE.format(self.tokens)
                reply = RowError("unfinished_thought", problem)
            else:  # the model did not think, so this is its reply already
                text = trim_at_stop(thought.text, conversation.request)
                reply = thought._replace(text=text, complete=thought.complete or text != thought.text)
            replies.append(reply)
        return replies


def find_context_error(
    tokens: int, request: Request, context: int | None, thinking: ThinkingMode | None
) -> RowError | None:
    """Return an error if a prompt of `tokens` tokens plus the longest possible reply would exceed the context.

    The reply includes the model's thinking.
    """
    most = request.max_tokens + (0 if thinking is None else thinking.tokens)
    if context is None or tokens + most <= context:
        return None
    return RowError("prompt_too_long", TOO_LONG_MESSAGE.format(tokens, most, context))


def reply_to_valid_requests(
    conversations: Sequence[Conversation | RowError],
    answer: Callable[[Sequence[Conversation]], Sequence[Reply]],
    thinking: ThinkingMode | None,
) -> list[Reply]:
    """Return a reply to each conversation, without thoughts; errors are returned unchanged."""
    valid = [one for one in conversations if isinstance(one, Conversation)]
    replies = iter(answer(valid) if thinking is None else thinking.generate_replies(valid, answer))
    return [next(replies) if isinstance(one, Conversation) else one for one in conversations]


def reply_to_requests(
    tokenizer: Any,
    requests: Sequence[Request],
    *,
    context: int | None,
    answer: Callable[[Sequence[Conversation]], Sequence[Reply]],
    thinking: ThinkingMode | None = None,
) -> list[Reply]:
    """Return a reply to each text-only request; a request that does not fit the context gets an error."""
    conversations: list[Conversation | RowError] = []
    for request in requests:
        ids = tokenize_conversation(tokenizer, request.messages_with_system, thinks=thinking is not None)
        error = find_context_error(len(ids), request, context, thinking)
        conversations.append(Conversation(request, ids) if error is None else error)
    return reply_to_valid_requests(conversations, answer, thinking)


def find_thinking(config: ModelConfig, tokenizer: Any, render: Callable[[], str] | None = None) -> ThinkingMode | None:
    """Return how a model's thoughts are recognised and limited, or None if thinking is refused.

    `render` returns a prompt, which shows whether the chat template opens the thought; by default, a prompt without an
    image is rendered. Raises ModelError if the tokenizer has no known token that ends a thought.
    """
    if config.thinking == "refused":
        return None
    vocabulary = tokenizer.get_vocab()
    marks = next(((opening, vocabulary[closing]) for opening, closing in THOUGHT_MARKS if closing in vocabulary), None)
    if marks is None:
        known = ", ".join(closing for _, closing in THOUGHT_MARKS)
        raise ModelError(
            f"{tokenizer.name_or_path}: thinking=allowed needs a tokenizer with an end-of-thinking token ({known}); "
            "set thinking=refused"
        )
    begin = tokenizer(marks[0], add_special_tokens=False).input_ids[0]
    prompt = render() if render else render_conversation(tokenizer, [Message("user", "")], thinks=True)
    return ThinkingMode(config.thinking_tokens, begin, marks[1], opens_thought(prompt))


def remove_thought(text: str) -> str:
    """Return the text after the thought in a service's reply; an empty string if the thought did not end.

    A reply without a thought is returned unchanged.
    """
    for opening, closing in THOUGHT_MARKS:
        if closing in text:
            return text.rpartition(closing)[2].lstrip()
        if text.lstrip().startswith(opening):
            return ""
    return text
