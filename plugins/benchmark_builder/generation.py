"""Has a language model write prompts for sub-skills from templates (Gecko, appendix B.3, listing 2)."""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.reply_forms import (
    Form,
    ReplyFormat,
    make_object_schema,
    make_string_schema,
    read_entries,
    read_json_text,
)
from plumbline.operators.metrics.wording import digest_templates
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, ask
from plumbline.plugins.benchmark_builder.taxonomy import ControlValue, FieldCheck, Tag, Template
from plumbline.plugins.benchmark_builder.writer import TextWriter

PROMPT_FORMAT_VERSION = 2
"""Increase this number when the requests or the parsing of replies change."""
REQUEST_FOR_ANOTHER_TEXT = "This is number {}: make it unlike the examples, and unlike the others."
MAX_FIELD_CHARACTERS = 2_000
"""Maximum length, in characters, of a field in a JSON reply."""
_RANGE_PATTERN = re.compile(r"(\d+)(?:\s*[-–]\s*(\d+))?")
_QUOTE_CHARACTERS = "\"'“”‘’"


class PromptRequest(NamedTuple):
    """A request to a language model to write one prompt."""

    sub_skill: str
    """The sub-skill, such as `att/count:additive`."""
    number: int
    """Sequence number among requests with the same values, which makes their texts differ."""
    values: Mapping[str, ControlValue]
    """Value of each of the template's controls."""
    template: Template

    def to_json(self) -> str:
        """Return the request as JSON, as it is stored in the table of texts."""
        return json.dumps({**self._asdict(), "template": asdict(self.template)}, ensure_ascii=False)


def read_prompt_request(text: str) -> PromptRequest:
    return TypeAdapter(PromptRequest).validate_json(text)


