"""Forms of a writer's replies: text, as released, or JSON, which engines can enforce by a schema."""

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
"""Positions from the end at which a cut reply is tried as a complete one: more than a question has."""


class Form(NamedTuple, Generic[Piece]):
    """A form of replies: its request and its parser."""

    instructions: str
    pieces: Callable[[str], Sequence[Piece]]
    """Parser of a reply into pieces for its reader; raises UnreadableReply."""
    schema: Callable[[int], Schema] | None = None
    """Schema of replies with at most this number of tokens."""
    template: str = ""
    """Name of the template with the instructions, if a metric has one."""

    def request(self, sampling: ReplySampling, text: str) -> Request:
        """Return a conversation that begins with the instructions and the text."""
        request = sampling.request(self.instructions + text)
        return request if self.schema is None else request._replace(schema=json.dumps(self.schema(request.max_tokens)))

    @property
    def identity(self) -> tuple[str, ...]:
        """All texts that decide the request."""
        return (self.instructions,) if self.schema is None else (self.instructions, json.dumps(self.schema(0)))


# Schemas: those parts of JSON Schema that vLLM, llguidance and OpenAI's strict mode all know


def record(**fields: Schema) -> Schema:
    """Return the schema of an object with exactly these fields, in this order."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def string(most: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": most}


def one_of(words: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(words)}


def integer(most: int, least: int = 1) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def list_of(entry: Schema, most: int, least: int = 1) -> Schema:
    return {"type": "array", "items": entry, "minItems": least, "maxItems": most}


def listing(name: str, entry: Schema, tokens: int) -> Callable[[int], Schema]:
    """Return the schema of `{"name": [entry, ...]}`; its entries of about `tokens` tokens must fit into a reply."""
    return lambda max_tokens: record(**{name: list_of(entry, max(1, max_tokens // tokens))})


# Reading


def entries(reply: str, *names: str) -> list[Any]:
    """Return the entries under the names in a JSON reply, which may be cut or surrounded by other text.

    Without these names the first list counts, or else the whole value. Raises UnreadableReply if the reply has no JSON.
    """
    text = parsing.plain(reply)
    starts = sorted(start for start in (text.find("{"), text.find("[")) if start >= 0)
    for start in starts:
        value = _decode(text[start:])
        if value is not None:
            return _entries_under(value, names)
    raise UnreadableReply(f'expected JSON such as {{"{names[0]}": ...}}, found {parsing.shorten(text.strip())}')


def _decode(text: str) -> Any:
    """Return the value that a text begins with; of a cut one, its complete part."""
    value = _try_decode(text)
    ends = [match.end() for match in re.finditer(r'[}\]"\d]', text)][-ENDS_TRIED:] if value is None else []
    repairs = (text[:end] + close for end in reversed(ends) for close in ("]}", "]"))
    return value if value is not None else next(filter(None, map(_try_decode, repairs)), None)


def _try_decode(text: str) -> Any:
    try:
        return json.JSONDecoder(strict=False).raw_decode(text)[0]  # engines let control characters through
    except (ValueError, RecursionError):
        return None


def _entries_under(value: Any, names: Sequence[str]) -> list[Any]:
    named = [value[name] for name in names if name in value] if isinstance(value, dict) else []
    if named:
        return [entry for part in named for entry in _as_list(part)]
    if isinstance(value, dict):
        value = next((part for part in value.values() if isinstance(part, list)), value)
    return _as_list(value)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def field(entry: Any, name: str) -> Any:
    """Return the member of an entry with this name; an entry that is no object is returned unchanged."""
    return entry.get(name) if isinstance(entry, dict) else entry


def spelled(value: Any) -> str:
    """Return a JSON value as text on one line; empty for values without a text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return parsing.one_line(str(value)) if isinstance(value, str | int | float) else ""


def texts_under(name: str) -> Callable[[str], list[str]]:
    """Return a reader of the text or texts under a name."""
    return lambda reply: [text for entry in entries(reply, name) if (text := spelled(field(entry, name)))]
