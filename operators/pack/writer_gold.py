"""What there is to ask about a prompt: where its text makes each requirement, and the question that tests it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from operators.pack.claims import (
    NUMBERS,
    Claim,
    Counts,
    Description,
    Every,
    Exists,
    Lacks,
    Outnumbers,
    Outsizes,
    Relates,
)
from operators.pack.prompts import MOST_COUNTED, Prompt
from operators.pack.scenes import COLOURS, SHAPES

YES_NO = ("yes", "no")
COUNT_CHOICES = NUMBERS[1 : MOST_COUNTED + 1]


class Mention(NamedTuple):
    """The words of a prompt that make one requirement: what they add to those it presupposes."""

    claim: Claim
    text: str
    start: int
    end: int


class Asked(NamedTuple):
    """A question with its choices and the answer that the prompt implies."""

    text: str
    choices: tuple[str, ...]
    answer: str

    @property
    def is_yes_no(self) -> bool:
        return self.choices == YES_NO


def yes_no(claim: Claim, *, truth: bool = True) -> Asked:
    """The claim asked for directly."""
    return Asked(claim.question, YES_NO, "yes" if truth else "no")


def asked(claim: Claim) -> Asked:
    """The claim's question: a choice among numbers where it counts, else yes or no."""
    if isinstance(claim, Counts):
        return Asked(f"How many {claim.what.plural} are there?", COUNT_CHOICES, NUMBERS[claim.number])
    return yes_no(claim)


def stated(prompt: Prompt) -> list[Claim]:
    """The claims that the prompt's text makes, in its order: the requirements that no other presupposes."""
    parents = {parent for requirement in prompt.requirements for parent in requirement.parents}
    return [node.claim for node in prompt.requirements if node.requirement_id not in parents]


def mentions(prompt: Prompt) -> list[Mention]:
    """Where the text makes each requirement, in the text's order, none overlapping."""
    found: dict[Claim, Mention] = {}
    cursor = 0
    for words, claim in _joined(_pieces(stated(prompt))):
        start = prompt.text.index(words, cursor)
        cursor = start + len(words)
        found.setdefault(claim, Mention(claim, words, start, cursor))
    return sorted(found.values(), key=lambda mention: mention.start)


