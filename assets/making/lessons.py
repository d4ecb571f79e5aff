"""What the question writer is taught: the requests of the metrics' own writing programs, with the right replies."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from plumbline.assets.making.claims import (
    LARGER,
    RELATIONS,
    SMALLER,
    Claim,
    Counts,
    Every,
    Exists,
    Lacks,
    Outnumbers,
    Relates,
)
from plumbline.assets.making.prompts import Prompt
from plumbline.assets.making.writer_gold import (
    ChoiceQuestion,
    Mention,
    choice_question,
    mentions,
    phrase_questions,
    planted,
    yes_no_question,
)
from plumbline.operators.errors import PlumblineError
from plumbline.operators.metrics import dsg, gecko, tifa, vq2
from plumbline.operators.metrics.dsg import DsgConfig
from plumbline.operators.metrics.gecko import GeckoConfig
from plumbline.operators.metrics.tifa import TifaConfig
from plumbline.operators.metrics.vq2 import Vq2Config
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.operators.models.calls import Generation, Request, Usage

METRICS: Mapping[str, GeckoConfig | TifaConfig | DsgConfig | Vq2Config] = {
    "gecko": GeckoConfig(),
    "tifa": TifaConfig(),
    "dsg": DsgConfig(),
    "vq2": Vq2Config(),
}


class Lesson(NamedTuple):
    """A request's text, which opens with an instruction (a key of REPLIES), and the reply that is right."""

    instruction: str
    text: str
    reply: str


class Written(NamedTuple):
    """How a metric's questions about a prompt came about."""

    questions: Sequence[WrittenQuestion]
    lessons: Sequence[Lesson]


class GoldWriter:
    """Replies about one prompt as its requirements have them, in exactly the form that the instructions show."""

    def __init__(self, prompt: Prompt, *, doubted: Sequence[ChoiceQuestion] = (), plant: bool = True) -> None:
        """`doubted` are asked beside the prompt's own questions, to be answered; `plant` lets it imagine things."""
        self.prompt = prompt
        self.doubted = doubted
        self.imagined = planted(prompt.text) if plant else None

    def written(self, metric: str) -> Written:
        """The metric's questions about the prompt, as this writer writes them."""
        program = METRICS[metric].write(self.prompt.text)
        lessons: list[Lesson] = []
        try:
            requests = next(program)
            while True:
                answered = [self._lesson(request) for request in requests]
                lessons += answered
                requests = program.send([Generation(lesson.reply, True, Usage()) for lesson in answered])
        except StopIteration as end:
            return Written(end.value, lessons)

    def _lesson(self, request: Request) -> Lesson:
        text = "\n".join(message.text for message in request.messages)
        instruction = next((opening for opening in REPLIES if text.startswith(opening)), None)
        if instruction is None:
            raise PlumblineError(f"lesson: expected a text that opens with a metric's instructions, got {text[:80]!r}")
        return Lesson(instruction, text, REPLIES[instruction](self, text))

    @cached_property
    def mentions(self) -> list[Mention]:
        return mentions(self.prompt)

    @cached_property
    def phrases(self) -> dict[str, str]:
        return phrase_questions(self.prompt)

    @cached_property
    def answers(self) -> dict[str, str]:
        """The right answer by question, as the prompt implies it."""
        asked = [*self.doubted, *(choice_question(mention.claim) for mention in self.mentions)]
        answers = {question: phrase for phrase, question in self.phrases.items()}
        answers |= {question.text: question.answer for question in asked}
        return answers | ({self.imagined.question: "no"} if self.imagined else {})

    def gecko_spans(self, text: str) -> str:
        labelled, end = "", 0
        for number, mention in enumerate(self.mentions, start=1):
            label = f"{{{number}}}[{mention.text}, {span_kind(mention)}, {groundable(mention.claim)}]"
            labelled += self.prompt.text[end : mention.start] + label
            end = mention.end
        return labelled + self.prompt.text[end:]

    def gecko_questions(self, text: str) -> str:
        blocks = [
            f"About {{{number}}}:\n{_block(choice_question(mention.claim))}"
            for number, mention in enumerate(self.mentions, start=1)
        ]
        return "".join([*blocks, _block(yes_no_question(self.imagined)) if self.imagined else ""])

    def tifa_questions(self, text: str) -> str:
        blocks = [
            f"About {mention.text} ({_element_kind(mention)}):\n{_block(choice_question(mention.claim))}"
            for mention in self.mentions
        ]
        if self.imagined:
            blocks.append(f"About {self.imagined.what.noun} (object):\n{_block(yes_no_question(self.imagined))}")
        return "".join(blocks + [_block(question) for question in self.doubted])

    def answer(self, text: str) -> str:
        return self.answers[_line_after(text, "Question:")]

    def dsg_tuples(self, text: str) -> str:
        return _numbered(tuple_of(node.claim) for node in self.prompt.requirements)

    def dsg_questions(self, text: str) -> str:
        return _numbered(node.claim.question for node in self.prompt.requirements)

    def dsg_dependencies(self, text: str) -> str:
        return _numbered(
            ",".join(parent.removeprefix("r") for parent in node.parents) or "0" for node in self.prompt.requirements
        )

    def vq2_spans(self, text: str) -> str:
        return "".join(f"{phrase}\n" for phrase in self.phrases)

    def vq2_question(self, text: str) -> str:
        return self.phrases[_line_after(text, "Phrase:")]


