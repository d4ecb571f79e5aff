"""A scripted language model that replays given replies, to test how metrics' programs parse them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.models.calls import Generation, Request


class ProgramRun(NamedTuple):
    """A program's result, and the requests that it made in each round."""

    result: Any
    rounds: list[Sequence[Request]]


class Example(NamedTuple):
    """A prompt and a reply, as shown in a metric's instructions."""

    prompt: str
    reply: str


def list_examples(instructions: str, heading: str) -> list[Example]:
    """Return the examples in a metric's instructions; each example's reply starts after the line `heading`."""
    texts = instructions.split("Description:\n")[1:]
    return [Example(text.partition("\n")[0], text.partition(f"\n{heading}\n")[2].rstrip("\n")) for text in texts]


def make_reply(text: str, *, complete: bool = True) -> Generation:
    return Generation(text, complete, Usage(new_tokens=7))


def run(program: Writing[Any], *rounds: Sequence[str | Generation]) -> ProgramRun:
    """Run a program until it ends; fail unless each round has as many requests as scripted replies."""
    asked: list[Sequence[Request]] = []
    script = [[make_reply(one) if isinstance(one, str) else one for one in replies] for replies in rounds]
    try:
        requests = next(program)
        for replies in script:
            asked.append(requests)
            assert len(replies) == len(requests)
            requests = program.send(replies)
    except StopIteration as end:
        assert len(asked) == len(rounds), "the program ended before its script"
        return ProgramRun(end.value, asked)
    raise AssertionError(f"more requests than scripted: {[one.messages[-1].text[-200:] for one in requests]}")
