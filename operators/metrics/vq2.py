"""VQ2: a question per phrase of the prompt, kept where a model answers it right from the prompt (METRICS.md, VQ2)."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

from operators.metrics import reading
from operators.metrics.answered import Answered, Element, Scored, element, mean_scored
from operators.metrics.reading import Place
from operators.metrics.vqascore import Reduction
from operators.metrics.writer import STOP, WriterConfig, digest, likeliest, log_likelihoods, require_share
from operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, ask, read_each

MAX_SPANS = 100
MAX_LINES = 500
"""Lines, or parts of them between commas, that are looked at for phrases."""

SPANS_INSTRUCTIONS = """\
Read the description of an image and list the phrases in it that could be the answer to a question about the image: \
things, their colors, counts, materials and states, actions and places. Write one phrase per line, exactly as it \
stands in the description.

Description:
Two red apples on a round wooden table
Phrases:
Two
red
apples
Two red apples
round
wooden
a round wooden table

"""

QUESTION_INSTRUCTIONS = """\
Read the description of an image and write a question about the image that the given phrase of the description answers.

Description:
Two red apples on a round wooden table
Phrase:
red
Question:
What color are the apples?

Description:
Two red apples on a round wooden table
Phrase:
a round wooden table
Question:
What are the apples on?

"""

ANSWER_INSTRUCTIONS = """\
Answer the question by the description alone, in as few of its words as will do. Write "unknown" where it does not say.

Description:
Two red apples on a round wooden table
Question:
What color are the apples?
Answer:
red

Description:
A man posing for a selfie
Question:
What is the man wearing?
Answer:
unknown

"""

STATEMENT = ("is '", "' true for '", "' in this image?")
"""What stands before the phrase, between it and its question, and behind (METRICS.md)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vq2Config(WriterConfig):
    """How VQ2's questions are written and checked, and how the likelihood of yes is taken."""

    kind: Literal["vq2"] = "vq2"
    min_f1: float = 0.54
    """A question is kept where its answer from the prompt has at least this token F1 with its phrase; from memory of
    VQ2A (Changpinyo et al. 2022), which is not among our papers."""
    reduction: Reduction = "product"
    """How the likelihoods of the tokens of yes become one (operators/metrics/vqascore.py)."""

    def __post_init__(self) -> None:
        WriterConfig.__post_init__(self)
        require_share("vq2", "min_f1", self.min_f1)

    def asking(self) -> dict[str, Any]:
        """All that decides the questions."""
        return {"templates": TEMPLATES, "sampling": self.sampling._asdict(), "min_f1": self.min_f1}

    def scoring(self) -> dict[str, Any]:
        """All that decides the score once the answers are there."""
        return {"reduction": self.reduction}

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """The questions about a prompt: its phrases, a question for each, and its answer from the prompt alone.

        Phrases for which no question can be read are left out; raises UnreadableReply where that is so for all.
        """
        about = f"Description:\n{reading.one_line(prompt)}\n"
        request = self.sampling.request(SPANS_INSTRUCTIONS + about + "Phrases:\n", stop=STOP)
        places = yield from ask(request, partial(read_spans, prompt))
        asked = yield from self._ask_each(prompt, about, places)
        texts = [f"{ANSWER_INSTRUCTIONS}{about}Question:\n{one.question}\nAnswer:\n" for one in asked]
        requests = [self.sampling.request(text, stop=STOP) for text in texts]
        answers = yield from read_each(requests, [reading.first_answer] * len(requests))
        return [self._written(index, *one) for index, one in enumerate(zip(asked, answers, strict=True), start=1)]

    def _ask_each(self, prompt: str, about: str, places: Sequence[Place]) -> Writing[list["_Asked"]]:
        phrases = [prompt[place.start : place.end] for place in places]
        texts = [f"{QUESTION_INSTRUCTIONS}{about}Phrase:\n{reading.one_line(one)}\nQuestion:\n" for one in phrases]
        requests = [self.sampling.request(text, stop=STOP) for text in texts]
        read = yield from read_each(requests, [read_question] * len(requests))
        found = zip(phrases, places, read, strict=True)
        asked = [_Asked(phrase, place, one) for phrase, place, one in found if isinstance(one, str)]
        if not asked:
            raise next(one for one in read if isinstance(one, UnreadableReply))
        return asked

    def _written(self, index: int, asked: "_Asked", answer: str | UnreadableReply) -> WrittenQuestion:
        before, between, behind = STATEMENT
        text = before + reading.one_line(asked.phrase) + between + asked.question + behind
        keep = isinstance(answer, str) and reading.token_f1(answer, asked.phrase) >= self.min_f1
        question = WrittenQuestion(str(index), text, reading.YES_NO, "yes", None, asked.phrase, *asked.place)
        return question._replace(keep=keep)

    def score(self, answered: Sequence[Answered]) -> Scored:
        """The mean likelihood of yes over the kept questions."""
        return mean_scored([self._element(one) for one in answered])

    def _element(self, answered: Answered) -> Element:
        if answered.question.keep is False:
            return element(answered, given=None, score=None)
        index = answered.question.choices.index("yes")
        score = math.exp(log_likelihoods(answered, self.reduction)[index])
        return element(answered, given=likeliest(answered, self.reduction), score=score)


_QUESTION_LABEL = re.compile(r"^(?:\d{1,3} ?[.)] ?)?(?:q|question) ?\d{0,3} ?: ?", re.IGNORECASE)
TEMPLATES = digest(SPANS_INSTRUCTIONS, QUESTION_INSTRUCTIONS, ANSWER_INSTRUCTIONS, *STATEMENT)


class _Asked(NamedTuple):
    """A phrase of the prompt with the question that it answers."""

    phrase: str
    place: Place
    question: str


def read_spans(prompt: str, reply: str) -> list[Place]:
    """Where the listed phrases stand in the prompt, one per line or separated by commas; each phrase once.

    What does not stand in the prompt is left out; raises UnreadableReply where nothing does.
    """
    found: dict[str, Place] = {}
    parts = (part for line in reading.lines(reply) for part in _phrases(prompt, line))
    for phrase in islice(parts, MAX_LINES):
        place = reading.find(phrase, prompt)
        if place:
            found.setdefault(reading.key(phrase), place)
    if not found:
        raise UnreadableReply("no line is a phrase of the description")
    if len(found) > MAX_SPANS:
        raise UnreadableReply(f"expected at most {MAX_SPANS} phrases, found {len(found)}")
    return list(found.values())


def _phrases(prompt: str, line: str) -> list[str]:
    """The line without a number before it; its parts between commas where it does not stand in the prompt whole."""
    if reading.find(line, prompt):
        return [line]
    line = " ".join(one.text for one in reading.numbered(line)) or line
    return [line] if reading.find(line, prompt) else reading.split_choices(line)


def read_question(reply: str) -> str:
    """The first question of a reply; raises UnreadableReply where there is none."""
    for line in reading.lines(reply):
        text = _QUESTION_LABEL.sub("", line, count=1).rpartition("?")[0].strip(" \"'")
        if text and len(text) < reading.MAX_QUESTION:
            return text + "?"
    raise UnreadableReply('no line that ends with "?" was found')
