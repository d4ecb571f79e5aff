"""The modules that an evaluation program may call (VPEval): a closed set, read by a grammar of their own.

A program is text of a language model. Nothing of it is ever executed: each statement is taken apart into the name of a
module and quoted arguments, and whatever else looks like code makes the whole reply unreadable.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Literal, NamedTuple

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.parsing import same_choice
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.operators.models.calls import Box

MAX_STATEMENTS = 256
MAX_STATEMENT = 1000
"""Characters."""
PIXELS = 5
"""By which the centres of two boxes differ before one counts as left of, or above, the other (the release)."""
SHARE = 0.05
"""By which the areas of two boxes differ before one counts as bigger (the release)."""

Module = Literal["object", "count", "spatial", "scale", "text", "vqa"]
Relations = Literal["stated", "released"]
"""Whether the first object of a statement has the relation to the second, as programs say it, or, as in the release's
arithmetic for left, right, above, below, bigger and smaller, the second to the first."""


class Statement(NamedTuple):
    """One call of a module."""

    module: Module
    arguments: tuple[str, ...]
    """object: what; count: what, how many; spatial and scale: first, second, relation; text: the text; vqa: the
    question, its right answer, which a program may not have among the choices, and the choices."""
    subject: str | None = None
    """The words that it is about, as the program has them, with their type."""


class _Signature(NamedTuple):
    module: Module
    inner: str | None
    """The call that stands in place of its image."""
    arguments: int


SIGNATURES: Mapping[str, _Signature] = {
    "objecteval": _Signature("object", None, 1),
    "counteval": _Signature("count", "objdet", 2),
    "spatialeval": _Signature("spatial", None, 1),
    "scaleeval": _Signature("scale", None, 1),
    "texteval": _Signature("text", "ocr", 1),
    "vqa": _Signature("vqa", None, 3),
}
"""By name in lower case; what they look like is the release's."""

_SUBJECT = re.compile(r"(?:\d{1,3} ?[.)] ?)?about (?P<body>[^'\"=]+?) ?:?", re.IGNORECASE)
_STATEMENT = re.compile(r"(?P<name>\w+) ?\( ?(?:(?P<inner>\w+) ?\( ?)?(?:image|iamge) ?(?P<rest>[,)].*)\) ?;?")
_ARGUMENT = re.compile(r"(['\"])(.*?)\1(?= ?(?:[,)]|$))")
_AROUND = re.compile(r"^(?:\d{1,3} ?[.)] ?)?`?|`?(?: #[^'\"]*)?$")
"""What stands around a statement: its number, marks of code, a comment."""
_CODE = re.compile(r"\w\((?!s\))|__|\bimage\.|^(?:import|from|for|while|def|class|with|lambda|exec|eval)\b|\w ?=[^=]")
_COUNT = re.compile(r"(==|=|>=|<=|!=|>|<)? ?(\d{1,4})")
_SEPARATOR = re.compile(r"; ?(?=[A-Za-z]+ ?\()")


# Reading


def read_program(reply: str) -> list[Statement]:
    """The statements of a program, repeated ones too, as released; those without a meaning are left out.

    Raises UnreadableReply where there are none, and where anything else is code.
    """
    statements, problems = [], []
    for read in _statements(reply):
        if isinstance(read, Statement):
            statements.append(read)
        else:
            problems.append(read)
    return checked(statements, problems)


def checked(statements: Sequence[Statement], problems: Sequence[str]) -> list[Statement]:
    """The statements that can be stored as text; raises UnreadableReply where there are none or too many."""
    stored = [statement for statement in statements if _stored(statement)]
    if not stored:
        raise UnreadableReply("; ".join(problems[:3]) or "no statement such as objectEval(image, 'dog') was found")
    if len(stored) > MAX_STATEMENTS:
        raise UnreadableReply(f"expected at most {MAX_STATEMENTS} statements, found {len(stored)}")
    return stored


def _stored(statement: Statement) -> bool:
    """Whether the statement is read as it was written: JSON may have quotes and commas in arguments."""
    try:
        again = read_statement(written(statement))
    except UnreadableReply:
        return False
    return isinstance(again, Statement) and len(again.arguments) == len(statement.arguments)


def _statements(reply: str) -> Iterator[Statement | str]:
    subject = None
    for line in parsing.lines(reply):
        about = _SUBJECT.fullmatch(line)
        if about:
            subject = about["body"]
            continue
        for text in _SEPARATOR.split(line):
            read = read_statement(text.strip())
            if read is not None:
                yield read._replace(subject=subject) if isinstance(read, Statement) else read


