"""Tags of prompts by a language model: which skills each takes (Gecko, appendix B.1, listing 1)."""

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
    Replies,
    entries,
    field,
    listing,
    one_of,
    record,
    spelled,
    string,
)
from plumbline.operators.metrics.wording import template_digest
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, ask
from plumbline.plugins.benchmark_builder.taxonomy import Taxonomy
from plumbline.plugins.benchmark_builder.writer import TextWriter

NONE = "none"
"""What a model writes of a prompt that takes none of the skills."""
STOP = ("\ninput:",)
"""Where a base model goes on with a further example."""
_FORMS: Mapping[Replies, str] = {
    "text": 'Write one line for each: number | tag (words of the text); or "0 | none" where no tag fits.',
    "json": 'Write {"tags": [{"tag": ..., "words": the words of the text}, ...]}, with the tag "none" where none fits.',
}
_LINE = re.compile(r"([^()]+?) ?(?:\((.*)\))?\W*")
_TOKENS_OF_ENTRY = 40
MAX_LINE = 1000
"""Characters of the longest line that is split into a tag and its words; a longer line is not a tag."""


class WrittenTag(NamedTuple):
    """A tag as a model wrote it."""

    tag: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tagging(TextWriter):
    """A row for every tag of a prompt: `kind` is the tag, null where the prompt has none, `span` its words."""

    kind: Literal["tagging"] = "tagging"
    taxonomy: Taxonomy

    def asking(self) -> dict[str, Any]:
        """All that decides the tags."""
        identity = (*self._form.identity, *STOP)
        return {"templates": template_digest(*identity), "sampling": self.options.sampling._asdict()}

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """The program that has a prompt tagged; raises UnreadableReply for a reply that has not only tags."""
        request = self._form.request(self.options.sampling, f"input: {parsing.one_line(prompt)}\noutput:")
        said = yield from ask(request._replace(stop=STOP), partial(_read, self._form, self.taxonomy))
        return list(_questions(said, prompt))

    @property
    def _form(self) -> Form[WrittenTag]:
        instructions = _instructions(self.taxonomy, self.options.replies)
        if self.options.replies == "text":
            return Form(instructions, text_tags)
        names = [tag.written for tag in self.taxonomy.tags()]
        entry = record(tag=one_of([*names, NONE]), words=string(80))
        return Form(instructions, json_tags, listing("tags", entry, _TOKENS_OF_ENTRY))


def _instructions(taxonomy: Taxonomy, replies: Replies) -> str:
    """The tags that there are, the form, and the examples."""
    lines = [
        "Say which skills it takes to draw each text: tag its words. Use these tags and no others.",
        *_described(taxonomy),
        _FORMS[replies],
        "",
    ]
    for example in taxonomy.examples:
        lines += [f"input: {example.prompt}", f"output: {_shown(example.tags, replies)}", ""]
    return "\n".join(lines) + "\n"


def _described(taxonomy: Taxonomy) -> Iterator[str]:
    for tag in taxonomy.tags():
        skill = taxonomy.skills[tag.skill]
        about = skill.about if tag.sub_skill is None else skill.sub_skills[tag.sub_skill].about
        yield f"{tag.written}: {about}" if about else tag.written


def _shown(tags: Sequence[str], replies: Replies) -> str:
    if replies == "text":
        return "\n".join(f"{number} | {tag}" for number, tag in enumerate(tags, start=1)) or f"0 | {NONE}"
    said = [_split(tag) for tag in tags] or [WrittenTag(NONE, NONE)]
    listed = ", ".join(f'{{"tag": "{one.tag}", "words": "{one.words}"}}' for one in said)
    return f'{{"tags": [{listed}]}}'


def text_tags(reply: str) -> list[WrittenTag]:
    """Lines `1 | entity - whole (man)`; raises UnreadableReply where there are none."""
    said = [_split(line.text) for line in parsing.numbered(reply)]
    if not said:
        raise UnreadableReply("expected lines such as 1 | tag (words), found none")
    return said


def _split(written: str) -> WrittenTag:
    match = _LINE.fullmatch(written) if len(written) <= MAX_LINE else None
    return WrittenTag(written, "") if match is None else WrittenTag(match[1], match[2] or "")


def json_tags(reply: str) -> list[WrittenTag]:
    """The tags of a reply in JSON."""
    return [
        WrittenTag(spelled(field(entry, "tag")), spelled(entry.get("words")) if isinstance(entry, dict) else "")
        for entry in entries(reply, "tags")
    ]


def _read(form: Form[WrittenTag], taxonomy: Taxonomy, reply: str) -> list[WrittenTag]:
    """The tags of a reply as the taxonomy spells them, none where it says so; each tag of some words once."""
    said = [one for one in form.pieces(reply) if parsing.key(one.tag) != NONE]
    try:
        return list(
            dict.fromkeys(WrittenTag(taxonomy.find(one.tag).written, parsing.one_line(one.words)) for one in said)
        )
    except ConfigError as error:
        raise UnreadableReply(str(error)) from error


def _questions(said: Sequence[WrittenTag], prompt: str) -> Iterator[WrittenQuestion]:
    """As rows; the row of a prompt without tags has no kind."""
    if not said:
        yield WrittenQuestion("1", NONE, ())
    taken: list[TextSpan] = []
    for number, (tag, words) in enumerate(said, start=1):
        place = parsing.find(words, prompt, taken=taken) if words else None
        taken += [place] if place else []
        start, end = place or (None, None)
        text = f"{tag} ({words})" if words else tag
        yield WrittenQuestion(str(number), text, (), kind=tag, span=words or None, start=start, end=end)
