"""Has a language model tag prompts with skills (Gecko, appendix B.1, listing 1)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.parsing import TextSpan
from plumbline.operators.metrics.reply_forms import (
    Form,
    ReplyFormat,
    make_choice_schema,
    make_list_schema,
    make_object_schema,
    make_string_schema,
    read_entries,
    read_json_text,
    read_member,
)
from plumbline.operators.metrics.wording import digest_templates
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, ask
from plumbline.plugins.benchmark_builder.taxonomy import Taxonomy
from plumbline.plugins.benchmark_builder.writer import TextWriter

NO_SKILLS_TAG = "none"
"""The expected reply for a prompt that requires none of the skills."""
STOP_TEXTS = ("\ninput:",)
"""Texts that end a reply; after them, base models continue with another example."""
_REPLY_FORMATS: Mapping[ReplyFormat, str] = {
    "text": 'Write one line for each: number | tag (words of the text); or "0 | none" where no tag fits.',
    "json": 'Write {"tags": [{"tag": ..., "words": the words of the text}, ...]}, with the tag "none" where none fits.',
}
_LINE_PATTERN = re.compile(r"([^()]+?) ?(?:\((.*)\))?\W*")
_TOKENS_PER_ENTRY = 40
MAX_LINE_CHARACTERS = 1000
"""Maximum length of a line with a tag, in characters; longer lines are not parsed as tags."""


class WrittenTag(NamedTuple):
    """A tag, with the words of the prompt that it applies to."""

    tag: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tagging(TextWriter):
    """Chain that writes a row for each tag of a prompt.

    `kind` is the tag, or null if the prompt has none; `span` contains the words that the tag applies to.
    """

    kind: Literal["tagging"] = "tagging"
    taxonomy: Taxonomy

    def list_question_options(self) -> dict[str, Any]:
        """Return everything that affects the tags."""
        identity = (*self._form.identity, *STOP_TEXTS)
        return {"templates": digest_templates(*identity), "sampling": self.options.sampling._asdict()}

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Ask the model for a prompt's tags; raise UnreadableReply unless the reply lists only tags of the taxonomy."""
        request = self._form.make_request(self.options.sampling, f"input: {parsing.collapse_spaces(prompt)}\noutput:")
        tags = yield from ask(request._replace(stop=STOP_TEXTS), partial(_read_reply, self._form, self.taxonomy))
        return list(_make_questions(tags, prompt))

    @property
    def _form(self) -> Form[WrittenTag]:
        instructions = _write_instructions(self.taxonomy, self.options.replies)
        if self.options.replies == "text":
            return Form(instructions, parse_text_tags)
        names = [tag.label for tag in self.taxonomy.list_tags()]
        entry = make_object_schema(tag=make_choice_schema([*names, NO_SKILLS_TAG]), words=make_string_schema(80))
        return Form(instructions, _parse_json_tags, make_list_schema("tags", entry, _TOKENS_PER_ENTRY))


def _write_instructions(taxonomy: Taxonomy, replies: ReplyFormat) -> str:
    lines = [
        "Say which skills it takes to draw each text: tag its words. Use these tags and no others.",
        *_describe_tags(taxonomy),
        _REPLY_FORMATS[replies],
        "",
    ]
    for example in taxonomy.examples:
        lines += [f"input: {example.prompt}", f"output: {_write_example(example.tags, replies)}", ""]
    return "\n".join(lines) + "\n"


def _describe_tags(taxonomy: Taxonomy) -> Iterator[str]:
    for tag in taxonomy.list_tags():
        skill = taxonomy.skills[tag.skill]
        about = skill.about if tag.sub_skill is None else skill.sub_skills[tag.sub_skill].about
        yield f"{tag.label}: {about}" if about else tag.label


def _write_example(tags: Sequence[str], replies: ReplyFormat) -> str:
    if replies == "text":
        return "\n".join(f"{number} | {tag}" for number, tag in enumerate(tags, start=1)) or f"0 | {NO_SKILLS_TAG}"
    split = [_parse_tag(tag) for tag in tags] or [WrittenTag(NO_SKILLS_TAG, NO_SKILLS_TAG)]
    listed = ", ".join(f'{{"tag": "{tag}", "words": "{words}"}}' for tag, words in split)
    return f'{{"tags": [{listed}]}}'


def parse_text_tags(reply: str) -> list[WrittenTag]:
    """Parse lines such as `1 | entity - whole (man)`; raise UnreadableReply if the reply has no such line."""
    tags = [_parse_tag(line.text) for line in parsing.read_numbered_lines(reply)]
    if not tags:
        raise UnreadableReply("expected lines such as 1 | tag (words), found none")
    return tags


def _parse_tag(text: str) -> WrittenTag:
    match = _LINE_PATTERN.fullmatch(text) if len(text) <= MAX_LINE_CHARACTERS else None
    return WrittenTag(text, "") if match is None else WrittenTag(match[1], match[2] or "")


def _parse_json_tags(reply: str) -> list[WrittenTag]:
    return [
        WrittenTag(
            read_json_text(read_member(entry, "tag")),
            read_json_text(entry.get("words")) if isinstance(entry, dict) else "",
        )
        for entry in read_entries(reply, "tags")
    ]


def _read_reply(form: Form[WrittenTag], taxonomy: Taxonomy, reply: str) -> list[WrittenTag]:
    """Return the distinct tags in a reply, spelled as in the taxonomy."""
    pieces = [piece for piece in form.pieces(reply) if parsing.normalise(piece.tag) != NO_SKILLS_TAG]
    try:
        tags = [WrittenTag(taxonomy.find(piece.tag).label, parsing.collapse_spaces(piece.words)) for piece in pieces]
    except ConfigError as error:
        raise UnreadableReply(str(error)) from error
    return list(dict.fromkeys(tags))


def _make_questions(tags: Sequence[WrittenTag], prompt: str) -> Iterator[WrittenQuestion]:
    """Yield a row for each tag; a prompt without tags gets a single row without a kind."""
    if not tags:
        yield WrittenQuestion("1", NO_SKILLS_TAG, ())
    taken: list[TextSpan] = []
    for number, (tag, words) in enumerate(tags, start=1):
        span = parsing.find_words(words, prompt, taken=taken) if words else None
        taken += [span] if span else []
        start, end = span or (None, None)
        text = f"{tag} ({words})" if words else tag
        yield WrittenQuestion(str(number), text, (), kind=tag, span=words or None, start=start, end=end)
