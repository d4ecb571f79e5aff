"""Requests that become replies: those that fit, after a thought of some tokens at most where a model thinks first.

Nothing here imports torch: `tokenizer` is any transformers tokenizer.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.models.calls import Generation, Message, Request
from plumbline.operators.models.engines.conversation import (
    MARKS,
    TOO_LONG,
    Conversation,
    Reply,
    before_stop,
    conversation_ids,
    conversation_text,
    opens_thought,
)
from plumbline.operators.models.model import ModelConfig

CUT = "the model thought for {} tokens and came to no end; raise its thinking_tokens"
ENDED = "the model ended its turn within a thought; use another model, or set thinking=refused"
LIKELIHOOD = (
    "a likelihood is that of an answer given at once, and the model has thinking=allowed; set thinking=refused, or use "
    "a metric that has the model reply"
)


def unfinished(message: str) -> RowError:
    """Why there is no reply after a thought."""
    return RowError("unfinished_thought", message)


class Asked(Protocol):
    """A conversation that waits for its reply."""

    @property
    def request(self) -> Request: ...

    def asking(self, request: Request, ids: Sequence[int] = ()) -> Self:
        """The same with another request, `ids` being the first tokens of its reply."""


AnyAsked = TypeVar("AnyAsked", bound=Asked)


class Thinking(NamedTuple):
    """How a model thinks."""

    tokens: int
    """The longest thought."""
    begin: int
    """The token by which a thought begins, where the model begins it."""
    end: int
    opened: bool
    """Whether the chat template begins it."""

    def replies(
        self, asked: Sequence[AnyAsked], answer: Callable[[Sequence[AnyAsked]], Sequence[Reply]]
    ) -> list[Reply]:
        """The reply to each, after its thought: neither a stop string nor a schema is for the thought.

        `answer` gives the tokens up to a request's end.
        """
        thoughts = answer([one.asking(self._to_think(one.request)) for one in asked])
        ended = {
            index: thought
            for index, thought in enumerate(thoughts)
            if isinstance(thought, Generation) and thought.ids[-1:] == (self.end,)
        }
        said = answer([asked[index].asking(asked[index].request, thought.ids) for index, thought in ended.items()])
        after = {index: _joined(ended[index], reply) for index, reply in zip(ended, said, strict=True)}
        return [
            after[index] if index in after else self._without_end(one.request, thought)
            for index, (one, thought) in enumerate(zip(asked, thoughts, strict=True))
        ]

    def _to_think(self, request: Request) -> Request:
        return request._replace(max_tokens=self.tokens, stop=(), schema=None, ends=(self.end,))

    def _without_end(self, request: Request, thought: Reply) -> Reply:
        """What becomes of a thought that did not end: it may be a reply given at once."""
        if isinstance(thought, RowError):
            return thought
        if self.opened or self.begin in thought.ids:
            return unfinished(ENDED if thought.complete else CUT.format(self.tokens))
        text = before_stop(thought.text, request)
        return thought._replace(text=text, complete=thought.complete or text != thought.text)


def _joined(thought: Generation, reply: Reply) -> Reply:
    """The reply with what its thought took, without the white space between the two."""
    if isinstance(reply, RowError):
        return reply
    took = thought.usage._replace(new_tokens=thought.usage.new_tokens + reply.usage.new_tokens)
    return reply._replace(text=reply.text.lstrip(), usage=took)


def reply_to_fitting(
    tokenizer: Any,
    requests: Sequence[Request],
    *,
    context: int | None,
    answer: Callable[[Sequence[Conversation]], Sequence[Reply]],
    thinking: Thinking | None = None,
) -> list[Reply]:
    """What `answer` gives to the requests that fit the context with their replies, and an error for each other.

    Where the model thinks first, a thought must fit as well, and the reply is what follows it.
    """
    thinks, thought = thinking is not None, 0 if thinking is None else thinking.tokens
    conversations = [Conversation(one, conversation_ids(tokenizer, one.spoken, thinks=thinks)) for one in requests]
    refusals = [_refusal(conversation, context, thought) for conversation in conversations]
    fitting = [conversation for conversation, refusal in zip(conversations, refusals, strict=True) if refusal is None]
    replies = iter(answer(fitting) if thinking is None else thinking.replies(fitting, answer))
    return [next(replies) if refusal is None else refusal for refusal in refusals]


def _refusal(conversation: Conversation, context: int | None, thought: int) -> RowError | None:
    length, limit = len(conversation.ids), conversation.request.max_tokens + thought
    if context is None or length + limit <= context:
        return None
    return RowError("prompt_too_long", TOO_LONG.format(length, limit, context))


def writer_thinking(config: ModelConfig, tokenizer: Any) -> Thinking | None:
    """As `thinking_of`, in conversations without an image."""
    return thinking_of(config, tokenizer, lambda: conversation_text(tokenizer, [Message("user", "")], thinks=True))


def after_thought(text: str) -> str:
    """What follows the thought in a service's reply, which may have both in one; nothing where the thought goes on."""
    for opening, closing in MARKS:
        if closing in text:
            return text.rpartition(closing)[2].lstrip()
        if text.lstrip().startswith(opening):
            return ""
    return text


def thinking_of(config: ModelConfig, tokenizer: Any, prompt: Callable[[], str]) -> Thinking | None:
    """How a model thinks whose conversations are rendered as `prompt` is; None where it is not to.

    Raises ModelError where it is not known by which token it ends a thought.
    """
    if config.thinking == "refused":
        return None
    vocabulary = tokenizer.get_vocab()
    marks = next(((opening, vocabulary[closing]) for opening, closing in MARKS if closing in vocabulary), None)
    if marks is None:
        known = ", ".join(closing for _, closing in MARKS)
        raise ModelError(
            f"{tokenizer.name_or_path}: thinking=allowed wants a tokenizer with a token that ends a thought ({known}); "
            "set thinking=refused"
        )
    begin = tokenizer(marks[0], add_special_tokens=False).input_ids[0]
    return Thinking(config.thinking_tokens, begin, marks[1], opens_thought(prompt()))
