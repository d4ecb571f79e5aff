"""The modules that a VPEval evaluation program may call: a fixed set with its own grammar.

A program is text written by a language model and is never executed: each statement is parsed into the name of a module
and its quoted arguments. Anything else that looks like code makes the whole reply unreadable.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import permutations, product
from typing import Literal, NamedTuple

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.parsing import match_choice
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.operators.models.calls import Box

MAX_STATEMENTS = 256
MAX_STATEMENT_CHARACTERS = 1000
"""Maximum number of characters in a statement."""
MIN_DISTANCE_PIXELS = 5
"""Minimum distance in pixels between the centres of two boxes for one to be left of, right of, above or below the other
(as in upstream's code).
"""
MIN_AREA_DIFFERENCE = 0.05
"""Minimum relative difference between the areas of two boxes for one to be bigger than the other (as in upstream's
code).
"""

Module = Literal["object", "count", "spatial", "scale", "text", "vqa"]
Relations = Literal["stated", "released"]
"""Direction of a relation between two objects. `stated`: the first object of a statement has the relation to the
second, as programs state it; `released`: for left, right, above, below, bigger and smaller, the second object has the
relation to the first, as computed by upstream's code.
"""


class Statement(NamedTuple):
    module: Module
    arguments: tuple[str, ...]
    """Arguments of each module. object: the object; count: the object and its expected count; spatial and scale: first
    object, second object and relation; text: the expected text; vqa: the question, the right answer (not always one of
    the choices) and the choices.
    """
    subject: str | None = None
    """The words that the statement is about, with their type, as written in the program."""


MODULE_SIGNATURES: Mapping[str, tuple[Module, str | None, int]] = {
    "objecteval": ("object", None, 1),
    "counteval": ("count", "objdet", 2),
    "spatialeval": ("spatial", None, 1),
    "scaleeval": ("scale", None, 1),
    "texteval": ("text", "ocr", 1),
    "vqa": ("vqa", None, 3),
}
"""Signatures by lower-case name (as in upstream's code): the module, the call that wraps the image, and the number of
arguments.
"""

_SUBJECT_PATTERN = re.compile(r"(?:\d{1,3} ?[.)] ?)?about (?P<body>[^'\"=]+?) ?:?", re.IGNORECASE)
_STATEMENT_PATTERN = re.compile(r"(?P<name>\w+) ?\( ?(?:(?P<inner>\w+) ?\( ?)?(?:image|iamge) ?(?P<rest>[,)].*)\) ?;?")
_ARGUMENT_PATTERN = re.compile(r"(['\"])(.*?)\1(?= ?(?:[,)]|$))")
_SURROUNDING_PATTERN = re.compile(r"^(?:\d{1,3} ?[.)] ?)?`?|`?(?: #[^'\"]*)?$")
"""Pattern for the text around a statement: its number, backticks or a comment."""
_CODE_PATTERN = re.compile(
    r"\w\((?!s\))|__|\bimage\.|^(?:import|from|for|while|def|class|with|lambda|exec|eval)\b|\w ?=[^=]"
)
_COUNT_PATTERN = re.compile(r"(==|=|>=|<=|!=|>|<)? ?(\d{1,4})")
_SEPARATOR_PATTERN = re.compile(r"; ?(?=[A-Za-z]+ ?\()")


# Parsing programs


def read_program(reply: str) -> list[Statement]:
    """Return the statements of a program; like upstream, drop meaningless ones but keep repeated ones.

    Raise UnreadableReply if no statement is left, if more than MAX_STATEMENTS are, or if anything else in the reply
    looks like code.
    """
    statements, problems = [], []
    subject = None
    for line in parsing.split_lines(reply):
        if about := _SUBJECT_PATTERN.fullmatch(line):
            subject = about["body"]
            continue
        for text in _SEPARATOR_PATTERN.split(line):
            read = read_statement(text.strip())
            if isinstance(read, Statement):
                statements.append(read._replace(subject=subject))
            elif read is not None:
                problems.append(read)
    return require_statements(statements, problems)


def require_statements(statements: Sequence[Statement], problems: Sequence[str]) -> list[Statement]:
    """Return the statements that can be stored as text; raise UnreadableReply if there are none or too many.

    If there are none, the error quotes the first few `problems`.
    """
    stored = []
    for statement in statements:  # in JSON, arguments may contain quotes and commas, which the text form would lose
        with suppress(UnreadableReply):
            again = read_statement(format_statement(statement))
            if isinstance(again, Statement) and len(again.arguments) == len(statement.arguments):
                stored.append(statement)
    if not stored:
        raise UnreadableReply("; ".join(problems[:3]) or "no statement such as objectEval(image, 'dog') was found")
    if len(stored) > MAX_STATEMENTS:
        raise UnreadableReply(f"expected at most {MAX_STATEMENTS} statements, found {len(stored)}")
    return stored


def read_statement(text: str) -> Statement | str | None:
    """Return a call such as `countEval(objDet(image, 'cow'), '>1')` as a statement.

    Return the reason if the call is invalid, and None for text that is not a call. Raise UnreadableReply for other
    code.
    """
    text = _SURROUNDING_PATTERN.sub("", text.replace("\\", ""))
    match = _STATEMENT_PATTERN.fullmatch(text) if len(text) <= MAX_STATEMENT_CHARACTERS else None
    signature = MODULE_SIGNATURES.get(match["name"].casefold()) if match else None
    if match is None or signature is None:
        if _CODE_PATTERN.search(text):
            raise UnreadableReply(f"{parsing.shorten(text)} is not a call of one of the modules")
        return None
    arguments = [argument for _, argument in _ARGUMENT_PATTERN.findall(match["rest"])]
    module, expected_inner, n_arguments = signature
    inner = match["inner"].casefold() if match["inner"] else None
    if inner != expected_inner or _ARGUMENT_PATTERN.sub("", match["rest"]).strip(" ,()"):
        raise UnreadableReply(f"{parsing.shorten(text)} is not a call of one of the modules")
    if len(arguments) != n_arguments:
        return f"{parsing.shorten(text)} has {len(arguments)} arguments, expected {n_arguments}"
    if module in ("spatial", "scale"):  # upstream joins several arguments in one string
        arguments = arguments[0].split(",")
    elif module == "vqa":
        arguments = [arguments[0], arguments[2], *arguments[1].split(",")]
    return make_statement(module, arguments)


def make_statement(module: Module, arguments: Sequence[str]) -> Statement | str:
    """Return a statement with these arguments, or the reason why it is invalid."""
    arguments = [parsing.collapse_spaces(argument) for argument in arguments]
    named = parsing.shorten(f"{module} {', '.join(arguments)}")
    if not all(arguments) or max(map(len, arguments)) > parsing.MAX_QUESTION_CHARACTERS:
        return f"{named} lacks an argument, or has one of more than {parsing.MAX_QUESTION_CHARACTERS} characters"
    if module in ("spatial", "scale") and len(arguments) != 3:
        return f"{named} has {len(arguments)} parts, expected two objects and a relation"
    if module == "count":
        bound = _parse_count(arguments[1])
        return Statement(module, (arguments[0], bound)) if bound else f"{named} has no count such as '==2' or '>1'"
    if module == "vqa":
        question, answer, *choices = arguments
        unique = list({parsing.normalise(choice): choice for choice in reversed(choices)}.values())[::-1]
        if len(unique) < 2:
            return f"{named}: expected two or more different choices"
        return Statement("vqa", (question, match_choice(answer, unique) or answer, *unique))
    return Statement(module, tuple(arguments))


def _parse_count(written: str) -> str | None:
    """Return an expected count in a form such as `==2`; None if the text is not a count.

    Number words are accepted; a bare number means equality.
    """
    digits = written.lstrip("=<>! ")
    mark, number = written.removesuffix(digits).strip(), parsing.read_number(digits)
    match = _COUNT_PATTERN.fullmatch(f"{mark}{number}" if number is not None else written)
    return f"{match[1] if match[1] and match[1] != '=' else '=='}{int(match[2])}" if match else None


def format_statement(statement: Statement) -> str:
    """Return the statement as a line of a program, which `read_statement` can parse."""
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


# Queries about the image that a statement needs


class ImageQuery(NamedTuple):
    """One call to a model about an image: find an object, read the text, or answer a question."""

    model: Literal["detector", "reader", "model"]
    text: str
    """Name of the object to find, or the question; empty for reading all text in the image."""
    box_threshold: float = 0.0
    text_threshold: float = 0.0
    choices: tuple[str, ...] = ()
    """Possible answers to a question."""


class QueryResult(NamedTuple):
    boxes: tuple[Box, ...] = ()
    text: str | None = None
    """The text that was found in the image, or the VQA model's answer."""


_SIDE_WORDS = ("left", "right", "above", "below")
_SIZE_WORDS = {"small": "smaller", "big": "bigger", "same": "same"}


def _find_relation(statement: Statement) -> str | None:
    """Return the statement's relation if boxes can show it, such as left; None if only a VQA model can judge it."""
    words = statement.arguments[2].casefold()
    known = {side: side for side in _SIDE_WORDS} if statement.module == "spatial" else _SIZE_WORDS
    return next((relation for word, relation in known.items() if word in words), None)


def list_queries(statement: Statement, relations: Relations = "stated") -> tuple[ImageQuery, ...]:
    """Return the queries that are needed to check a statement, without repeats."""
    first = statement.arguments[0]
    match statement.module:
        case "object" | "count":
            return (ImageQuery("detector", first),)
        case "text":
            return (ImageQuery("reader", ""),)
        case "vqa":
            return (ImageQuery("model", first, choices=statement.arguments[2:]),)
        case "spatial" | "scale":
            pair = tuple(dict.fromkeys(statement.arguments[:2]))
            if _find_relation(statement):
                return tuple(ImageQuery("detector", name) for name in pair)
            questions = _list_relation_questions(statement, pair, relations)
            return tuple(ImageQuery("model", text, choices=parsing.YES_NO) for text in questions)


def _list_relation_questions(statement: Statement, pair: Sequence[str], relations: Relations) -> list[str]:
    """Return yes/no questions about a relation that boxes cannot show; the relation holds if all answers are yes.

    Upstream's code uses the word `skip` for all relations except `front` and `behind`.
    """
    first, second, relation = statement.arguments
    articles = ("an" if name[:1].casefold() in "aeiou" else "a" for name in pair)
    exist = [f"Is there {article} {name} in the image?" for article, name in zip(articles, pair, strict=True)]
    if len(pair) == 1:
        plural = f"{first}es" if first.endswith(("s", "sh", "ch", "x", "z")) else f"{first}s"
        exist = [f"Are there 2 {plural} in the image?"]
    phrases = {"front": "in front of", "behind": "behind"}
    other = relation
    if relations == "released":
        other = "skip than" if statement.module == "scale" else "skip"
    known = phrases if statement.module == "spatial" or relations == "stated" else {}
    relation = next((words for word, words in known.items() if word in relation.casefold()), other)
    return [*exist, f"Is the {first} {relation} the {second}?"]


# Is a statement true?


def check_statement(statement: Statement, results: Sequence[QueryResult], relations: Relations) -> tuple[bool, str]:
    """Return whether the statement holds, and the evidence in words, given the results of its queries in order."""
    match statement.module:
        case "object":
            return bool(results[0].boxes), _describe_boxes(statement, results)
        case "count":
            bound = statement.arguments[1]
            digits = bound.lstrip("=<>!")
            holds = _COMPARISONS[bound.removesuffix(digits)](len(results[0].boxes), int(digits))
            return holds, _describe_boxes(statement, results)
        case "text":
            # a line, or all lines together, must equal the text, without punctuation and case
            lines = (results[0].text or "").splitlines()
            texts = {_normalise_text(text) for text in [*lines, " ".join(lines)]}
            return _normalise_text(statement.arguments[0]) in texts, " / ".join(lines)
        case "vqa":
            given = _match_choice(results[0], statement.arguments[1:])
            return given == statement.arguments[1], given
        case "spatial" | "scale":
            return _check_relation(statement, results, relations)


def _match_choice(result: QueryResult, choices: Sequence[str]) -> str:
    text = result.text or ""
    return match_choice(text, choices) or text


def _describe_boxes(statement: Statement, results: Sequence[QueryResult]) -> str:
    return ", ".join(
        f"{len(result.boxes)} x {name}" for result, name in zip(results, statement.arguments, strict=False)
    )


_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


def _normalise_text(text: str) -> str:
    return parsing.collapse_spaces(re.sub(r"[.,?!*]", "", text)).casefold()


def _check_relation(statement: Statement, results: Sequence[QueryResult], relations: Relations) -> tuple[bool, str]:
    relation = _find_relation(statement)
    if relation is None:
        replies = [_match_choice(result, parsing.YES_NO) for result in results]
        return all(reply == "yes" for reply in replies), ", ".join(replies)
    named = [
        [box for box in result.boxes if box.label.casefold() == name.casefold()]
        for result, name in zip(results, dict.fromkeys(statement.arguments[:2]), strict=True)
    ]
    # two objects with the same name are two different boxes
    pairs = product(named[0], named[-1]) if len(named) > 1 else permutations(named[0], 2)
    swapped = relations == "released"
    holds = any(_is_related(relation, *(pair[::-1] if swapped else pair)) for pair in pairs)
    return holds, _describe_boxes(statement, results)


def _is_related(relation: str, first: Box, second: Box) -> bool:
    right = (first.x1 + first.x2) / 2 - (second.x1 + second.x2) / 2
    down = (first.y1 + first.y2) / 2 - (second.y1 + second.y2) / 2
    area, other_area = ((box.x2 - box.x1) * (box.y2 - box.y1) for box in (first, second))
    ratio = area / other_area if other_area else math.inf
    related = {
        "right": right > MIN_DISTANCE_PIXELS,
        "left": right < -MIN_DISTANCE_PIXELS,
        "below": down > MIN_DISTANCE_PIXELS,
        "above": down < -MIN_DISTANCE_PIXELS,
        "same": abs(1 - ratio) < MIN_AREA_DIFFERENCE,
        "bigger": ratio > 1 + MIN_AREA_DIFFERENCE,
        "smaller": ratio < 1 - MIN_AREA_DIFFERENCE,
    }
    return related[relation]