REPLIES: Mapping[str, Callable[[GoldWriter, str], str]] = {
    gecko.SPANS_INSTRUCTIONS: GoldWriter.gecko_spans,
    gecko.QUESTIONS_INSTRUCTIONS: GoldWriter.gecko_questions,
    tifa.QUESTIONS_INSTRUCTIONS: GoldWriter.tifa_questions,
    tifa.CHOOSE_INSTRUCTIONS: GoldWriter.answer,
    tifa.ANSWER_INSTRUCTIONS: GoldWriter.answer,
    dsg.TUPLES_INSTRUCTIONS: GoldWriter.dsg_tuples,
    dsg.QUESTIONS_INSTRUCTIONS: GoldWriter.dsg_questions,
    dsg.DEPENDENCIES_INSTRUCTIONS: GoldWriter.dsg_dependencies,
    vq2.SPANS_INSTRUCTIONS: GoldWriter.vq2_spans,
    vq2.QUESTION_INSTRUCTIONS: GoldWriter.vq2_question,
    vq2.ANSWER_INSTRUCTIONS: GoldWriter.answer,
}


def _line_after(text: str, heading: str) -> str:
    return text.rpartition(f"{heading}\n")[2].partition("\n")[0]


def _block(question: ChoiceQuestion) -> str:
    """A question as the metrics' examples write it."""
    return f"Q: {question.text}\nChoices: {', '.join(question.choices)}\nA: {question.answer}\n"


def _numbered(texts: Iterable[str]) -> str:
    return "".join(f"{index} | {text}\n" for index, text in enumerate(texts, start=1))


def span_kind(mention: Mention) -> str:
    """Gecko's type of the words."""
    match mention.claim:
        case Exists(what) if mention.text.split()[-1].startswith(what.shape or "shape"):
            return "entity"
        case Exists(what) if what.part is None and what.size is None:
            return "color"
        case Every(field="colour"):
            return "color"
        case Counts() | Outnumbers():
            return "counting"
        case Relates(relation=relation) if relation in RELATIONS:
            return "spatial"
        case Lacks():
            return "other"
    return "attribute"


def _element_kind(mention: Mention) -> str:
    """TIFA's type of the words."""
    kind = span_kind(mention)
    return "object" if kind == "entity" else kind


def groundable(claim: Claim) -> float:
    """How well the words can be seen: an absence badly, a comparison less than a thing."""
    return {"negation": 0.5, "comparison": 0.8}.get(claim.kind, 1.0)


def tuple_of(claim: Claim) -> str:
    """DSG's tuple of a claim; the words in the prompt that it is about stand last."""
    match claim:
        case Exists(what) if what.part:
            return f"entity - part ({what.whole.noun}, {what.part})"
        case Exists(what) if what.adjectives:
            return f"attribute - {'color' if what.colour else 'size'} ({what.shape}, {what.adjectives})"
        case Exists(what):
            return f"entity - whole ({what.noun})"
        case Counts(what):
            return f"attribute - count ({what.plural}, {claim.clause.split()[0]})"
        case Relates(first, second, relation):
            kind = "attribute - size" if relation in (LARGER, SMALLER) else "relation - spatial"
            return f"{kind} ({first.noun}, {second.noun}, {relation})"
        case Outnumbers(first, second, amount):
            return f"attribute - count ({first.plural}, {second.plural}, {amount})"
        case Lacks():
            return f"global ({claim.clause})"
        case Every(_, field, value):
            kind = {"part": "entity - part", "colour": "attribute - color", "size": "attribute - size"}[field]
            return f"{kind} ({claim.subject}, {value})"
    raise TypeError(f"claim: expected one of assets/making/claims.py, got {claim!r}")
