"""Questions in blocks of `About`, `Q:`, `Choices:` and `A:` lines, as language models are asked to write them."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.reply_forms import Schema, entries, field, list_of, one_of, record, spelled, string
from plumbline.operators.metrics.writing import UnreadableReply

MAX_BLOCKS = 256
CLOSED, OPEN = "yes_no", "multiple_choice"
"""Names of a JSON reply's lists of questions."""
MAX_WRITTEN_QUESTION = 120
MAX_WRITTEN_CHOICE = 40
"""Maximum number of characters of a question and a choice in schemas; parsing accepts longer ones."""

_LABEL = re.compile(
    r"(?:\(?\d{1,3} ?[.)] ?)?(?:correct |gold )?"
    r"(?P<label>questions?|q|choices?|options?|answers?|a) ?#?\d{0,3} ?[:：] ?(?P<body>.*)",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"(?:(?:\d{1,3} ?[.)] ?)?about\b ?|(?=[{\[] ?\d))(?P<body>.+)", re.IGNORECASE)
_FOLDED = re.compile(r"(?<!correct)(?<!gold) (?=(?:q|question|choices|options|answer) ?: ?\S)", re.IGNORECASE)
_FOLDED_ANSWER = re.compile(r" (?=a ?:)", re.IGNORECASE)


class Block(NamedTuple):
    """A question that was parsed."""

    subject: str | None
    """Text after `About`."""
    text: str
    choices: tuple[str, ...]
    answer: str


class _Draft(NamedTuple):
    """A question before it is checked: the lines after each label."""

    subject: str | None
    text: list[str]
    choices: list[str]
    answer: list[str]

    def part(self, label: str) -> list[str]:
        return {"q": self.text, "c": self.choices, "a": self.answer}[label]


def read_blocks(reply: str) -> list[Block]:
    """Return the reply's questions without unreadable ones and exact repeats.

    Raises UnreadableReply, with the problems of the first few, if none can be read.
    """
    return _blocks(_drafts(reply), 'no line that begins with "Q:" was found')


def _blocks(drafts: Sequence[_Draft], absent: str) -> list[Block]:
    read = [_block(draft) for draft in drafts]
    blocks = list(dict.fromkeys(block for block in read if isinstance(block, Block)))
    if not blocks:
        problems = [problem for problem in read if isinstance(problem, str)][:3]
        raise UnreadableReply("; ".join(problems) or absent)
    if len(blocks) > MAX_BLOCKS:
        raise UnreadableReply(f"expected at most {MAX_BLOCKS} questions, found {len(blocks)}")
    return blocks


def read_json_blocks(reply: str) -> list[Block]:
    """Return the questions of a JSON reply (`blocks_schema`); the choices are sorted, as it has the right one first."""
    read = entries(reply, CLOSED, OPEN, "questions")
    return _blocks(list(map(_json_draft, read)), f'no question under "{CLOSED}" or "{OPEN}" was found')


