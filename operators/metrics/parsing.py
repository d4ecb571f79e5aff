"""Tolerant parsing of language models' replies: plain lines, labels, choices, and positions of words in a prompt."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from plumbline.operators.metrics.writing import UnreadableReply

MAX_REPLY_CHARACTERS = 60_000
"""Maximum number of characters in a reply."""
MAX_QUESTION_CHARACTERS = 500
MAX_CHOICE_CHARACTERS = 120
MAX_CHOICES = 26

YES_NO = ("yes", "no")

_WORDS_BELOW_TWENTY = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen"""
_TENS_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBER_WORDS = {word: number for number, word in enumerate(_WORDS_BELOW_TWENTY.split())}
_NUMBER_WORDS |= {word: 10 * tens for tens, word in enumerate(_TENS_WORDS.split(), start=2)}
_SCALE_WORDS = {"thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_ARTICLES = {"a", "an", "the"}

_EDGE_CHARACTERS = " \t.,;:!?\"'`*()[]{}“”‘’"
_BULLETS_PATTERN = re.compile(r"^[ >*#•\-]*")
_LETTER_PATTERN = re.compile(r"\(?([A-Za-z])(?:[).:] ?(.*))?", re.DOTALL)
_CHOICE_LABEL_PATTERN = re.compile(r"^\(?(?:[A-Za-z]|\d{1,2})[).] ")
_ANSWER_LABEL_PATTERN = re.compile(r"^(?:a|answer) ?: ?", re.IGNORECASE)
_HEADING_REGEX = r"(?:[A-Za-z][A-Za-z ]{0,40}: ?)?"
NUMBER_REGEX = r"(?:(?:tuple|question|q|id|no) ?[.#]? ?)?(\d{1,4})"
"""Pattern for the number of a tuple or question as models write it: `1`, `Q1`, `tuple 1`."""
_NUMBERED_LINE_PATTERN = re.compile(
    rf"{_HEADING_REGEX}\(?{NUMBER_REGEX}\)?(?: ?\([^()|]{{1,80}}\)(?= ?[|:]))? ?[|:.)] ?(?P<text>.*)", re.IGNORECASE
)
_CHARACTER_VARIANTS = {
    **dict.fromkeys("'’‘`", "['’‘`]"),
    **dict.fromkeys('"“”', '["“”]'),
    **dict.fromkeys("-–—", "[-–—]"),
}


class TextSpan(NamedTuple):
    """Position of words in a prompt, as character offsets `start` and `end`."""

    start: int
    end: int


class LocatedWords(NamedTuple):
    """Words that a question is about, with their position in the prompt if they occur in it."""

    words: str | None
    """The words, spelled as in the prompt if they occur in it."""
    start: int | None = None
    end: int | None = None


class NumberedLine(NamedTuple):
    number: int
    text: str


def strip_markup(reply: str) -> str:
    """Return the reply without reasoning, code fences and bold markup; raise UnreadableReply if it is too long."""
    answer = reply.rpartition("</think>")[2]
    if len(answer) > MAX_REPLY_CHARACTERS:
        raise UnreadableReply(f"expected at most {MAX_REPLY_CHARACTERS} characters, found {len(answer)}")
    return "\n".join(line for line in answer.splitlines() if not line.lstrip().startswith("```")).replace("**", "")


def split_lines(reply: str) -> list[str]:
    """Return the nonempty lines of the reply, with bullets removed and white space collapsed."""
    flat = (collapse_spaces(line) for line in strip_markup(reply).splitlines())
    return [rest for line in flat if (rest := _BULLETS_PATTERN.sub("", line, count=1))]


def collapse_spaces(text: str) -> str:
    """Replace each run of white space by one space, and each lone surrogate, which JSON may contain, by "?"."""
    return " ".join(text.split()).encode("utf-8", "replace").decode()


def shorten(text: str) -> str:
    """Return the text in quotes, cut to at most 80 characters, for an error message."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def read_numbered_lines(reply: str) -> list[NumberedLine]:
    """Return lines of the form `id | text`, `id. text`, `id) text` or `id: text`, and table rows, with their ids.

    A heading or a word may precede the id (`tuple 1`), and words in brackets may follow it (`1 (dog)`).
    """
    matches = (_NUMBERED_LINE_PATTERN.fullmatch(line.strip("| ")) for line in split_lines(reply))
    return [NumberedLine(int(match[1]), text) for match in matches if match and (text := match["text"].strip())]


def normalise(text: str) -> str:
    """Return the text in lower case without surrounding punctuation, for comparing answers."""
    folded = collapse_spaces(text).casefold()
    return folded.strip(_EDGE_CHARACTERS) or folded


def is_yes_no(choices: Iterable[str]) -> bool:
    return {normalise(choice) for choice in choices} == set(YES_NO)


def match_choice(answer: str, choices: Sequence[str]) -> str | None:
    """Return the choice that equals the answer, ignoring case, spaces and surrounding punctuation.

    If the choices are yes and no, an answer that starts with yes or no, followed by punctuation, matches too ("Yes,
    there is a dog."). This is more lenient than the exact match in TIFA's code, for models that answer in sentences.
    """
    by_key = {normalise(choice): choice for choice in reversed(choices)}
    choice = by_key.get(normalise(answer))
    if choice is None and is_yes_no(choices):
        return by_key.get(normalise(re.split("[,.;:!(]", answer, maxsplit=1)[0]))
    return choice


def read_choice(answer: str, choices: Sequence[str]) -> str | None:
    """Return the choice whose words or letter an answer consists of (`B`, `(b)`, `B) blue`); None if there is none.

    A remark in brackets after the words of a choice is ignored.
    """
    choice = match_choice(answer, choices) or match_choice(answer.partition(" (")[0], choices)
    letter = _LETTER_PATTERN.fullmatch(collapse_spaces(answer))
    if choice is not None or letter is None:
        return choice
    if normalise(letter[2] or ""):
        return match_choice(letter[2], choices)
    index = ord(letter[1].upper()) - ord("A")
    return choices[index] if index < len(choices) else None


def split_choices(text: str) -> list[str]:
    """Return the choices in a line, separated by `|` or `;` or, if it has neither, by commas outside of quotes."""
    text = text.strip().removesuffix(".")
    if text[:1] + text[-1:] == "[]":
        text = text[1:-1]
    separator = next((mark for mark in "|;" if mark in text), ",")
    quoted = next(csv.reader([text], delimiter=separator, skipinitialspace=True), [])
    choices = []
    for part in map(collapse_spaces, quoted if len(quoted) > 1 else text.split(separator)):
        in_quotes = len(part) > 2 and part[0] == part[-1] and part[0] in "\"'"
        choices.append(part[1:-1].strip() if in_quotes else part)
    return remove_labels(list(filter(None, choices)))


def remove_labels(choices: Sequence[str]) -> list[str]:
    """Return the choices without labels such as `A) `; unchanged unless all choices have a label."""
    choices = [collapse_spaces(choice) for choice in choices]
    if len(choices) > 1 and all(_CHOICE_LABEL_PATTERN.match(choice) for choice in choices):
        return [_CHOICE_LABEL_PATTERN.sub("", choice, count=1) for choice in choices]
    return choices


def read_short_answer(reply: str, pieces: Callable[[str], Sequence[str]] = split_lines) -> str:
    """Return the first line with more than a label, without its label; empty if no line has more than a label."""
    texts = (_ANSWER_LABEL_PATTERN.sub("", line, count=1) for line in pieces(reply))
    return next(filter(None, texts), "")[:MAX_QUESTION_CHARACTERS]


def compute_token_f1(answer: str, gold: str) -> float:
    """Return the F1 of two answers as bags of words, ignoring articles and punctuation; `two` equals `2`."""
    given, right = Counter(_split_words(answer)), Counter(_split_words(gold))
    if not given or not right:
        return float(normalise(answer) == normalise(gold))
    return 2 * (given & right).total() / (given.total() + right.total())


def _split_words(text: str) -> list[str]:
    words = [str(_NUMBER_WORDS.get(word, word)) for word in re.findall(r"\w+", text.casefold())]
    return [word for word in words if word not in _ARTICLES]


def read_number(text: str) -> int | None:
    """Return the number written in digits or in words (`two hundred and forty dogs`), or None if there is no number."""
    if text.strip().isdecimal():
        return int(text)
    total, group, words = 0, 0, 0
    for word in text.casefold().split():
        words += word in _NUMBER_WORDS or word in _SCALE_WORDS or word == "hundred"
        group += _NUMBER_WORDS.get(word, 0)
        if word == "hundred":
            group = max(group, 1) * 100
        elif word in _SCALE_WORDS:
            total, group = total + max(group, 1) * _SCALE_WORDS[word], 0
    return total + group if words else None


def find_words(words: str, prompt: str, *, after: int = 0, taken: Sequence[TextSpan] = ()) -> TextSpan | None:
    """Return the position of words in the prompt, ignoring case, spaces and kinds of quotes; None if absent.

    Positions in `taken` are used only if the words occur nowhere else. Among the other positions, return the first
    position from `after` on or, failing that, the first position. Words made of ASCII characters must match whole
    words.
    """
    if len(collapse_spaces(words)) > 2 * len(prompt):
        return None
    found = list(islice(_find_all(collapse_spaces(words), prompt), 64))
    free = [span for span in found if all(span.end <= other.start or other.end <= span.start for other in taken)]
    return next((span for span in free if span.start >= after), next(iter([*free, *found]), None))


def locate_words(words: str | None, prompt: str) -> LocatedWords:
    """Return the words with their first position in the prompt; both are None if `words` is None."""
    span = find_words(words, prompt) if words else None
    return LocatedWords(prompt[span.start : span.end], *span) if span else LocatedWords(words or None)


def _find_all(words: str, prompt: str) -> Iterator[TextSpan]:
    for form in dict.fromkeys((words, words.strip(_EDGE_CHARACTERS))):
        if not form:
            continue
        pattern = _make_pattern(form)
        if form.isascii():
            pattern = (r"(?<!\w)" if form[0].isalnum() else "") + pattern + (r"(?!\w)" if form[-1].isalnum() else "")
        yield from (TextSpan(*match.span()) for match in re.finditer(pattern, prompt, re.IGNORECASE))


def skip_text(text: str, prompt: str, start: int) -> int:
    """Return the position after `text` if the prompt has this text at `start`, otherwise `start`."""
    match = re.compile(rf"\s*{_make_pattern(text)}\s*", re.IGNORECASE).match(prompt, start)
    return match.end() if match else start


def _make_pattern(words: str) -> str:
    """Return a regular expression that matches the words with any kind of white space, quotes and dashes."""
    return r"\s+".join(
        "".join(_CHARACTER_VARIANTS.get(char, re.escape(char)) for char in word) for word in words.split()
    )


_PARENT_PATTERN = re.compile(rf"{NUMBER_REGEX}(?: ?[(:|=-] ?\D.*)?", re.IGNORECASE)
_BETWEEN_PARENTS_PATTERN = re.compile(r"[,;&]|\band\b|(?<=\d) (?=\d)", re.IGNORECASE)
_NO_PARENT_WORDS = {"", "-", "none", "null", "n/a"}


def read_parents(written: str) -> list[int] | None:
    """Return the parents' numbers in a text such as `1,4` or `tuple 1 (dog), background`, except 0.

    Parts without a number are ignored. If no part has a number, return an empty list if the text says that there are no
    parents (`none`), and otherwise None.
    """
    parts = [part.strip(" .[]()") for part in _BETWEEN_PARENTS_PATTERN.split(written)]
    numbers = [int(match[1]) for match in map(_PARENT_PATTERN.fullmatch, parts) if match]
    if not numbers and not {part.casefold() for part in parts} <= _NO_PARENT_WORDS:
        return None
    return [number for number in numbers if number != 0]
