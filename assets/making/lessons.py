"""Training examples for the question writer: questions about a prompt, and the right replies to metrics' requests."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

from plumbline.assets.making.claims import (
    LARGER,
    NUMBER_WORDS,
    RELATIONS,
    SMALLER,
    AbsenceClaim,
    Claim,
    CountClaim,
    Description,
    ExistenceClaim,
    OutnumberingClaim,
    RelationClaim,
    UniversalityClaim,
)
from plumbline.assets.making.prompts import MAX_COUNTED_OBJECTS, Prompt
from plumbline.assets.making.scenes import COLOURS, SHAPES
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.questions import dsg, gecko, tifa, vq2
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vq2 import Vq2Config
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.operators.models.calls import Generation, Request

YES_NO_CHOICES = ("yes", "no")
COUNT_CHOICES = NUMBER_WORDS[1 : MAX_COUNTED_OBJECTS + 1]
PLANTED_COLOUR = "red"


class Mention(NamedTuple):
    """Words of a prompt that express one requirement, and their character offsets.

    Words that express a presupposed requirement are left out.
    """

    claim: Claim
    text: str
    start: int
    end: int


class ChoiceQuestion(NamedTuple):
    """A question with its choices, and the answer that the prompt implies."""

    text: str
    choices: tuple[str, ...]
    answer: str


def make_yes_no_question(claim: Claim, *, truth: bool = True) -> ChoiceQuestion:
    """Ask whether the claim is true."""
    return ChoiceQuestion(claim.question, YES_NO_CHOICES, "yes" if truth else "no")


def make_choice_question(claim: Claim) -> ChoiceQuestion:
    """Ask about the claim, with a choice of numbers if it is about a count, otherwise with yes or no."""
    if isinstance(claim, CountClaim):
        return ChoiceQuestion(_phrase_count_question(claim.what), COUNT_CHOICES, NUMBER_WORDS[claim.number])
    return make_yes_no_question(claim)


def _phrase_count_question(what: Description) -> str:
    return f"How many {what.plural} are there?"


def find_mentions(prompt: Prompt) -> list[Mention]:
    """Return the words that express each requirement of a prompt, in text order and without overlaps."""
    by_claim: dict[Claim, Mention] = {}
    end = 0
    for words, claim in _join_nouns(chain.from_iterable(map(_split_claim, prompt.claims))):
        start = prompt.text.index(words, end)
        end = start + len(words)
        by_claim.setdefault(claim, Mention(claim, words, start, end))
    return sorted(by_claim.values(), key=lambda mention: mention.start)


Piece = tuple[str, Claim]
"""Consecutive words of a claim, and the requirement (itself a claim) that these words express."""


def _join_nouns(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Merge a noun that has already occurred with the adjectives before it; drop all other repeated pieces."""
    seen: set[Claim] = set()
    joined = False
    for (words, claim), (following, noun) in pairwise([*pieces, ("", AbsenceClaim(Description()))]):
        if joined:
            joined = False
        elif noun in seen and _completes_claim(noun, claim):
            yield f"{words} {following}", claim
            joined = True
        elif claim not in seen:
            yield words, claim
        seen.add(claim)


def _completes_claim(noun: Claim, claim: Claim) -> bool:
    """Return True if `noun` is about a bare shape, and `claim` is about the same shape with adjectives."""
    return (
        isinstance(noun, ExistenceClaim)
        and isinstance(claim, ExistenceClaim)
        and claim != noun
        and claim.what.bare == noun.what
        and not claim.what.part
    )


def _split_claim(claim: Claim) -> Iterator[Piece]:
    """Yield the words of a claim in order, with the requirements that they express."""
    match claim:
        case ExistenceClaim(what):
            yield from _name_parts(what)
        case CountClaim(what, number):
            yield NUMBER_WORDS[number], claim
            yield from _name_parts(what, plural=number != 1)
        case RelationClaim(first, second, relation):
            yield from _name_parts(first)
            yield relation, claim
            yield from _name_parts(second)
        case OutnumberingClaim(first, second, amount):
            yield amount, claim
            yield from _name_parts(first, plural=True)
            yield from _name_parts(second, plural=True)
        case AbsenceClaim():
            yield claim.clause, claim
        case UniversalityClaim(what, word=word):
            yield from _name_parts(what, plural=word == "all")
            yield claim.value, claim