def _json_draft(entry: Any) -> _Draft:
    answer, subject = (spelled(field(entry, name)) for name in ("answer", "about"))
    kind, text = (spelled(field(entry, name)) for name in ("type", "question"))
    choices = field(entry, "choices") or [answer, *_list_or_empty(field(entry, "wrong"))]
    subject = f"{subject} ({kind})" if kind else subject
    return _Draft(subject or None, [text], sorted(set(map(spelled, _list_or_empty(choices)))), [answer])


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def blocks_schema(**subject: Schema) -> Callable[[int], Schema]:
    """Return the schema of questions with a subject: at least one question with yes or no, and others with choices.

    No schema can demand that the wrong choices differ from the right one; if they do not, all such questions may be
    lost.
    """
    text, choice = string(MAX_WRITTEN_QUESTION), string(MAX_WRITTEN_CHOICE)
    closed = record(**subject, question=text, answer=one_of(parsing.YES_NO))
    opened = record(**subject, question=text, answer=choice, wrong=list_of(choice, 3))

    def schema(max_tokens: int) -> Schema:
        half = max_tokens // 2
        lists = {CLOSED: list_of(closed, max(1, half // 40)), OPEN: list_of(opened, max(1, half // 72), least=0)}
        return record(**lists)

    return schema


class _Line(NamedTuple):
    """A line with the first letter of its label: q, c (choices, options), a, s (the subject), or empty."""

    label: str
    body: str


def _drafts(reply: str) -> list[_Draft]:
    """Return the reply's drafts; a label without text takes the next line, `Choices:` all up to the next label."""
    drafts: list[_Draft] = []
    subject, waiting = None, ""
    for line in _label_lines(reply):
        if line.label == "s":
            subject, waiting = line.body, ""
            continue
        if line.label == "q":
            drafts.append(_Draft(subject, [], [], []))
        if line.label:
            waiting = line.label
        if drafts and waiting and line.body:
            part = drafts[-1].part(waiting)
            if not part or not line.label:  # if a label comes twice, the first one counts
                part.append(line.body)
            waiting = waiting if waiting == "c" and not line.label else ""
    return drafts


def _label_lines(reply: str) -> Iterator[_Line]:
    for whole in parsing.lines(reply):
        for line in _unfold(whole):
            about, label = _ABOUT.fullmatch(line), _LABEL.fullmatch(line)
            if label:
                yield _Line({"o": "c"}.get(first := label["label"][0].lower(), first), label["body"].strip())
            elif about:
                yield _Line("s", about["body"].strip())
            else:
                yield _Line("", line)


def _unfold(line: str) -> list[str]:
    """Split a line with several labels into one line per label."""
    parts = _FOLDED.split(line) if _ABOUT.match(line) or _LABEL.match(line) else [line]
    if len(parts) > 1:
        parts[-1:] = _FOLDED_ANSWER.split(parts[-1])
    return parts


def _block(draft: _Draft) -> Block | str:
    """Return the draft as a question, or the problem with it."""
    text = "".join(draft.text)
    named = f"the question {parsing.shorten(text)}"
    if not any(char.isalnum() for char in text) or len(text) > parsing.MAX_QUESTION:
        return f"{named} has {len(text)} characters, expected 1 to {parsing.MAX_QUESTION}"
    if not draft.answer:
        return f'{named} has no line "A:"'
    choices = _choices(draft)
    answer = parsing.choice_of(draft.answer[0], choices)
    problem = _problem(choices, draft.answer[0], answer)
    if problem or answer is None:
        return f"{named} {problem}"
    if parsing.is_yes_no(choices):
        return Block(draft.subject, text, parsing.YES_NO, parsing.key(answer))
    unique = {parsing.key(choice): choice for choice in reversed(choices)}
    return Block(draft.subject, text, tuple(reversed(unique.values())), unique[parsing.key(answer)])


def _choices(draft: _Draft) -> Sequence[str]:
    """Return the choices as written, or yes and no if there are none and the answer is one of them."""
    written = draft.choices
    choices = parsing.split_choices(written[0]) if len(written) == 1 else parsing.unlabelled(written)
    alone = len({parsing.key(choice) for choice in choices}) < 2
    return parsing.YES_NO if alone and parsing.same_choice(draft.answer[0], parsing.YES_NO) else choices


def _problem(choices: Sequence[str], written: str, answer: str | None) -> str | None:
    if not 2 <= len({parsing.key(choice) for choice in choices}) <= parsing.MAX_CHOICES:
        return f"has {len(choices)} choices, expected 2 to {parsing.MAX_CHOICES} different ones"
    if max(map(len, choices)) > parsing.MAX_CHOICE:
        return f"has a choice of more than {parsing.MAX_CHOICE} characters"
    if answer is None:
        return (
            f"has the answer {parsing.shorten(written)}, which is not among its choices {parsing.shorten(str(choices))}"
        )
    return None
