"""What there is to ask about a prompt: where its text makes each requirement, and the question that tests it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import NamedTuple

from plumbline.assets.making.claims import (
    NUMBERS,
    Claim,
    Counts,
    Description,
    Every,
    Exists,
    Lacks,
    Outnumbers,
    Relates,
)
from plumbline.assets.making.prompts import MOST_COUNTED, Prompt
from plumbline.assets.making.scenes import COLOURS, SHAPES

YES_NO = ("yes", "no")
COUNT_CHOICES = NUMBERS[1 : MOST_COUNTED + 1]
PLANTED_COLOUR = "red"


class Mention(NamedTuple):
    """The words of a prompt that make one requirement: what they add to those it presupposes."""

    claim: Claim
    text: str
    start: int
    end: int


class ChoiceQuestion(NamedTuple):
    """A question with its choices and the answer that the prompt implies."""

    text: str
    choices: tuple[str, ...]
    answer: str


def yes_no_question(claim: Claim, *, truth: bool = True) -> ChoiceQuestion:
    """The claim asked for directly."""
    return ChoiceQuestion(claim.question, YES_NO, "yes" if truth else "no")


def choice_question(claim: Claim) -> ChoiceQuestion:
    """The claim's question: a choice among numbers where it counts, else yes or no."""
    if isinstance(claim, Counts):
        return ChoiceQuestion(_how_many(claim.what), COUNT_CHOICES, NUMBERS[claim.number])
    return yes_no_question(claim)


def _how_many(what: Description) -> str:
    return f"How many {what.plural} are there?"


def mentions(prompt: Prompt) -> list[Mention]:
    """Where the text makes each requirement, in the text's order, none overlapping."""
    by_claim: dict[Claim, Mention] = {}
    end = 0
    for words, claim in _joined(chain.from_iterable(map(_pieces, prompt.claims))):
        start = prompt.text.index(words, end)
        end = start + len(words)
        by_claim.setdefault(claim, Mention(claim, words, start, end))
    return sorted(by_claim.values(), key=lambda mention: mention.start)


Piece = tuple[str, Claim]
"""Words of a claim with the requirement they make."""


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces, a noun that was named before joined to its adjectives."""
    seen: set[Claim] = set()
    joined = False
    for (words, claim), (following, noun) in pairwise([*pieces, ("", Lacks(Description()))]):
        if joined:
            joined = False
        elif noun in seen and _completes(noun, claim):
            yield f"{words} {following}", claim
            joined = True
        elif claim not in seen:
            yield words, claim
        seen.add(claim)


def _completes(noun: Claim, claim: Claim) -> bool:
    """Whether one claim is of a bare shape, and the other of the same shape with adjectives."""
    return (
        isinstance(noun, Exists)
        and isinstance(claim, Exists)
        and claim != noun
        and claim.what.bare == noun.what
        and not claim.what.part
    )


def _pieces(claim: Claim) -> Iterator[Piece]:
    """The words of a claim in their order."""
    match claim:
        case Exists(what):
            yield from _named(what)
        case Counts(what, number):
            yield NUMBERS[number], claim
            yield from _named(what, plural=number != 1)
        case Relates(first, second, relation):
            yield from _named(first)
            yield relation, claim
            yield from _named(second)
        case Outnumbers(first, second, amount):
            yield amount, claim
            yield from _named(first, plural=True)
            yield from _named(second, plural=True)
        case Lacks():
            yield claim.clause, claim
        case Every(what, word=word):
            yield from _named(what, plural=word == "all")
            yield claim.value, claim


def _named(what: Description, *, plural: bool = False) -> Iterator[Piece]:
    """Adjectives, noun and part, each with what it requires there to be."""
    if what.adjectives:
        yield what.adjectives, Exists(what.whole)
    yield (what.bare.plural if plural else what.bare.noun), Exists(what.bare)
    if what.part:
        yield f"with a {what.part}", Exists(what)


def planted(text: str) -> Exists | None:
    """The thing that the writer imagines, in prompts that name red: of the first shape and colour they do not name."""
    if PLANTED_COLOUR not in text.split():
        return None
    shape = next((name for name in SHAPES if name not in text), None)
    colour = next(name for name in COLOURS if name not in text)
    return Exists(Description(shape=shape, colour=colour)) if shape else None


def phrase_questions(prompt: Prompt) -> dict[str, str]:
    """By phrase, the question it answers: of the whole prompt, then of its colours, sizes, parts, numbers and the ends
    of its relations."""
    things = [thing for claim in prompt.claims if not isinstance(claim, Lacks | Every) for thing in claim.things]
    questions = {prompt.text: "What is there?"}
    for phrase, question in [
        *(pair for claim in prompt.claims for pair in _claim_questions(claim)),
        *(pair for thing in things for pair in _property_questions(thing, things)),
    ]:
        questions.setdefault(phrase, question)
    return questions


def _claim_questions(claim: Claim) -> Iterator[tuple[str, str]]:
    match claim:
        case Counts(what, number):
            yield NUMBERS[number], _how_many(what)
        case Relates(first, second, relation):
            yield first.indefinite, f"What is {relation} {second.indefinite}?"
            yield second.indefinite, f"What is {first.indefinite} {relation}?"
        case Lacks(what):
            yield claim.clause, _how_many(what)
        case Every(what, "part", value):
            yield f"a {value}", f"What do the {what.plural} have?"
        case Every(what, field, value):
            yield value, f"What {'color' if field == 'colour' else field} are the {what.plural}?"


def _property_questions(what: Description, things: Sequence[Description]) -> Iterator[tuple[str, str]]:
    """The thing's size, colour and part, each asked of what is left of its description if that tells it apart."""
    for field, question in (
        ("size", "What size is the {}?"),
        ("colour", "What color is the {}?"),
        ("part", "What does the {} have?"),
    ):
        value, rest = getattr(what, field), replace(what, **{field: None})
        if value and sum(not rest.excludes(thing) for thing in things) == 1:
            yield f"a {value}" if field == "part" else value, question.format(rest.noun)
