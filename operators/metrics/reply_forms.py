"""The forms in which a writer's replies are asked for: text, as released, or JSON, which engines can be held to."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply
from plumbline.operators.models.calls import Request

Replies = Literal["text", "json"]
Schema = Mapping[str, Any]
Piece = TypeVar("Piece")

ENDS_TRIED = 40
"""Places, from its end, at which a cut reply is tried as a whole one: more than a question has."""


class Form(NamedTuple, Generic[Piece]):
    """How one kind of reply is asked for, and what is read of it."""

    instructions: str
    pieces: Callable[[str], Sequence[Piece]]
    """The pieces of a reply, from which its reader goes on; raises UnreadableReply."""
    schema: Callable[[int], Schema] | None = None
    """What replies of at most so many tokens are held to."""
    template: str = ""
    """The name of the template that the instructions are, where a metric has one."""

    def request(self, sampling: ReplySampling, text: str) -> Request:
        """A conversation that opens with the instructions and goes on with the text."""
        request = sampling.request(self.instructions + text)
        return request if self.schema is None else request._replace(schema=json.dumps(self.schema(request.max_tokens)))

    @property
    def identity(self) -> tuple[str, ...]:
        """All by which it is asked for."""
        return (self.instructions,) if self.schema is None else (self.instructions, json.dumps(self.schema(0)))


# Schemas: those parts of JSON Schema that vLLM, llguidance and OpenAI's strict mode all know


def record(**fields: Schema) -> Schema:
    """An object with exactly these fields, in this order."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def string(most: int) -> Schema:
    """A text of at most so many characters."""
    return {"type": "string", "minLength": 1, "maxLength": most}


def one_of(words: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(words)}


def integer(most: int, least: int = 1) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def list_of(entry: Schema, most: int, least: int = 1) -> Schema:
    return {"type": "array", "items": entry, "minItems": least, "maxItems": most}


def listing(name: str, entry: Schema, tokens: int) -> Callable[[int], Schema]:
    """The schema of `{"name": [entry, ...]}` with as many entries as a reply has room for, each of so many tokens."""
    return lambda max_tokens: record(**{name: list_of(entry, max(1, max_tokens // tokens))})


# Reading


def entries(reply: str, *names: str) -> list[Any]:
    """What stands under the names in a reply in JSON, one entry or several, be it talked around or cut.

    Without them the first list counts, and else the whole. Raises UnreadableReply where there is no JSON.
    """
    said = parsing.plain(reply)
    starts = sorted(start for start in (said.find("{"), said.find("[")) if start >= 0)
    for start in starts:
        value = _decoded(said[start:])
        if value is not None:
            return _under(value, names)
    raise UnreadableReply(f'expected JSON such as {{"{names[0]}": ...}}, found {parsing.shown(said.strip())}')


def _decoded(text: str) -> Any:
    """The value that a text begins with; of a cut one, what is whole of it."""
    value = _tried(text)
    ends = [match.end() for match in re.finditer(r'[}\]"\d]', text)][-ENDS_TRIED:] if value is None else []
    repairs = (text[:end] + close for end in reversed(ends) for close in ("]}", "]"))
    return value if value is not None else next(filter(None, map(_tried, repairs)), None)


def _tried(text: str) -> Any:
    try:
        return json.JSONDecoder(strict=False).raw_decode(text)[0]  # engines let control characters through
    except (ValueError, RecursionError):
        return None


def _under(value: Any, names: Sequence[str]) -> list[Any]:
    named = [value[name] for name in names if name in value] if isinstance(value, dict) else []
    if named:
        return [entry for part in named for entry in _listed(part)]
    if isinstance(value, dict):
        value = next((part for part in value.values() if isinstance(part, list)), value)
    return _listed(value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def field(entry: Any, name: str) -> Any:
    """What an entry has under the name; an entry that has no names, itself."""
    return entry.get(name) if isinstance(entry, dict) else entry


def spelled(value: Any) -> str:
    """A value of JSON as the text that it says, on one line; empty where it says none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return parsing.one_line(str(value)) if isinstance(value, str | int | float) else ""


def texts_under(name: str) -> Callable[[str], list[str]]:
    """A reader of the texts under a name: of their list, or of one."""
    return lambda reply: [text for entry in entries(reply, name) if (text := spelled(field(entry, name)))]
