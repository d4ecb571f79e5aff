"""Formats for a writer's replies: text, as released, or JSON, for which engines can enforce a schema.

Questions have their own text format: blocks of `About`, `Q:`, `Choices:` and `A:` lines.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply
from plumbline.operators.models.calls import Request

ReplyFormat = Literal["text", "json"]
Schema = Mapping[str, Any]
Piece = TypeVar("Piece")

MAX_TRIED_ENDS = 40
"""Number of positions, counted from the end, at which to try to complete a JSON reply that was cut off. A single
question has fewer such positions.
"""
MAX_BLOCKS = 256
CLOSED, OPEN = "yes_no", "multiple_choice"
"""Names of the two lists of questions in a JSON reply."""
MAX_WRITTEN_QUESTION_CHARACTERS = 120
MAX_WRITTEN_CHOICE_CHARACTERS = 40
"""Maximum number of characters of a choice in schemas; parsing accepts longer ones."""

_LABEL_PATTERN = re.compile(
    r"(?:\(?\d{1,3} ?[.)] ?)?(?:correct |gold )?"
    r"(?P<label>questions?|q|choices?|options?|answers?|a) ?#?\d{0,3} ?[:：] ?(?P<body>.*)",
    re.IGNORECASE,
)
_ABOUT_PATTERN = re.compile(r"(?:(?:\d{1,3} ?[.)] ?)?about\b ?|(?=[{\[] ?\d))(?P<body>.+)", re.IGNORECASE)
_FOLDED_LABEL_PATTERN = re.compile(
    r"(?<!correct)(?<!gold) (?=(?:q|question|choices|options|answer) ?: ?\S)", re.IGNORECASE
)
_FOLDED_ANSWER_PATTERN = re.compile(r" (?=a ?:)", re.IGNORECASE)


class Form(NamedTuple, Generic[Piece]):
    """A format of replies: the instructions that request it, and the parser that reads it."""

    instructions: str
    pieces: Callable[[str], Sequence[Piece]]
    """Parser that splits a reply into pieces; raises UnreadableReply."""
    schema: Callable[[int], Schema] | None = None
    """Function that returns the schema of replies with at most the given number of tokens."""
    template: str = ""
    """Name of the template that contains the instructions, if the metric has one."""

    def make_request(self, sampling: ReplySampling, text: str) -> Request:
        """Return a request whose conversation begins with the instructions and the text."""
        request = sampling.make_request(self.instructions + text)
        return request if self.schema is None else request._replace(schema=json.dumps(self.schema(request.max_tokens)))

    @property
    def identity(self) -> tuple[str, ...]:
        """All text in a request except the prompt: the instructions and, if there is one, the schema."""
        return (self.instructions,) if self.schema is None else (self.instructions, json.dumps(self.schema(0)))


# Schemas: only the parts of JSON Schema that vLLM, llguidance and OpenAI's strict mode all support


def make_object_schema(**fields: Schema) -> Schema:
    """Return the schema of an object with exactly these fields in this order."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def make_string_schema(max_length: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": max_length}


def make_choice_schema(words: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(words)}


def make_integer_schema(maximum: int, minimum: int = 1) -> Schema:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def make_array_schema(entry: Schema, max_items: int, min_items: int = 1) -> Schema:
    return {"type": "array", "items": entry, "minItems": min_items, "maxItems": max_items}