def read_statement(text: str) -> Statement | str | None:
    """One statement such as `countEval(objDet(image, 'cow'), '>1')`, or why it has no meaning; None for plain words.

    Raises UnreadableReply for any other code.
    """
    text = _AROUND.sub("", text.replace("\\", ""))
    match = _STATEMENT.fullmatch(text) if len(text) <= MAX_STATEMENT else None
    signature = SIGNATURES.get(match["name"].casefold()) if match else None
    if match is None or signature is None:
        if _CODE.search(text):
            raise UnreadableReply(f"{parsing.shown(text)} is not a call of one of the modules")
        return None
    arguments = [argument for _, argument in _ARGUMENT.findall(match["rest"])]
    inner = match["inner"].casefold() if match["inner"] else None
    if inner != signature.inner or _ARGUMENT.sub("", match["rest"]).strip(" ,()"):
        raise UnreadableReply(f"{parsing.shown(text)} is not a call of one of the modules")
    if len(arguments) != signature.arguments:
        return f"{parsing.shown(text)} has {len(arguments)} arguments, expected {signature.arguments}"
    return made(signature.module, _parts(signature.module, arguments))


def _parts(module: Module, arguments: Sequence[str]) -> list[str]:
    """A statement's arguments, what stands in one string apart."""
    if module in ("spatial", "scale"):
        return arguments[0].split(",")
    if module == "vqa":
        return [arguments[0], arguments[2], *arguments[1].split(",")]
    return list(arguments)


def made(module: Module, parts: Sequence[str]) -> Statement | str:
    """A statement of these arguments, or why it has no meaning."""
    parts = [parsing.one_line(part) for part in parts]
    named = parsing.shown(f"{module} {', '.join(parts)}")
    if not all(parts) or max(map(len, parts)) > parsing.MAX_QUESTION:
        return f"{named} lacks an argument, or has one of more than {parsing.MAX_QUESTION} characters"
    if module in ("spatial", "scale") and len(parts) != 3:
        return f"{named} has {len(parts)} parts, expected two objects and a relation"
    if module == "count":
        bound = _bound(parts[1])
        return Statement(module, (parts[0], bound)) if bound else f"{named} has no count such as '==2' or '>1'"
    return _question(parts, named) if module == "vqa" else Statement(module, tuple(parts))


def _bound(written: str) -> str | None:
    """A count as `==2`; number words are read, and a number alone is exact."""
    number = parsing.number_in(written.lstrip("=<>! "))
    mark = written[: len(written) - len(written.lstrip("=<>! "))]
    match = _COUNT.fullmatch(f"{mark.strip()}{number}" if number is not None else written)
    return f"{match[1] if match[1] and match[1] != '=' else '=='}{int(match[2])}" if match else None


def _question(parts: Sequence[str], named: str) -> Statement | str:
    question, answer, *choices = parts
    unique = list({parsing.key(choice): choice for choice in reversed(choices)}.values())[::-1]
    if len(unique) < 2:
        return f"{named}: expected two or more different choices"
    return Statement("vqa", (question, same_choice(answer, unique) or answer, *unique))


def written(statement: Statement) -> str:
    """The statement as a line of a program, which `read_statement` reads."""
    first, *rest = (argument.replace("'", "’") for argument in statement.arguments)
    match statement.module:
        case "object":
            return f"objectEval(image, '{first}')"
        case "count":
            return f"countEval(objDet(image, '{first}'), '{rest[0]}')"
        case "text":
            return f"textEval(ocr(image), '{first}')"
        case "vqa":
            return f"vqa(image, '{first}', '{','.join(rest[1:])}', '{rest[0]}')"
        case "spatial" | "scale" as module:
            return f"{module}Eval(image, '{first},{rest[0]},{rest[1]}')"


# What a statement needs of an image


class Look(NamedTuple):
    """One thing asked of one of the models about an image."""

    model: Literal["detector", "reader", "model"]
    text: str
    """What is to be found, or the question; empty for all text that there is to read."""
    box_threshold: float = 0.0
    text_threshold: float = 0.0
    choices: tuple[str, ...] = ()
    """The answers that a question may have."""


class LookResult(NamedTuple):
    """What a look has shown."""

    boxes: tuple[Box, ...] = ()
    text: str | None = None
    """The text that was read, or the VQA model's answer."""


_SIDES = ("left", "right", "above", "below")
_SIZES = {"small": "smaller", "big": "bigger", "same": "same"}


def _relation(statement: Statement) -> str | None:
    """The relation that boxes can show; None where only a VQA model can tell (in front of, behind, next to, ...)."""
    words = statement.arguments[2].casefold()
    known = {side: side for side in _SIDES} if statement.module == "spatial" else _SIZES
    return next((relation for word, relation in known.items() if word in words), None)


def looks(statement: Statement, relations: Relations = "stated") -> tuple[Look, ...]:
    """What has to be asked for a statement, each once."""
    first = statement.arguments[0]
    match statement.module:
        case "object" | "count":
            return (Look("detector", first),)
        case "text":
            return (Look("reader", ""),)
        case "vqa":
            return (Look("model", first, choices=statement.arguments[2:]),)
        case "spatial" | "scale":
            pair = tuple(dict.fromkeys(statement.arguments[:2]))
            if _relation(statement):
                return tuple(Look("detector", name) for name in pair)
            questions = _related(statement, pair, relations)
            return tuple(Look("model", text, choices=parsing.YES_NO) for text in questions)