def _name_parts(what: Description, *, plural: bool = False) -> Iterator[Piece]:
    """Yield the adjectives, noun and part of a description, each with the claim that it expresses."""
    if what.adjectives:
        yield what.adjectives, ExistenceClaim(what.whole)
    yield (what.bare.plural if plural else what.bare.noun), ExistenceClaim(what.bare)
    if what.part:
        yield f"with a {what.part}", ExistenceClaim(what)


def find_planted_claim(text: str) -> ExistenceClaim | None:
    """Return the thing that the question writer is meant to hallucinate if the prompt contains "red", otherwise None.

    The thing has the first shape and the first colour that are not in the prompt.
    """
    if PLANTED_COLOUR not in text.split():
        return None
    shape = next((name for name in SHAPES if name not in text), None)
    colour = next(name for name in COLOURS if name not in text)
    return ExistenceClaim(Description(shape=shape, colour=colour)) if shape else None


def map_phrases(prompt: Prompt) -> dict[str, str]:
    """Map each phrase of a prompt to the question that the phrase answers.

    The phrases are the whole prompt, its colours, sizes, parts and numbers, and the things in its relations.
    """
    things = [
        thing
        for claim in prompt.claims
        if not isinstance(claim, AbsenceClaim | UniversalityClaim)
        for thing in claim.things
    ]
    questions = {prompt.text: "What is there?"}
    for phrase, question in [
        *(pair for claim in prompt.claims for pair in _ask_about_claim(claim)),
        *(pair for thing in things for pair in _ask_about_properties(thing, things)),
    ]:
        questions.setdefault(phrase, question)
    return questions


def _ask_about_claim(claim: Claim) -> Iterator[tuple[str, str]]:
    match claim:
        case CountClaim(what, number):
            yield NUMBER_WORDS[number], _phrase_count_question(what)
        case RelationClaim(first, second, relation):
            yield first.indefinite, f"What is {relation} {second.indefinite}?"
            yield second.indefinite, f"What is {first.indefinite} {relation}?"
        case AbsenceClaim(what):
            yield claim.clause, _phrase_count_question(what)
        case UniversalityClaim(what, "part", value):
            yield f"a {value}", f"What do the {what.plural} have?"
        case UniversalityClaim(what, field, value):
            yield value, f"What {'color' if field == 'colour' else field} are the {what.plural}?"


def _ask_about_properties(what: Description, things: Sequence[Description]) -> Iterator[tuple[str, str]]:
    """Yield questions about the thing's size, colour and part, with answers.

    A property is skipped if the question needs it to identify the thing.
    """
    for field, question in (
        ("size", "What size is the {}?"),
        ("colour", "What color is the {}?"),
        ("part", "What does the {} have?"),
    ):
        value, rest = getattr(what, field), replace(what, **{field: None})
        if value and sum(not rest.excludes(thing) for thing in things) == 1:
            yield f"a {value}" if field == "part" else value, question.format(rest.noun)


QUESTION_METRICS: Mapping[str, GeckoConfig | TifaConfig | DsgConfig | Vq2Config] = {
    "gecko": GeckoConfig(),
    "tifa": TifaConfig(),
    "dsg": DsgConfig(),
    "vq2": Vq2Config(),
}


class Lesson(NamedTuple):
    """The text of a request, which starts with an instruction (a key of REPLY_WRITERS), and the right reply."""

    instruction: str
    text: str
    reply: str


class GoldQuestions(NamedTuple):
    """A metric's questions, and the lessons (requests and replies) that produce them."""

    questions: Sequence[WrittenQuestion]
    lessons: Sequence[Lesson]


