"""What the question writer is taught: the requests of the metrics' own writing programs, with the right replies."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from operators.errors import PlumblineError
from operators.metrics import dsg, gecko, tifa, vq2
from operators.metrics.dsg import DsgConfig
from operators.metrics.gecko import GeckoConfig
from operators.metrics.tifa import TifaConfig
from operators.metrics.vq2 import Vq2Config
from operators.metrics.writing import WrittenQuestion
from operators.models.calls import Generation, Request, Usage
from operators.pack.claims import Claim, Counts, Description, Every, Exists, Lacks, Outnumbers, Outsizes, Relates
from operators.pack.prompts import Prompt
from operators.pack.writer_gold import Asked, Mention, Phrase, asked, mentions, phrases, planted, yes_no

METRICS: Mapping[str, GeckoConfig | TifaConfig | DsgConfig | Vq2Config] = {
    "gecko": GeckoConfig(),
    "tifa": TifaConfig(),
    "dsg": DsgConfig(),
    "vq2": Vq2Config(),
}
INSTRUCTIONS = {
    "gecko spans": gecko.SPANS_INSTRUCTIONS,
    "gecko questions": gecko.QUESTIONS_INSTRUCTIONS,
    "tifa questions": tifa.QUESTIONS_INSTRUCTIONS,
    "tifa choose": tifa.CHOOSE_INSTRUCTIONS,
    "tifa answer": tifa.ANSWER_INSTRUCTIONS,
    "dsg tuples": dsg.TUPLES_INSTRUCTIONS,
    "dsg questions": dsg.QUESTIONS_INSTRUCTIONS,
    "dsg dependencies": dsg.DEPENDENCIES_INSTRUCTIONS,
    "vq2 spans": vq2.SPANS_INSTRUCTIONS,
    "vq2 question": vq2.QUESTION_INSTRUCTIONS,
    "vq2 answer": vq2.ANSWER_INSTRUCTIONS,
}


class Lesson(NamedTuple):
    """A request's text and the reply that is right."""

    kind: str
    """One of INSTRUCTIONS."""
    text: str
    reply: str


class Written(NamedTuple):
    """How a metric's questions about a prompt came about."""

    questions: Sequence[WrittenQuestion]
    lessons: Sequence[Lesson]


def kind_of(text: str) -> str:
    """Which of INSTRUCTIONS a request's text opens with."""
    for kind, instruction in INSTRUCTIONS.items():
        if text.startswith(instruction):
            return kind
    raise PlumblineError(f"lesson: expected a text that opens with one of the metrics' instructions, got {text[:80]!r}")


def rehearse(
    program: Generator[Sequence[Request], Sequence[Generation], list[WrittenQuestion]], reply: Callable[[str], str]
) -> Written:
    """Runs a writing program on the replies that are given to its requests' texts."""
    lessons: list[Lesson] = []
    try:
        requests = next(program)
        while True:
            new = [_lesson(request, reply) for request in requests]
            lessons += new
            requests = program.send([Generation(lesson.reply, True, Usage()) for lesson in new])
    except StopIteration as end:
        return Written(end.value, lessons)


def _lesson(request: Request, reply: Callable[[str], str]) -> Lesson:
    text = "\n".join(message.text for message in request.messages)
    return Lesson(kind_of(text), text, reply(text))


class GoldWriter:
    """Replies about one prompt as its requirements have them, in exactly the form that the instructions show."""

    def __init__(self, prompt: Prompt, *, doubted: Sequence[Asked] = (), plant: bool = True) -> None:
        """`doubted` are asked beside the prompt's own questions, to be answered; `plant` lets it imagine things."""
        self.prompt = prompt
        self.doubted = doubted
        self.imagined = planted(prompt.text) if plant else None

    def written(self, metric: str) -> Written:
        """The metric's questions about the prompt, as this writer writes them."""
        return rehearse(METRICS[metric].write(self.prompt.text), self.reply)

    def reply(self, text: str) -> str:
        """The reply to a request of any of the metrics."""
        kind = kind_of(text)
        tail = text.removeprefix(INSTRUCTIONS[kind])
        return REPLIES[kind](self, tail)

    @cached_property
    def mentions(self) -> list[Mention]:
        return mentions(self.prompt)

    @cached_property
    def phrases(self) -> list[Phrase]:
        return phrases(self.prompt)

    @cached_property
    def answers(self) -> dict[str, str]:
        """The right answer by question, as the prompt implies it."""
        known = {phrase.question: phrase.words for phrase in self.phrases}
        known |= {one.text: one.answer for one in self.doubted}
        known |= {one.text: one.answer for one in (asked(mention.claim) for mention in self.mentions)}
        return known | ({self.imagined.question: "no"} if self.imagined else {})

    def gecko_spans(self, tail: str) -> str:
        text, end = "", 0
        for number, mention in enumerate(self.mentions, start=1):
            label = f"{{{number}}}[{mention.text}, {span_kind(mention)}, {groundable(mention.claim)}]"
            text += self.prompt.text[end : mention.start] + label
            end = mention.end
        return text + self.prompt.text[end:]

    def gecko_questions(self, tail: str) -> str:
        blocks = [
            f"About {{{number}}}:\n{block(asked(mention.claim))}"
            for number, mention in enumerate(self.mentions, start=1)
        ]
        return "".join([*blocks, block(yes_no(self.imagined)) if self.imagined else ""])

    def tifa_questions(self, tail: str) -> str:
        blocks = [f"About {one.text} ({element_kind(one)}):\n{block(asked(one.claim))}" for one in self.mentions]
        if self.imagined:
            blocks.append(f"About {self.imagined.what.noun} (object):\n{block(yes_no(self.imagined))}")
        return "".join(blocks + [block(one) for one in self.doubted])

    def answer(self, tail: str) -> str:
        return self.answers[_line_after(tail, "Question:")]

    def dsg_tuples(self, tail: str) -> str:
        return self._numbered(tuple_of(node.claim) for node in self.prompt.requirements)

    def dsg_questions(self, tail: str) -> str:
        return self._numbered(node.claim.question for node in self.prompt.requirements)

    def dsg_dependencies(self, tail: str) -> str:
        numbers = {node.requirement_id: str(index) for index, node in enumerate(self.prompt.requirements, start=1)}
        return self._numbered(
            ",".join(numbers[parent] for parent in node.parents) or "0" for node in self.prompt.requirements
        )

    def _numbered(self, texts: Iterable[str]) -> str:
        return "".join(f"{index} | {text}\n" for index, text in enumerate(texts, start=1))

    def vq2_spans(self, tail: str) -> str:
        return "".join(f"{phrase.words}\n" for phrase in self.phrases)

    def vq2_question(self, tail: str) -> str:
        words = _line_after(tail, "Phrase:")
        return next(phrase.question for phrase in self.phrases if phrase.words == words)


