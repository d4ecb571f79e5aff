"""Templates of rating tasks: the question, the number of images, and the valid answers."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

UNSURE, CANNOT_TELL, INVALID = "unsure", "cannot_tell", "invalid"
UNIVERSAL_ANSWERS = (UNSURE, CANNOT_TELL)
"""Answers that are valid for every template."""
WORD_MARKS = ("wrong", "unsure")
"""Marks that a rater can give a word; a word without a mark counts as shown in the image."""
QUESTION_REPLIES = ("yes", "no", UNSURE, "subjective", INVALID, CANNOT_TELL)
"""The replies of Gecko's DSG(H) (gecko.txt, D.1); its `I do not know the answer` is called `cannot_tell` here. A
question that contradicts another one is `invalid`.
"""
PREFERENCE_SIDES = ("a", "b", "tie")
"""Choices between two images. `a` is the first of a task's images, even if it was shown on the right."""


class AnswerScope(NamedTuple):
    """The words and questions that an answer must cover; None if unknown."""

    words: int | None = None
    """Number of words in the prompt."""
    questions: Collection[str] | None = None
    """The question_ids of the questions."""


UNKNOWN_SCOPE = AnswerScope()


class Template(NamedTuple):
    """A type of rating task."""

    name: str
    question: str
    """The question shown above the image."""
    images: int
    """Number of images per task."""
    expected: str
    """Description of the valid answers; in messages, it follows the word "expected"."""
    is_valid: Callable[[Any, AnswerScope], bool]
    """Function that returns True if an answer is valid; UNIVERSAL_ANSWERS are valid for every template."""
    max_difference: float = 1.0
    """Largest possible difference between the answers about two images."""
    grades: range = range(0)
    """The valid grades; empty if answers are not grades."""
    anchors: Mapping[int, str] = MappingProxyType({})
    """Explanations by grade."""
    counts_errors: bool = False
    """True if a lower grade is better."""


def _are_marks(answer: Any, scope: AnswerScope) -> bool:
    if (
        not isinstance(answer, dict)
        or answer.keys() != set(WORD_MARKS)
        or any(type(answer[mark]) is not list for mark in WORD_MARKS)
    ):
        return False
    marked = [word for mark in WORD_MARKS for word in answer[mark]]
    known = all(type(word) is int and word >= 0 and (scope.words is None or word < scope.words) for word in marked)
    return known and len(set(marked)) == len(marked)


def _are_replies(answer: Any, scope: AnswerScope) -> bool:
    if not isinstance(answer, dict) or not answer or not all(reply in QUESTION_REPLIES for reply in answer.values()):
        return False
    return scope.questions is None or answer.keys() == set(scope.questions)


def _is_side(answer: Any, scope: AnswerScope) -> bool:
    return answer in PREFERENCE_SIDES


def _make_graded_template(
    name: str, question: str, grades: range, *anchors: str, counts_errors: bool = False
) -> Template:
    """Return a template whose answers are grades.

    Anchors are given for all grades, for the first and last grade only, or for none.
    """
    anchored = grades if len(anchors) == len(grades) else (grades[0], grades[-1])[: len(anchors)]
    return Template(
        name,
        question,
        images=1,
        expected=f"a whole number from {grades[0]} to {grades[-1]}",
        is_valid=lambda answer, scope: type(answer) is int and answer in grades,
        max_difference=grades[-1] - grades[0],
        grades=grades,
        anchors=MappingProxyType(dict(zip(anchored, anchors, strict=True))),
        counts_errors=counts_errors,
    )


_ALL_TEMPLATES = (
    _make_graded_template(
        "likert",
        "How well does the image show the prompt?",
        range(1, 6),
        "not at all",
        "a little",
        "partly",
        "mostly",
        "fully",
    ),
    _make_graded_template(  # vqascore_genai_bench.txt, appendix B
        "genai_bench",
        "How well does the image (or video) match the description?",
        range(1, 6),
        "Does not match at all.",
        "Has significant discrepancies.",
        "Has several minor discrepancies.",
        "Has a few minor discrepancies.",
        "Matches exactly.",
    ),
    _make_graded_template(  # gecko.txt, D.1, after DSG
        "gecko_likert",
        "How consistent is the image with the prompt?",
        range(1, 6),
        "inconsistent",
        "consistent",
    ),
    _make_graded_template(  # llmscore.txt, 4.2 and appendix C
        "llmscore_overall",
        "Rate the overall quality of the image in terms of matching the text prompt.",
        range(1, 11),
    ),
    _make_graded_template(
        "llmscore_errors",
        "How many compositional errors does the image have compared to the text prompt? Count wrong "
        "attributes (color, spatial position, shape, size, material) of objects, wrong relationships among objects, "
        "objects of the prompt that are missing, and objects that the prompt does not mention.",
        range(10),
        counts_errors=True,
    ),
    Template(
        "words",
        "Which words of the prompt does the image not show?",
        1,
        'an object {"wrong": [...], "unsure": [...]} with indices of words, each at most once',
        _are_marks,
    ),
    Template(
        "questions",
        "Answer each question about the image.",
        1,
        f"an object with {', '.join(QUESTION_REPLIES)} by the question_id of every question",
        _are_replies,
    ),
    Template("side_by_side", "Which image shows the prompt better?", 2, " or ".join(PREFERENCE_SIDES), _is_side),
    Template("vote", "Which image is better?", 2, " or ".join(PREFERENCE_SIDES), _is_side),
)
TEMPLATES = {template.name: template for template in _ALL_TEMPLATES}


def find_problem(template: Template, answer: Any, scope: AnswerScope = UNKNOWN_SCOPE) -> str | None:
    """Return the reason why an answer is invalid, or None if it is valid."""
    if (isinstance(answer, str) and answer in UNIVERSAL_ANSWERS) or template.is_valid(answer, scope):
        return None
    return f"answer: expected {template.expected}, or {' or '.join(UNIVERSAL_ANSWERS)}, got {str(answer)[:80]!r}"
