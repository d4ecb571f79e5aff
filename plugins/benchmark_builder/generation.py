"""Prompts of sub-skills, written by a language model from templates (Gecko, appendix B.3, listing 2)."""

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
from plumbline.operators.metrics.reply_forms import Form, Replies, entries, record, spelled, string
from plumbline.operators.metrics.wording import template_digest
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, ask
from plumbline.plugins.benchmark_builder.taxonomy import Check, Tag, Template, Value
from plumbline.plugins.benchmark_builder.writer import TextWriter

VERSION = 1
"""Raised when what a request asks for, or how its reply is read, changes."""
ANOTHER = "This is number {}: make it unlike the examples, and unlike the others."
_LONGEST = 2_000
"""Characters of a field in JSON."""
_RANGE = re.compile(r"(\d+)(?:\s*[-–]\s*(\d+))?")
_QUOTES = "\"'“”‘’"


class PromptRequest(NamedTuple):
    """A prompt that is to be written."""

    sub_skill: str
    """As the skills of a prompt have it: `att/count:additive`."""
    number: int
    """Which one of those with the same controls it is, so that they are asked for in different words."""
    values: Mapping[str, Value]
    """Of the controls."""
    template: Template

    def text(self) -> str:
        """All of it as JSON: by this a request is known, and kept."""
        return json.dumps({**self._asdict(), "template": asdict(self.template)}, ensure_ascii=False)


def read_prompt_request(text: str) -> PromptRequest:
    """A request as `PromptRequest.text` wrote it."""
    return TypeAdapter(PromptRequest).validate_json(text)