REPLIES: Mapping[str, Callable[[GoldWriter, str], str]] = {
    "gecko spans": GoldWriter.gecko_spans,
    "gecko questions": GoldWriter.gecko_questions,
    "tifa questions": GoldWriter.tifa_questions,
    "tifa choose": GoldWriter.answer,
    "tifa answer": GoldWriter.answer,
    "dsg tuples": GoldWriter.dsg_tuples,
    "dsg questions": GoldWriter.dsg_questions,
    "dsg dependencies": GoldWriter.dsg_dependencies,
    "vq2 spans": GoldWriter.vq2_spans,
    "vq2 question": GoldWriter.vq2_question,
    "vq2 answer": GoldWriter.answer,
}


def _line_after(tail: str, heading: str) -> str:
    return tail.rpartition(f"{heading}\n")[2].partition("\n")[0]


def block(one: Asked) -> str:
    """A question as the metrics' examples write it."""
    return f"Q: {one.text}\nChoices: {', '.join(one.choices)}\nA: {one.answer}\n"


def span_kind(mention: Mention) -> str:
    """Gecko's type of the words."""
    match mention.claim:
        case Exists(what=what) if mention.text.split()[-1].startswith(what.shape or "shape"):
            return "entity"
        case Exists(what=what) if what.part is None and what.size is None:
            return "color"
        case Every(colour=str()):
            return "color"
        case Counts() | Outnumbers():
            return "counting"
        case Relates():
            return "spatial"
        case Lacks():
            return "other"
    return "attribute"


def element_kind(mention: Mention) -> str:
    """TIFA's type of the words."""
    kind = span_kind(mention)
    return "object" if kind == "entity" else kind


def groundable(claim: Claim) -> float:
    """How well the words can be seen: an absence badly, a comparison less than a thing."""
    match claim:
        case Lacks():
            return 0.5
        case Outnumbers() | Outsizes():
            return 0.8
    return 1.0


def tuple_of(claim: Claim) -> str:
    """DSG's tuple of a claim; the words in the prompt that it is about stand last."""
    match claim:
        case Exists(what=what):
            return _description_tuple(what)
        case Counts(what=what):
            return f"attribute - count ({what.plural}, {claim.amount.split()[0]})"
        case Relates(one=one, other=other):
            return f"relation - spatial ({one.noun}, {other.noun}, {claim.relation})"
        case Outsizes(one=one, other=other):
            return f"attribute - size ({one.noun}, {other.noun}, {claim.relation})"
        case Outnumbers(one=one, other=other):
            return f"attribute - count ({one.plural}, {other.plural}, {claim.clause.split()[0]})"
        case Lacks(what=what):
            return f"global (no {what.plural})"
        case Every():
            return _every_tuple(claim)
    raise TypeError(f"claim: expected one of operators/pack/claims.py, got {claim!r}")


def _description_tuple(what: Description) -> str:
    whole = Description(shape=what.shape, colour=what.colour, size=what.size)
    if what.part:
        return f"entity - part ({whole.noun}, {what.part})"
    adjectives = " ".join(word for word in (what.size, what.colour) if word)
    if not adjectives:
        return f"entity - whole ({what.noun})"
    return f"attribute - {'color' if what.colour else 'size'} ({what.shape}, {adjectives})"


def _every_tuple(claim: Every) -> str:
    what = f"every {claim.what.noun}" if claim.word == "every" else f"all {claim.what.plural}"
    if claim.part:
        return f"entity - part ({what}, {claim.part})"
    return f"attribute - {'color' if claim.colour else 'size'} ({what}, {claim.colour or claim.size})"