Piece = tuple[str, Claim]


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces, a noun that was named before being told together with its adjectives."""
    seen: set[Claim] = set()
    listed = [*pieces, ("", Lacks(what=Description(shape=None)))]
    joined = False
    for (words, claim), (following, noun) in pairwise(listed):
        if joined:
            joined = False
        elif noun in seen and _names_only(noun) and isinstance(claim, Exists) and _is_narrower(claim, noun):
            yield f"{words} {following}", claim
            joined = True
        elif claim not in seen:
            yield words, claim
        seen.add(claim)


def _names_only(claim: Claim) -> bool:
    return isinstance(claim, Exists) and claim.what == Description(shape=claim.what.shape)


def _is_narrower(claim: Exists, noun: Claim) -> bool:
    return isinstance(noun, Exists) and claim != noun and claim.what.shape == noun.what.shape and not claim.what.part


def _pieces(claims: Sequence[Claim]) -> Iterator[Piece]:
    for claim in claims:
        yield from _words(claim)


def _words(claim: Claim) -> Iterator[Piece]:
    """The words of a claim in their order, each with the requirement they make."""
    match claim:
        case Exists(what=what):
            yield from _named(what)
        case Counts(what=what, number=number):
            yield NUMBERS[number], claim
            yield from _named(what, plural=number != 1)
        case Relates(one=one, other=other, relation=words) | Outsizes(one=one, other=other, relation=words):
            yield from _named(one)
            yield words, claim
            yield from _named(other)
        case Outnumbers(one=one, other=other, more=more):
            yield "more" if more else "fewer", claim
            yield from _named(one, plural=True)
            yield from _named(other, plural=True)
        case Lacks(what=what):
            yield f"no {what.plural}", claim
        case Every(what=what, word=word):
            yield from _named(what, plural=word == "all")
            yield claim.part or claim.colour or claim.size or "", claim


def _named(what: Description, *, plural: bool = False) -> Iterator[Piece]:
    """Adjectives, noun and part, each with what it requires there to be."""
    bare = Description(shape=what.shape)
    adjectives = " ".join(word for word in (what.size, what.colour) if word)
    if adjectives:
        yield adjectives, Exists(what=Description(shape=what.shape, colour=what.colour, size=what.size))
    yield (bare.plural if plural else bare.noun), Exists(what=bare)
    if what.part:
        yield f"with a {what.part}", Exists(what=what)


PLANTED_COLOUR = "red"


def planted(text: str) -> Exists | None:
    """The thing that the writer imagines, in prompts that name red: of the first shape and colour they do not name."""
    if PLANTED_COLOUR not in text.split():
        return None
    shape = next((name for name in SHAPES if name not in text), None)
    colour = next(name for name in COLOURS if name not in text)
    return Exists(what=Description(shape=shape, colour=colour)) if shape else None


class Phrase(NamedTuple):
    """Words of a prompt with the question that they answer."""

    words: str
    question: str


def phrases(prompt: Prompt) -> list[Phrase]:
    """The whole prompt, then its colours, sizes, parts, numbers and the ends of its relations; each words once."""
    claims = stated(prompt)
    described = [what for claim in claims for what in _described(claim)]
    found = [Phrase(prompt.text, "What is there?")]
    found += [phrase for claim in claims for phrase in _claim_phrases(claim)]
    found += [phrase for what in described for phrase in _property_phrases(what, described)]
    unique = {phrase.words: phrase for phrase in reversed(found)}
    return [unique[words] for words in dict.fromkeys(phrase.words for phrase in found)]


def _described(claim: Claim) -> Sequence[Description]:
    """The kinds of things that a claim says there are."""
    match claim:
        case Relates(one=one, other=other) | Outnumbers(one=one, other=other) | Outsizes(one=one, other=other):
            return [one, other]
        case Exists(what=what) | Counts(what=what):
            return [what]
    return []


def _claim_phrases(claim: Claim) -> Iterator[Phrase]:
    match claim:
        case Counts(what=what, number=number):
            yield Phrase(NUMBERS[number], f"How many {what.plural} are there?")
        case Relates(one=one, other=other, relation=words) | Outsizes(one=one, other=other, relation=words):
            yield Phrase(one.one, f"What is {words} {other.one}?")
            yield Phrase(other.one, f"What is {one.one} {words}?")
        case Lacks(what=what):
            yield Phrase(f"no {what.plural}", f"How many {what.plural} are there?")
        case Every(colour=colour, size=size, part=part):
            yield _every_phrase(claim.what, colour, size, part)


def _every_phrase(what: Description, colour: str | None, size: str | None, part: str | None) -> Phrase:
    if part:
        return Phrase(f"a {part}", f"What do the {what.plural} have?")
    return Phrase(colour or size or "", f"What {'color' if colour else 'size'} are the {what.plural}?")


def _property_phrases(what: Description, described: Sequence[Description]) -> Iterator[Phrase]:
    """The thing's colour, size and part, each asked of what is left of its description if that tells it apart."""
    for field, question in (
        ("size", "What size is the {}?"),
        ("colour", "What color is the {}?"),
        ("part", "What does the {} have?"),
    ):
        value, rest = getattr(what, field), replace(what, **{field: None})
        if value and sum(_may_be(rest, other) for other in described) == 1:
            yield Phrase(f"a {value}" if field == "part" else value, question.format(rest.noun))


def _may_be(rest: Description, other: Description) -> bool:
    """Whether the two descriptions do not contradict each other."""
    pairs = ((rest.shape, other.shape), (rest.colour, other.colour), (rest.size, other.size), (rest.part, other.part))
    return all(mine is None or yours is None or mine == yours for mine, yours in pairs)