def make_list_schema(name: str, entry: Schema, tokens: int) -> Callable[[int], Schema]:
    """Return a function that makes the schema of `{"name": [entry, ...]}`, with as many entries as fit into a reply.

    An entry has about `tokens` tokens.
    """
    return lambda max_tokens: make_object_schema(**{name: make_array_schema(entry, max(1, max_tokens // tokens))})


def make_blocks_schema(**subject: Schema) -> Callable[[int], Schema]:
    """Return a function that makes the schema of a reply with questions, each with the fields in `subject`.

    The reply must have at least one yes/no question; it may have questions with choices.
    """
    text, choice = (
        make_string_schema(MAX_WRITTEN_QUESTION_CHARACTERS),
        make_string_schema(MAX_WRITTEN_CHOICE_CHARACTERS),
    )
    closed = make_object_schema(**subject, question=text, answer=make_choice_schema(parsing.YES_NO))
    # a schema cannot require that the wrong choices differ from the right one; if they do not, questions may be lost
    opened = make_object_schema(**subject, question=text, answer=choice, wrong=make_array_schema(choice, 3))

    def make_schema(max_tokens: int) -> Schema:
        half = max_tokens // 2
        lists = {
            CLOSED: make_array_schema(closed, max(1, half // 40)),
            OPEN: make_array_schema(opened, max(1, half // 72), min_items=0),
        }
        return make_object_schema(**lists)

    return make_schema


# Parsing JSON


def read_entries(reply: str, *names: str) -> list[Any]:
    """Return the entries under the given names in a JSON reply, which may be cut off or surrounded by other text.

    If no name occurs, use the first list or, without a list, the whole value. Raise UnreadableReply if the reply
    contains no JSON.
    """
    text = parsing.strip_markup(reply)
    starts = sorted(start for start in (text.find("{"), text.find("[")) if start >= 0)
    value = next((value for start in starts if (value := _decode_json_start(text[start:])) is not None), None)
    if value is None:
        raise UnreadableReply(f'expected JSON such as {{"{names[0]}": ...}}, found {parsing.shorten(text.strip())}')
    if isinstance(value, dict):
        named = [value[name] for name in names if name in value]
        lists = [member for member in value.values() if isinstance(member, list)]
        found = named or lists[:1] or [value]
    else:
        found = [value]
    return [entry for member in found for entry in (member if isinstance(member, list) else [member])]


def _decode_json_start(text: str) -> Any:
    """Return the JSON value at the start of a text, even if its end is cut off; None if that is impossible."""
    value = _decode_json_or_none(text)
    if value is not None:
        return value
    ends = [match.end() for match in re.finditer(r'[}\]"\d]', text)][-MAX_TRIED_ENDS:]
    repairs = (text[:end] + close for end in reversed(ends) for close in ("]}", "]"))
    return next(filter(None, map(_decode_json_or_none, repairs)), None)


def _decode_json_or_none(text: str) -> Any:
    try:
        return json.JSONDecoder(strict=False).raw_decode(text)[0]  # engines let control characters through
    except (ValueError, RecursionError):
        return None


def read_member(entry: Any, name: str) -> Any:
    """Return the named member of an entry; return an entry that is not an object unchanged."""
    return entry.get(name) if isinstance(entry, dict) else entry


def read_json_text(value: Any) -> str:
    """Return a JSON value as text on one line; return an empty string for values that are not text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return parsing.collapse_spaces(str(value)) if isinstance(value, str | int | float) else ""


def make_texts_reader(name: str) -> Callable[[str], list[str]]:
    """Return a parser that reads the string, or the list of strings, under a name in a JSON reply."""
    return lambda reply: [
        text for entry in read_entries(reply, name) if (text := read_json_text(read_member(entry, name)))
    ]


# Questions in blocks


class Block(NamedTuple):
    subject: str | None
    """Subject of the question: the text after `About`."""
    text: str
    choices: tuple[str, ...]
    answer: str


class _Draft(NamedTuple):
    """Lines of a question before validation, by the label that precedes them."""

    subject: str | None
    text: list[str]
    choices: list[str]
    answer: list[str]


def read_blocks(reply: str) -> list[Block]:
    """Return the questions in a text reply, leaving out unreadable questions and exact repeats.

    A label without text takes the next line; `Choices:` without text takes all lines up to the next label. Raise
    UnreadableReply if no question can be read (listing the first few problems), or if there are more than MAX_BLOCKS.
    """
    drafts: list[_Draft] = []
    subject, waiting = None, ""
    for label, body in _split_labels(reply):
        if label == "s":
            subject, waiting = body, ""
            continue
        if label == "q":
            drafts.append(_Draft(subject, [], [], []))
        waiting = label or waiting
        if drafts and waiting and body:
            draft = drafts[-1]
            lines = {"q": draft.text, "c": draft.choices, "a": draft.answer}[waiting]
            if not lines or not label:  # if a label comes twice, the first one counts
                lines.append(body)
            if waiting != "c" or label:
                waiting = ""
    return _make_blocks(drafts, 'no line that begins with "Q:" was found')


def _split_labels(reply: str) -> Iterator[tuple[str, str]]:
    """Yield the label of each line and the text after it; a line with several labels counts as several lines.

    The label is q (question), c (choices, options), a (answer), s (subject), or empty.
    """
    for whole in parsing.split_lines(reply):
        lines = (
            _FOLDED_LABEL_PATTERN.split(whole)
            if _ABOUT_PATTERN.match(whole) or _LABEL_PATTERN.match(whole)
            else [whole]
        )
        if len(lines) > 1:
            lines[-1:] = _FOLDED_ANSWER_PATTERN.split(lines[-1])
        for line in lines:
            if label := _LABEL_PATTERN.fullmatch(line):
                yield {"q": "q", "c": "c", "o": "c", "a": "a"}[label["label"][0].lower()], label["body"].strip()
            elif about := _ABOUT_PATTERN.fullmatch(line):
                yield "s", about["body"].strip()
            else:
                yield "", line


def read_json_blocks(reply: str) -> list[Block]:
    """Return the questions in a JSON reply that follows the schema from `make_blocks_schema`.

    The choices are sorted, because the writer puts the correct choice first.
    """
    drafts = []
    for entry in read_entries(reply, CLOSED, OPEN, "questions"):
        answer, subject, kind, text = (
            read_json_text(read_member(entry, name)) for name in ("answer", "about", "type", "question")
        )
        wrong = read_member(entry, "wrong")
        choices = read_member(entry, "choices") or [answer, *(wrong if isinstance(wrong, list) else [])]
        unique = set(map(read_json_text, choices)) if isinstance(choices, list) else set()
        subject = f"{subject} ({kind})" if kind else subject
        drafts.append(_Draft(subject or None, [text], sorted(unique), [answer]))
    return _make_blocks(drafts, f'no question under "{CLOSED}" or "{OPEN}" was found')


def _make_blocks(drafts: Sequence[_Draft], absent: str) -> list[Block]:
    read = list(map(_make_block, drafts))
    blocks = list(dict.fromkeys(block for block in read if isinstance(block, Block)))
    if not blocks:
        problems = [problem for problem in read if isinstance(problem, str)][:3]
        raise UnreadableReply("; ".join(problems) or absent)
    if len(blocks) > MAX_BLOCKS:
        raise UnreadableReply(f"expected at most {MAX_BLOCKS} questions, found {len(blocks)}")
    return blocks


def _make_block(draft: _Draft) -> Block | str:
    text = "".join(draft.text)
    named = f"the question {parsing.shorten(text)}"
    if not any(char.isalnum() for char in text) or len(text) > parsing.MAX_QUESTION_CHARACTERS:
        return f"{named} has {len(text)} characters, expected 1 to {parsing.MAX_QUESTION_CHARACTERS}"
    if not draft.answer:
        return f'{named} has no line "A:"'
    written = draft.answer[0]
    lines = draft.choices
    choices: Sequence[str]
    choices = parsing.split_choices(lines[0]) if len(lines) == 1 else parsing.remove_labels(lines)
    unique = {parsing.normalise(choice): choice for choice in reversed(choices)}
    if len(unique) < 2 and parsing.match_choice(written, parsing.YES_NO):
        choices, unique = parsing.YES_NO, {choice: choice for choice in reversed(parsing.YES_NO)}
    answer = parsing.read_choice(written, choices)
    if not 2 <= len(unique) <= parsing.MAX_CHOICES:
        return f"{named} has {len(choices)} choices, expected 2 to {parsing.MAX_CHOICES} different ones"
    if max(map(len, choices)) > parsing.MAX_CHOICE_CHARACTERS:
        return f"{named} has a choice of more than {parsing.MAX_CHOICE_CHARACTERS} characters"
    if answer is None:
        listed = parsing.shorten(str(choices))
        return f"{named} has the answer {parsing.shorten(written)}, which is not among its choices {listed}"
    if parsing.is_yes_no(choices):
        return Block(draft.subject, text, parsing.YES_NO, parsing.normalise(answer))
    return Block(draft.subject, text, tuple(reversed(unique.values())), unique[parsing.normalise(answer)])