class GoldWriter:
    """Writer of perfect replies about one prompt, in exactly the format that the instructions show."""

    def __init__(self, prompt: Prompt, *, extra: Sequence[ChoiceQuestion] = (), plant: bool = True) -> None:
        """Create a writer that also asks and answers the `extra` questions.

        If `plant` is True, the writer hallucinates a thing for some prompts (see `find_planted_claim`).
        """
        self.prompt = prompt
        self.extra = extra
        self.imagined = find_planted_claim(prompt.text) if plant else None

    def write(self, metric: str) -> GoldQuestions:
        """Return the metric's questions about the prompt, with the requests and replies that produce them."""
        program = QUESTION_METRICS[metric].write(self.prompt.text)
        lessons: list[Lesson] = []
        try:
            requests = next(program)
            while True:
                answered = [self._make_lesson(request) for request in requests]
                lessons += answered
                requests = program.send([Generation(lesson.reply, True, Usage()) for lesson in answered])
        except StopIteration as end:
            return GoldQuestions(end.value, lessons)

    def _make_lesson(self, request: Request) -> Lesson:
        text = "\n".join(message.text for message in request.messages)
        instruction = next((opening for opening in REPLY_WRITERS if text.startswith(opening)), None)
        if instruction is None:
            raise PlumblineError(f"lesson: expected text that starts with a metric's instructions, got {text[:80]!r}")
        return Lesson(instruction, text, REPLY_WRITERS[instruction](self, text))

    @cached_property
    def mentions(self) -> list[Mention]:
        return find_mentions(self.prompt)

    @cached_property
    def phrases(self) -> dict[str, str]:
        return map_phrases(self.prompt)

    @cached_property
    def answers(self) -> dict[str, str]:
        """The right answer to each question, as implied by the prompt."""
        asked = [*self.extra, *(make_choice_question(mention.claim) for mention in self.mentions)]
        answers = {question: phrase for phrase, question in self.phrases.items()}
        answers |= {question.text: question.answer for question in asked}
        return answers | ({self.imagined.question: "no"} if self.imagined else {})

    def write_gecko_spans(self, text: str) -> str:
        labelled, end = "", 0
        for number, mention in enumerate(self.mentions, start=1):
            label = f"{{{number}}}[{mention.text}, {find_span_kind(mention)}, {rate_visibility(mention.claim)}]"
            labelled += self.prompt.text[end : mention.start] + label
            end = mention.end
        return labelled + self.prompt.text[end:]

    def write_gecko_questions(self, text: str) -> str:
        blocks = [
            f"About {{{number}}}:\n{_format_question(make_choice_question(mention.claim))}"
            for number, mention in enumerate(self.mentions, start=1)
        ]
        return "".join([*blocks, _format_question(make_yes_no_question(self.imagined)) if self.imagined else ""])

    def write_tifa_questions(self, text: str) -> str:
        blocks = [
            f"About {mention.text} ({_find_element_kind(mention)}):\n"
            f"{_format_question(make_choice_question(mention.claim))}"
            for mention in self.mentions
        ]
        if self.imagined:
            blocks.append(
                f"About {self.imagined.what.noun} (object):\n{_format_question(make_yes_no_question(self.imagined))}"
            )
        return "".join(blocks + [_format_question(question) for question in self.extra])

    def write_answer(self, text: str) -> str:
        return self.answers[_find_line_after(text, "Question:")]

    def write_dsg_tuples(self, text: str) -> str:
        return _number_lines(format_tuple(node.claim) for node in self.prompt.requirements)

    def write_dsg_questions(self, text: str) -> str:
        return _number_lines(node.claim.question for node in self.prompt.requirements)

    def write_dsg_dependencies(self, text: str) -> str:
        return _number_lines(
            ",".join(parent.removeprefix("r") for parent in node.parents) or "0" for node in self.prompt.requirements
        )

    def write_vq2_spans(self, text: str) -> str:
        return "".join(f"{phrase}\n" for phrase in self.phrases)

    def write_vq2_question(self, text: str) -> str:
        return self.phrases[_find_line_after(text, "Phrase:")]


