"""Programs that send requests to a language model, such as those that write a metric's questions."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeVar

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.models.calls import Generation, Message, Request

T = TypeVar("T")

Writing = Generator[Sequence[Request], Sequence[Generation], T]
"""A program that yields requests, receives the replies in the same order, and finally returns its result.

The requests of one `yield` are answered together; the programs of many prompts run concurrently.
"""

STOP_TEXTS = ("\nDescription:",)
"""Texts at which replies stop; a base model would otherwise continue with another example."""
RETRY_REQUEST = (
    "That reply could not be read: {error}. Write the whole reply again, exactly in the form of the examples."
)


class UnreadableReply(PlumblineError):
    """Error for a reply that does not have the requested form; the message gives the reason.

    The model gets the message too when it is asked again, so a changed message can change results.
    """


class WrittenQuestion(NamedTuple):
    """A question whose fields are columns of the table QUESTIONS (operators/base/schemas.py)."""

    question_id: str
    """Id that is unique within a prompt: at first a number, later a hash of the content (`assign_ids`)."""
    text: str
    choices: tuple[str, ...]
    answer: str | None = None
    kind: str | None = None
    span: str | None = None
    start: int | None = None
    end: int | None = None
    parents: tuple[str, ...] = ()
    keep: bool | None = None


class VqaPrompt(NamedTuple):
    """A question in the form that is sent to a VQA model."""

    text: str
    choices: tuple[str, ...]
    """Answers whose likelihoods are needed, or the possible meanings of a free answer."""
    free: bool
    """True if the model answers in its own words."""
    exact: bool = False
    """True if a free answer must equal a choice; otherwise the closest choice is used."""


def assign_ids(questions: Sequence[WrittenQuestion]) -> list[WrittenQuestion]:
    """Give the questions ids derived from their content, so that no answer is ever used for another question.

    If a prompt has a question twice, with the same choices and the same answer, the second id ends in -2.
    """
    ids: dict[str, str] = {}
    alike: Counter[str] = Counter()
    for question in questions:
        content = hash_content(question.text, question.choices, question.answer)
        alike[content] += 1
        ids[question.question_id] = content if alike[content] == 1 else f"{content}-{alike[content]}"
    return [
        question._replace(question_id=ids[question.question_id], parents=tuple(map(ids.__getitem__, question.parents)))
        for question in questions
    ]


def hash_content(text: str, choices: Sequence[str], answer: str | None) -> str:
    """Return a question's id: 16 hexadecimal digits that are the same in every run, metric and prompt."""
    return hashlib.sha256(json.dumps([text, [*choices], answer]).encode()).hexdigest()[:16]


def is_asked(keep: bool | None) -> bool:
    """Return True if the VQA model is asked a question with this value of `keep`.

    The value is False if a filter has dropped the question.
    """
    return keep is not False


class ReplySampling(NamedTuple):
    """Options for sampling a writer's replies; the keys of the questions' cells depend on them."""

    max_tokens: int = 2048
    """Maximum number of tokens in a reply."""
    temperature: float = 0.0
    """Sampling temperature; 0 always selects the likeliest token."""
    seed: int = 0
    """Random seed for sampling; has no effect at temperature 0."""

    def make_request(self, text: str, *, stop: tuple[str, ...] = STOP_TEXTS, schema: str | None = None) -> Request:
        return Request((Message("user", text),), self.max_tokens, self.temperature, self.seed, stop, schema)


def ask(request: Request, read: Callable[[str], T], *, again: str = RETRY_REQUEST) -> Writing[T]:
    """Request a reply and return it as parsed by `read`.

    If the reply is unreadable, ask once more; if the second reply is unreadable too, raise UnreadableReply.
    """
    (result,) = yield from ask_each([request], [read], again=again)
    if isinstance(result, UnreadableReply):
        raise result
    return result


def ask_each(
    requests: Sequence[Request], readers: Sequence[Callable[[str], T]], *, again: str = RETRY_REQUEST
) -> Writing[list[T | UnreadableReply]]:
    """Ask for several replies together and parse them, returning an UnreadableReply for each unreadable one.

    Replies that cannot be parsed, or were cut off at max_tokens, are requested once more, with `again`
    as the template for the reason. The second reply is parsed even if it is cut off.
    """
    if not requests:
        return []
    replies = yield requests
    results = [_parse_reply(reader, reply) for reader, reply in zip(readers, replies, strict=True)]
    unread = [index for index, result in enumerate(results) if isinstance(result, UnreadableReply)]
    if unread:
        repeated = []
        for index in unread:
            problem = Message("user", again.format(error=results[index]))
            messages = (*requests[index].messages, Message("assistant", replies[index].text), problem)
            repeated.append(requests[index]._replace(messages=messages))
        for index, reply in zip(unread, (yield repeated), strict=True):
            results[index] = _parse_reply(readers[index], reply, accept_cut=True)
    return results


def _parse_reply(reader: Callable[[str], T], reply: Generation, *, accept_cut: bool = False) -> T | UnreadableReply:
    if not (reply.complete or accept_cut):
        return UnreadableReply(f"it was cut after {reply.usage.new_tokens} tokens; raise the metric's max_tokens")
    try:
        return reader(reply.text)
    except UnreadableReply as error:
        if reply.complete:
            return error
        return UnreadableReply(
            f"{error}; it was cut at max_tokens (finish_reason=length): raise the metric's max_tokens"
        )