def _related(statement: Statement, pair: Sequence[str], relations: Relations) -> list[str]:
    """Questions that are all answered yes where two objects have a relation that boxes cannot show (the release, whose
    code puts the word `skip` in place of any but in front of and behind).
    """
    first, second, relation = statement.arguments
    exist = [f"Is there {_article(name)} {name} in the image?" for name in pair]
    if len(pair) == 1:
        exist = [f"Are there 2 {_plural(first)} in the image?"]
    put = {"front": "in front of", "behind": "behind"}
    other = relation
    if relations == "released":
        other = "skip than" if statement.module == "scale" else "skip"
    known = put if statement.module == "spatial" or relations == "stated" else {}
    relation = next((words for word, words in known.items() if word in relation.casefold()), other)
    return [*exist, f"Is the {first} {relation} the {second}?"]


def _article(name: str) -> str:
    return "an" if name[:1].casefold() in "aeiou" else "a"


def _plural(name: str) -> str:
    return f"{name}es" if name.endswith(("s", "sh", "ch", "x", "z")) else f"{name}s"


# Whether it holds


class StatementVerdict(NamedTuple):
    """What became of a statement."""

    holds: bool
    given: str
    """What was seen, in words."""


def judge(statement: Statement, seen: Sequence[LookResult], relations: Relations) -> StatementVerdict:
    """Whether a statement holds, by what its looks have shown, in their order."""
    match statement.module:
        case "object":
            return StatementVerdict(bool(seen[0].boxes), _found(statement, seen))
        case "count":
            return StatementVerdict(_counts(len(seen[0].boxes), statement.arguments[1]), _found(statement, seen))
        case "text":
            return _reads(statement.arguments[0], seen[0].text or "")
        case "vqa":
            given = _chosen(seen[0], statement.arguments[1:])
            return StatementVerdict(given == statement.arguments[1], given)
        case "spatial" | "scale":
            return _relates(statement, seen, relations)


def _chosen(seen: LookResult, choices: Sequence[str]) -> str:
    """The choice that a reply is, or the reply itself."""
    text = seen.text or ""
    return same_choice(text, choices) or text


def _found(statement: Statement, seen: Sequence[LookResult]) -> str:
    return ", ".join(f"{len(one.boxes)} x {name}" for one, name in zip(seen, statement.arguments, strict=False))


_COMPARES: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


def _counts(found: int, bound: str) -> bool:
    digits = bound.lstrip("=<>!")
    return _COMPARES[bound.removesuffix(digits)](found, int(digits))


def _reads(wanted: str, text: str) -> StatementVerdict:
    """A text counts where a line that was read says it, or all lines together; punctuation and case do not matter."""
    lines = text.splitlines()
    said = {_plain(line) for line in [*lines, " ".join(lines)]}
    return StatementVerdict(_plain(wanted) in said, " / ".join(lines))


def _plain(text: str) -> str:
    return parsing.one_line(re.sub(r"[.,?!*]", "", text)).casefold()


def _relates(statement: Statement, seen: Sequence[LookResult], relations: Relations) -> StatementVerdict:
    relation = _relation(statement)
    if relation is None:
        replies = [_chosen(one, parsing.YES_NO) for one in seen]
        return StatementVerdict(all(reply == "yes" for reply in replies), ", ".join(replies))
    named = [
        [box for box in one.boxes if box.label.casefold() == name.casefold()]
        for one, name in zip(seen, dict.fromkeys(statement.arguments[:2]), strict=True)
    ]
    pairs = product(named[0], named[-1]) if len(named) > 1 else _others(named[0])
    swapped = relations == "released"
    holds = any(_HOLDS[relation](*(pair[::-1] if swapped else pair)) for pair in pairs)
    return StatementVerdict(holds, _found(statement, seen))


def _others(boxes: Sequence[Box]) -> Iterator[tuple[Box, Box]]:
    """All pairs of two different boxes of the same name."""
    return ((first, second) for first, second in product(boxes, boxes) if first is not second)


def _centre(box: Box) -> tuple[float, float]:
    return (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2


def _area(box: Box) -> float:
    return (box.x2 - box.x1) * (box.y2 - box.y1)


def _right_by(axis: int) -> Callable[[Box, Box], bool]:
    return lambda first, second: _centre(first)[axis] - _centre(second)[axis] > PIXELS


def _ratio(first: Box, second: Box) -> float:
    """The first one's area in the second's; infinite beside one without any."""
    return _area(first) / _area(second) if _area(second) else math.inf


_HOLDS: Mapping[str, Callable[[Box, Box], bool]] = {
    "right": _right_by(0),
    "left": lambda first, second: _right_by(0)(second, first),
    "below": _right_by(1),
    "above": lambda first, second: _right_by(1)(second, first),
    "same": lambda first, second: abs(1 - _ratio(first, second)) < SHARE,
    "bigger": lambda first, second: _ratio(first, second) > 1 + SHARE,
    "smaller": lambda first, second: _ratio(first, second) < 1 - SHARE,
}