def requests(
    templates: Mapping[Tag, Template], count: int, controls: Mapping[str, tuple[Value, ...]], seed: int
) -> Iterator[PromptRequest]:
    """`count` requests for each template, every combination of its controls' values as often as the others.

    `controls` take the place of the template's values, where it has controls of their names. More requests begin with
    the same ones. Raises ConfigError for a control that no template has.
    """
    if absent := controls.keys() - {name for template in templates.values() for name in template.controls}:
        known = sorted({name for template in templates.values() for name in template.controls})
        raise ConfigError(f"generation.controls: no template has {min(absent)!r}; they have {', '.join(known)}")
    for tag, template in templates.items():
        chosen = {name: controls.get(name, values) for name, values in template.controls.items()}
        combinations = list(product(*chosen.values()))
        random.Random(f"{seed}\0{tag.written}").shuffle(combinations)
        for index in range(count):
            values = dict(zip(chosen, combinations[index % len(combinations)], strict=True))
            yield PromptRequest(tag.names[-1], index // len(combinations) + 1, values, template)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptGeneration(TextWriter):
    """The prompt of each request: `kind` is its sub-skill. The texts that it writes about are requests."""

    kind: Literal["generation"] = "generation"

    def asking(self) -> dict[str, Any]:
        """All that decides the prompts, but for the requests, which are the texts."""
        words = template_digest(ANOTHER, _in_json(["Caption"]), str(VERSION))
        sampling = self.options.sampling._asdict()
        return {"templates": words, "sampling": sampling, "replies": self.options.replies}

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """The program that has a request's prompt written; raises UnreadableReply for one that is not as asked."""
        asked = read_prompt_request(prompt)
        form = _form(asked, self.options.replies)
        request = form.request(self.options.sampling, _given(asked, self.options.replies))
        stop = tuple(f"\n{name}:" for name in [*asked.values][:1])
        text = yield from ask(request._replace(stop=stop), partial(_read, form, asked))
        return [WrittenQuestion("1", text, (), kind=asked.sub_skill)]


def _form(asked: PromptRequest, replies: Replies) -> Form[str]:
    fields = asked.template.fields
    text = _instructions(asked, replies)
    if replies == "text":
        return Form(text, partial(_fields_of_text, fields))
    schema = record(**{name: string(_LONGEST) for name in fields})
    return Form(text, partial(_fields_of_json, fields), lambda max_tokens: schema)


def _instructions(asked: PromptRequest, replies: Replies) -> str:
    template = asked.template
    form = [_in_json(template.fields)] if replies == "json" else []
    lines = [" ".join([template.instructions.strip(), *form, ANOTHER.format(asked.number)]), ""]
    for example in template.examples:
        lines += [*(f"{name}: {example[name]}" for name in template.controls), _written(example, template, replies), ""]
    return "\n".join(lines) + "\n"


def _in_json(fields: Sequence[str]) -> str:
    return "Write {" + ", ".join(f'"{name}": ...' for name in fields) + "}."


def _written(example: Mapping[str, Value], template: Template, replies: Replies) -> str:
    said = {name: example[name] for name in template.fields}
    if replies == "json":
        return json.dumps({name: str(value) for name, value in said.items()}, ensure_ascii=False)
    return "\n".join(f"{name}: {value}" for name, value in said.items())


def _given(asked: PromptRequest, replies: Replies) -> str:
    given = [f"{name}: {value}" for name, value in asked.values.items()]
    return "\n".join([*given, *([] if replies == "json" else [f"{asked.template.fields[0]}:"])])


def _fields_of_text(fields: Sequence[str], reply: str) -> list[str]:
    """The fields of a reply, of which the first may stand without its name; raises UnreadableReply."""
    said: dict[str, list[str]] = {fields[0]: []}
    current = fields[0]
    for line in parsing.plain(reply).splitlines():
        label = _label(line, fields)
        if label is not None:
            current, line = label, line.partition(":")[2]
            said[current] = []
        elif current == fields[-1] and not line.strip() and any(said[current]):
            break  # what a model adds behind the prompt
        said[current].append(line)
    texts = {name: parsing.one_line(" ".join(lines)) for name, lines in said.items()}
    if missing := [name for name in fields if not texts.get(name)]:
        raise UnreadableReply(f"expected {', '.join(fields)}, each on a line behind its name; {missing[0]} is missing")
    return [texts[name] for name in fields]


def _label(line: str, fields: Sequence[str]) -> str | None:
    name = parsing.key(line.partition(":")[0]) if ":" in line else ""
    return next((own for own in fields if parsing.key(own) == name), None)


def _fields_of_json(fields: Sequence[str], reply: str) -> list[str]:
    said = [spelled(value) for name in fields for value in entries(reply, name)[:1]]
    if len(said) != len(fields) or not all(said):
        raise UnreadableReply(f"expected JSON with {', '.join(fields)}, found {parsing.shorten(reply.strip())}")
    return said


def _read(form: Form[str], asked: PromptRequest, reply: str) -> str:
    """The prompt of a reply; raises UnreadableReply where it is not what the controls ask for."""
    fields = dict(zip(asked.template.fields, map(_unquoted, form.pieces(reply)), strict=True))
    for check in asked.template.checks:
        _require(check, fields[check.field], str({**asked.values, **fields}[check.other]))
    return fields[asked.template.fields[-1]]


def _unquoted(text: str) -> str:
    """The text without quotes around all of it."""
    whole = len(text) > 2 and text[0] in _QUOTES and text[-1] in _QUOTES and not set(text[1:-1]) & set('"“”')
    return text[1:-1].strip() if whole else text


def _require(check: Check, text: str, other: str) -> None:
    if check.contains is not None:
        if parsing.find(_unquoted(other), text) is None:
            raise UnreadableReply(f"the {check.field} has not the words {parsing.shorten(other)} of {check.contains}")
        return
    unit, found = ("words", len(text.split())) if check.words is not None else ("characters", len(text))
    match = _RANGE.fullmatch(other.strip())
    if match is None:
        raise UnreadableReply(f"{check.other}: expected a number or a range such as 8-15, got {other!r}")
    least, most = int(match[1]), int(match[2] or match[1])
    if not least <= found <= most:
        raise UnreadableReply(f"the {check.field} has {found} {unit}, and {other} were asked for")