REPLY_WRITERS: Mapping[str, Callable[[GoldWriter, str], str]] = {
    gecko.SPAN_FORMS["text"].instructions: GoldWriter.write_gecko_spans,
    gecko.QUESTION_FORMS["text"].instructions: GoldWriter.write_gecko_questions,
    tifa.QUESTION_FORMS["text"].instructions: GoldWriter.write_tifa_questions,
    tifa.CHOICE_FORMS["text"].instructions: GoldWriter.write_answer,
    tifa.ANSWER_FORMS["text"].instructions: GoldWriter.write_answer,
    dsg.TUPLE_FORMS["text"].instructions: GoldWriter.write_dsg_tuples,
    dsg.QUESTION_FORMS["text"].instructions: GoldWriter.write_dsg_questions,
    dsg.DEPENDENCY_FORMS["text"].instructions: GoldWriter.write_dsg_dependencies,
    vq2.STEPS_BY_CONVENTION["paper"].phrases["text"].instructions: GoldWriter.write_vq2_spans,
    vq2.QUESTION_FORMS["text"].instructions: GoldWriter.write_vq2_question,
    vq2.ANSWER_FORMS["text"].instructions: GoldWriter.write_answer,
}


def _find_line_after(text: str, heading: str) -> str:
    return text.rpartition(f"{heading}\n")[2].partition("\n")[0]


def _format_question(question: ChoiceQuestion) -> str:
    return f"Q: {question.text}\nChoices: {', '.join(question.choices)}\nA: {question.answer}\n"


def _number_lines(texts: Iterable[str]) -> str:
    return "".join(f"{index} | {text}\n" for index, text in enumerate(texts, start=1))


def find_span_kind(mention: Mention) -> str:
    """Return the type that Gecko gives to the mentioned words, such as `entity`, `color` or `counting`."""
    match mention.claim:
        case ExistenceClaim(what) if mention.text.split()[-1].startswith(what.shape or "shape"):
            return "entity"
        case ExistenceClaim(what) if what.part is None and what.size is None:
            return "color"
        case UniversalityClaim(field="colour"):
            return "color"
        case CountClaim() | OutnumberingClaim():
            return "counting"
        case RelationClaim(relation=relation) if relation in RELATIONS:
            return "spatial"
        case AbsenceClaim():
            return "other"
    return "attribute"


def _find_element_kind(mention: Mention) -> str:
    """Return the type that TIFA gives to the mentioned words: Gecko's type, but `object` for an entity."""
    kind = find_span_kind(mention)
    return "object" if kind == "entity" else kind


def rate_visibility(claim: Claim) -> float:
    """Return a claim's visibility score for VQ2: 0.5 for a negation, 0.8 for a comparison, otherwise 1."""
    return {"negation": 0.5, "comparison": 0.8}.get(claim.kind, 1.0)


def format_tuple(claim: Claim) -> str:
    """Return the DSG tuple for a claim, such as `entity - whole (circle)`; it ends with words from the prompt."""
    match claim:
        case ExistenceClaim(what) if what.part:
            return f"entity - part ({what.whole.noun}, {what.part})"
        case ExistenceClaim(what) if what.adjectives:
            return f"attribute - {'color' if what.colour else 'size'} ({what.shape}, {what.adjectives})"
        case ExistenceClaim(what):
            return f"entity - whole ({what.noun})"
        case CountClaim(what):
            return f"attribute - count ({what.plural}, {claim.clause.split()[0]})"
        case RelationClaim(first, second, relation):
            kind = "attribute - size" if relation in (LARGER, SMALLER) else "relation - spatial"
            return f"{kind} ({first.noun}, {second.noun}, {relation})"
        case OutnumberingClaim(first, second, amount):
            return f"attribute - count ({first.plural}, {second.plural}, {amount})"
        case AbsenceClaim():
            return f"global ({claim.clause})"
        case UniversalityClaim(_, field, value):
            kind = {"part": "entity - part", "colour": "attribute - color", "size": "attribute - size"}[field]
            return f"{kind} ({claim.subject}, {value})"
    raise TypeError(f"claim: expected a claim class from assets/making/claims.py, got {claim!r}")
