"""Lets a model think before it replies, and refuses conversations that are longer than its context.

Nothing here imports torch: `tokenizer` is any transformers tokenizer.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.models.calls import Generation, Message, Request
from plumbline.operators.models.engines.conversation import (
    THOUGHT_MARKS,
    TOO_LONG,
    Conversation,
    Reply,
    conversation_ids,
    conversation_text,
    cut_at_stop,
    opens_thought,
)
from plumbline.operators.models.model import ModelConfig

CUT = "the model thought for {} tokens and came to no end; raise its thinking_tokens"
ENDED = "the model ended its turn within a thought; use another model, or set thinking=refused"
LIKELIHOOD = (
    "a likelihood is that of an answer given at once, and the model has thinking=allowed; set thinking=refused, or use "
    "a metric that has the model reply"
)


def unfinished_thought(message: str) -> RowError:
    """Return the error of a row whose reply did not come after a thought."""
    return RowError("unfinished_thought", message)


class PendingConversation(Protocol):
    """A conversation that waits for its reply."""

    @property
    def request(self) -> Request: ...

    def asking(self, request: Request, ids: Sequence[int] = ()) -> Self:
        """Return the conversation with another request; `ids` are the first tokens of its reply."""


AnyPending = TypeVar("AnyPending", bound=PendingConversation)


class Thinking(NamedTuple):
    """A model's way to think: the limits and marks of its thoughts."""

    tokens: int
    """Maximum length of a thought."""
    begin: int
    """The token that begins a thought, if the model writes it."""
    end: int
    """The token that ends a thought."""
    opened: bool
    """True if the chat template begins the thought."""

    def replies(
        self, asked: Sequence[AnyPending], answer: Callable[[Sequence[AnyPending]], Sequence[Reply]]
    ) -> list[Reply]:
        """Return the reply to each conversation, after its thought. Stop strings and schemas apply to the reply only.

        `answer` generates tokens up to a request's end.
        """
        thoughts = answer(
            [
                one.asking(one.request._replace(max_tokens=self.tokens, stop=(), schema=None, ends=(self.end,)))
                for one in asked
            ]
        )
        ended = {
            index: thought
            for index, thought in enumerate(thoughts)
            if isinstance(thought, Generation) and thought.ids[-1:] == (self.end,)
        }
        replies = answer([asked[index].asking(asked[index].request, thought.ids) for index, thought in ended.items()])
        after = {index: _join_thought(ended[index], reply) for index, reply in zip(ended, replies, strict=True)}
        return [
            after[index] if index in after else self._reply_without_thought(one.request, thought)
            for index, (one, thought) in enumerate(zip(asked, thoughts, strict=True))
        ]

    def _reply_without_thought(self, request: Request, thought: Reply) -> Reply:
        """Return the result of a thought that did not end: an error, or a reply if the model did not think at all."""
        if isinstance(thought, RowError):
            return thought
        if self.opened or self.begin in thought.ids:
            return unfinished_thought(ENDED if thought.complete else CUT.format(self.tokens))
        text = cut_at_stop(thought.text, request)
        return thought._replace(text=text, complete=thought.complete or text != thought.text)


def _join_thought(thought: Generation, reply: Reply) -> Reply:
    """Add the thought's usage to the reply and remove the white space between them."""
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
    """Let `answer` reply to the requests that fit the context, and return an error for each other.

    A request fits if its prompt and its longest reply do; if the model thinks first, with its longest thought.
    """
    thinks, thought = thinking is not None, 0 if thinking is None else thinking.tokens
    conversations = [
        Conversation(one, conversation_ids(tokenizer, one.messages_with_system, thinks=thinks)) for one in requests
    ]

    def find_refusal(conversation: Conversation) -> RowError | None:
        length, limit = len(conversation.ids), conversation.request.max_tokens + thought
        if context is None or length + limit <= context:
            return None
        return RowError("prompt_too_long", TOO_LONG.format(length, limit, context))

    refusals = list(map(find_refusal, conversations))
    fitting = [conversation for conversation, refusal in zip(conversations, refusals, strict=True) if refusal is None]
    replies = iter(answer(fitting) if thinking is None else thinking.replies(fitting, answer))
    return [next(replies) if refusal is None else refusal for refusal in refusals]


def writer_thinking(config: ModelConfig, tokenizer: Any) -> Thinking | None:
    """Return how a model thinks in conversations without an image; see `find_thinking`."""
    return find_thinking(config, tokenizer, lambda: conversation_text(tokenizer, [Message("user", "")], thinks=True))


def remove_thought(text: str) -> str:
    """Return the part of a service's reply after the thought, if it contains both; empty if the thought did not end."""
    for opening, closing in THOUGHT_MARKS:
        if closing in text:
            return text.rpartition(closing)[2].lstrip()
        if text.lstrip().startswith(opening):
            return ""
    return text


def find_thinking(config: ModelConfig, tokenizer: Any, prompt: Callable[[], str]) -> Thinking | None:
    """Return how a model thinks, if it may; `prompt` renders a conversation with it.

    Raises ModelError if the tokenizer has no known token that ends a thought.
    """
    if config.thinking == "refused":
        return None
    vocabulary = tokenizer.get_vocab()
    marks = next(((opening, vocabulary[closing]) for opening, closing in THOUGHT_MARKS if closing in vocabulary), None)
    if marks is None:
        known = ", ".join(closing for _, closing in THOUGHT_MARKS)
        raise ModelError(
            f"{tokenizer.name_or_path}: thinking=allowed wants a tokenizer with a token that ends a thought ({known}); "
            "set thinking=refused"
        )
    begin = tokenizer(marks[0], add_special_tokens=False).input_ids[0]
    return Thinking(config.thinking_tokens, begin, marks[1], opens_thought(prompt()))