def make_requests(
    templates: Mapping[Tag, Template], count: int, controls: Mapping[str, tuple[ControlValue, ...]], seed: int
) -> Iterator[PromptRequest]:
    """Yield `count` requests per template, using the combinations of its control values as evenly as possible.

    `controls` overrides the values of template controls with the same names. If `count` increases, each
    template keeps its first requests and gets additional ones.

    Raises ConfigError if `controls` contains a name that is not a control of any template.
    """
    if absent := controls.keys() - {name for template in templates.values() for name in template.controls}:
        known = sorted({name for template in templates.values() for name in template.controls})
        raise ConfigError(
            f"generation.controls: no template has a control {min(absent)!r}; controls are {', '.join(known)}"
        )
    for tag, template in templates.items():
        options = {name: controls.get(name, values) for name, values in template.controls.items()}
        combinations = list(product(*options.values()))
        random.Random(f"{seed}\0{tag.label}").shuffle(combinations)
        for index in range(count):
            values = dict(zip(options, combinations[index % len(combinations)], strict=True))
            yield PromptRequest(tag.names[-1], index // len(combinations) + 1, values, template)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptGeneration(TextWriter):
    """Chain that writes one prompt per request. Each row's text is the request, and its `kind` is the sub-skill."""

    kind: Literal["generation"] = "generation"

    def list_question_options(self) -> dict[str, Any]:
        """Return everything that affects the prompts, except the requests themselves."""
        words = digest_templates(REQUEST_FOR_ANOTHER_TEXT, _describe_json(["Caption"]), str(PROMPT_FORMAT_VERSION))
        sampling = self.options.sampling._asdict()
        return {"templates": words, "sampling": sampling, "replies": self.options.replies}

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Ask the model for a prompt; raise UnreadableReply if the reply does not fit the request."""
        own = read_prompt_request(prompt)
        form = _make_form(own, self.options.replies)
        request = form.make_request(self.options.sampling, _list_values(own, self.options.replies))
        stop = tuple(f"\n{name}:" for name in [*own.values][:1])
        text = yield from ask(request._replace(stop=stop), partial(_read_reply, form, own))
        return [WrittenQuestion("1", text, (), kind=own.sub_skill)]


def _make_form(request: PromptRequest, replies: ReplyFormat) -> Form[str]:
    fields = request.template.fields
    text = _write_instructions(request, replies)
    if replies == "text":
        return Form(text, partial(_read_text_fields, fields))
    schema = make_object_schema(**{name: make_string_schema(MAX_FIELD_CHARACTERS) for name in fields})
    return Form(text, partial(_read_json_fields, fields), lambda max_tokens: schema)


def _write_instructions(request: PromptRequest, replies: ReplyFormat) -> str:
    template = request.template
    form = [_describe_json(template.fields)] if replies == "json" else []
    lines = [" ".join([template.instructions.strip(), *form, REQUEST_FOR_ANOTHER_TEXT.format(request.number)]), ""]
    for example in template.examples:
        lines += [f"{name}: {example[name]}" for name in template.controls]
        lines += [_write_example(example, template, replies), ""]
    return "\n".join(lines) + "\n"


def _describe_json(fields: Sequence[str]) -> str:
    return "Write {" + ", ".join(f'"{name}": ...' for name in fields) + "}."


def _write_example(example: Mapping[str, ControlValue], template: Template, replies: ReplyFormat) -> str:
    fields = {name: example[name] for name in template.fields}
    if replies == "json":
        return json.dumps({name: str(value) for name, value in fields.items()}, ensure_ascii=False)
    return "\n".join(f"{name}: {value}" for name, value in fields.items())


def _list_values(request: PromptRequest, replies: ReplyFormat) -> str:
    lines = [f"{name}: {value}" for name, value in request.values.items()]
    return "\n".join([*lines, *([] if replies == "json" else [f"{request.template.fields[0]}:"])])


def _read_text_fields(fields: Sequence[str], reply: str) -> list[str]:
    """Return the fields of a reply; the name of the first field may be missing.

    Raises UnreadableReply if a field is missing.
    """
    lines_by_field: dict[str, list[str]] = {fields[0]: []}
    current = fields[0]
    for line in parsing.strip_markup(reply).splitlines():
        label = parsing.normalise(line.partition(":")[0]) if ":" in line else ""
        field = next((name for name in fields if parsing.normalise(name) == label), None)
        if field is not None:
            current, line = field, line.partition(":")[2]
            lines_by_field[current] = []
        elif current == fields[-1] and not line.strip() and any(lines_by_field[current]):
            break  # models often add remarks after the prompt
        lines_by_field[current].append(line)
    texts = {name: parsing.collapse_spaces(" ".join(lines)) for name, lines in lines_by_field.items()}
    if missing := [name for name in fields if not texts.get(name)]:
        raise UnreadableReply(f"expected a line `NAME: TEXT` for each of {', '.join(fields)}; {missing[0]} is missing")
    return [texts[name] for name in fields]


def _read_json_fields(fields: Sequence[str], reply: str) -> list[str]:
    texts = [read_json_text(value) for name in fields for value in read_entries(reply, name)[:1]]
    if len(texts) != len(fields) or not all(texts):
        raise UnreadableReply(f"expected JSON with {', '.join(fields)}, found {parsing.shorten(reply.strip())}")
    return texts


def _read_reply(form: Form[str], request: PromptRequest, reply: str) -> str:
    """Return the prompt in a reply; raise UnreadableReply if it fails one of the template's checks."""
    fields = dict(zip(request.template.fields, map(_remove_quotes, form.pieces(reply)), strict=True))
    for check in request.template.checks:
        _check_field(check, fields[check.field], str({**request.values, **fields}[check.other]))
    return fields[request.template.fields[-1]]


def _remove_quotes(text: str) -> str:
    quoted = (
        len(text) > 2
        and text[0] in _QUOTE_CHARACTERS
        and text[-1] in _QUOTE_CHARACTERS
        and not set(text[1:-1]) & set('"“”')
    )
    return text[1:-1].strip() if quoted else text


def _check_field(check: FieldCheck, text: str, other: str) -> None:
    if check.contains is not None:
        if parsing.find_words(_remove_quotes(other), text) is None:
            raise UnreadableReply(f"the {check.field} lacks the words {parsing.shorten(other)} of {check.contains}")
        return
    unit, length = ("words", len(text.split())) if check.words is not None else ("characters", len(text))
    match = _RANGE_PATTERN.fullmatch(other.strip())
    if match is None:
        raise UnreadableReply(f"{check.other}: expected a number or a range such as 8-15, got {other!r}")
    lowest, highest = int(match[1]), int(match[2] or match[1])
    if not lowest <= length <= highest:
        raise UnreadableReply(f"expected {other} {unit} in the {check.field}, found {length}")
