"""DSG: yes/no questions from the prompt's semantic tuples, counted only where their parents hold (Cho et al. 2024)."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Answered, Scored, element, mean_scored
from plumbline.operators.metrics.metric import Expected, Prior, with_prior
from plumbline.operators.metrics.parsing import NumberedLine
from plumbline.operators.metrics.reply_forms import (
    Form,
    Replies,
    entries,
    field,
    integer,
    list_of,
    listing,
    one_of,
    record,
    spelled,
    string,
)
from plumbline.operators.metrics.wordings.dsg import DsgRelease
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.writer import WriterConfig, both_forms, likeliest, log_likelihoods
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, ask, read_each
from plumbline.operators.models.vqa_profiles import Reduction

MAX_TUPLES = 200
CATEGORIES = (
    *(f"entity - {kind}" for kind in ("whole", "part")),
    *(
        f"attribute - {kind}"
        for kind in ("color", "type", "material", "count", "texture", "text", "shape", "size", "state")
    ),
    *(f"relation - {kind}" for kind in ("spatial", "action")),
    "global",
)
Zeroing = Literal["direct", "recursive"]
"""Whether a question needs its parents alone (the DSG release), or also theirs (T2IScoreScore)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DsgConfig(WriterConfig):
    """How DSG's questions are written and how an answer of no bears on the questions that depend on it."""

    kind: Literal["dsg"] = "dsg"
    story: ClassVar[str] = (
        "lets a language model write yes/no questions that build on each other; where one fails, those that "
        "build on it fail too"
    )
    takes_letters: ClassVar[bool] = False
    reduction: Reduction = "product"
    """Rule that makes one likelihood of a choice's tokens (operators/metrics/vqascore.py); decides close answers."""
    aggregate: Literal["share", "soft_mean"] = "share"
    """`share`: of questions answered right; `soft_mean`: the mean of the likelihoods of their right answers, as the
    VQAScore paper's table 15 scores DSG's questions. A question whose parents do not hold counts 0 in both."""
    zeroing: Zeroing = "direct"
    """A yes counts where its parents' answers are yes (`direct`, the released code), or where those of all its
    ancestors are (`recursive`, T2IScoreScore)."""
    questions: Literal["tidied", "released"] = "tidied"
    """What of a reply in text is a question: up to its last question mark, spaces joined, lines without a mark left
    out; or, as the released parser has it, all that stands behind `id |`, and nothing of a reply with another line."""

    prior: Prior | None = None
    """What the model would say anyhow is taken out of its answers (operators/metrics/metric.py)."""

    def __post_init__(self) -> None:
        WriterConfig.__post_init__(self)
        if self.aggregate == "soft_mean" and (self.answers == "reply" or self.prior is not None):
            raise ConfigError(
                "dsg aggregate: soft_mean takes likelihoods as they are; expected answers=likelihood and prior=null, "
                f"got answers={self.answers} and prior={self.prior}; leave them out, or use aggregate=share"
            )
        if self.prior is not None and self.answers == "reply":
            raise ConfigError(f"dsg prior: {self.prior} divides likelihoods, and a reply has none; set one to null")
        if self.questions == "released" and self.replies != "text":
            raise ConfigError(
                f"dsg questions: released reads replies=text, got replies={self.replies}; set one of them"
            )

    @property
    def chain(self) -> tuple[str, ...]:
        return with_prior(("questions", "answers", "scores"), self.prior)

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (DsgRelease,)

    @property
    def forms(self) -> Sequence[Mapping[Replies, Form[Any]]]:
        return TUPLES, QUESTIONS, DEPENDENCIES

    def asking(self) -> dict[str, Any]:
        """All that decides the questions."""
        release = self.released(DsgRelease)
        if release is not None:
            return {"wording": release.digest, "seed": self.seed}
        asked = self.recipe(TUPLES, QUESTIONS, DEPENDENCIES)
        return asked if self.questions == "tidied" else {**asked, "questions": self.questions}

    def scoring(self) -> dict[str, Any]:
        """All that decides the score once the answers are there."""
        if self.form == "reply":
            return {"zeroing": self.zeroing}
        soft = {} if self.aggregate == "share" else {"aggregate": self.aggregate}
        return {"reduction": self.reduction, "zeroing": self.zeroing, **soft}

    def expected(self, words: float) -> Expected:
        """Three calls for a prompt; a question for each of its content words."""
        return Expected(3, words)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """The questions about a prompt: its tuples, then side by side a question and the dependencies of each."""
        release = self.released(DsgRelease)
        if release is not None:
            said = yield from release.write(prompt, self.seed)
            tuples = {number: _tuple(parsing.one_line(said.tuples.get(number, ""))) for number in said.questions}
            return _written(prompt, tuples, said.questions, said.parents)
        about = f"Description:\n{parsing.one_line(prompt)}\nTuples:\n"
        stating, asking, needing = self.words(TUPLES), self.words(QUESTIONS), self.words(DEPENDENCIES)
        request = stating.request(self.sampling, about)
        tuples = yield from ask(request, partial(read_tuples, pieces=stating.pieces))
        about += "".join(f"{number} | {stated.text}\n" for number, stated in tuples.items())
        requests = [
            asking.request(self.sampling, f"{about}Questions:\n"),
            needing.request(self.sampling, f"{about}Dependencies:\n"),
        ]
        readers: list[Callable[[str], dict[int, str]]] = [
            partial(read_released_questions, list(tuples))
            if self.questions == "released"
            else partial(read_questions, list(tuples), pieces=asking.pieces),
            partial(read_dependencies, list(tuples), pieces=needing.pieces),
        ]
        questions, parents = yield from read_each(requests, readers)
        if isinstance(questions, UnreadableReply):
            raise questions
        return _written(prompt, tuples, questions, {} if isinstance(parents, UnreadableReply) else parents)

    def weigh(self, answered: Sequence[Answered]) -> Scored:
        """Return the share of questions answered yes whose parents hold, or the mean likelihood of yes to these.

        A parent that is not among the questions counts as holding. In a cycle every question depends on all others.
        """
        by_id = {answer.question.question_id: answer for answer in answered}
        given = {name: self._read_answer(answer) for name, answer in by_id.items()}
        right = {name: given[name] == answer.question.answer for name, answer in by_id.items()}
        parents = {name: answer.question.parents for name, answer in by_id.items()}
        scores: dict[str, float] = dict(holding(right, parents, self.zeroing))
        if self.aggregate == "soft_mean":
            needed = {name: needed_questions(name, parents, self.zeroing) - {name} for name in by_id}
            asked = {name for name, others in needed.items() if all(right.get(other, True) for other in others)}
            scores = {name: self._likelihood(answer) if name in asked else 0.0 for name, answer in by_id.items()}
        return mean_scored(
            [element(answer, given=given[name], score=float(scores[name])) for name, answer in by_id.items()]
        )

    def _read_answer(self, answered: Answered) -> str:
        """Return the choice that was answered, or the reply itself."""
        if self.form == "reply":
            return answered.chosen or answered.reply or ""
        return likeliest(answered, self.reduction)

    def _likelihood(self, answered: Answered) -> float:
        """Return the likelihood of the right answer."""
        place = answered.question.choices.index(answered.question.answer)
        return math.exp(log_likelihoods(answered, self.reduction)[place])


def holding(right: Mapping[str, bool], parents: Mapping[str, Sequence[str]], zeroing: Zeroing) -> dict[str, bool]:
    """Return which questions count: they are right, and so are their parents, or all their ancestors."""
    return {
        name: own and all(right.get(other, True) for other in needed_questions(name, parents, zeroing))
        for name, own in right.items()
    }


def needed_questions(question_id: str, parents: Mapping[str, Sequence[str]], zeroing: Zeroing) -> set[str]:
    """Return the other questions that must be answered rightly for a question to count."""
    if zeroing == "direct":
        return set(parents[question_id])
    needed: set[str] = set()
    waiting = list(parents[question_id])
    while waiting:
        parent = waiting.pop()
        if parent not in needed:
            needed.add(parent)
            waiting.extend(parents.get(parent, ()))
    return needed


class SemanticTuple(NamedTuple):
    """One thing that a prompt says, such as `attribute - color (motorcycle, blue)`."""

    text: str
    kind: str | None
    """Its category."""
    words: str | None
    """The last of its words, which its question is about."""


Pieces = Callable[[str], Sequence[NumberedLine]]


def read_tuples(reply: str, pieces: Pieces = parsing.numbered) -> dict[int, SemanticTuple]:
    """Lines `1 | entity - whole (motorcycle)` by their number; raises UnreadableReply where there are none.

    Here and below the last line of a number counts, as in the DSG release.
    """
    tuples = {line.number: _tuple(line.text) for line in pieces(reply) if "(" in line.text}
    if not tuples:
        raise UnreadableReply('no line such as "1 | entity - whole (motorcycle)" was found')
    if len(tuples) > MAX_TUPLES:
        raise UnreadableReply(f"expected at most {MAX_TUPLES} tuples, found {len(tuples)}")
    return tuples


def _tuple(text: str) -> SemanticTuple:
    text = text[: parsing.MAX_QUESTION]
    kind, _, words = text.partition("(")
    last = re.sub(r"\)[^)]*$", "", words).rpartition(",")[2].strip()
    return SemanticTuple(text, kind.strip(" |:-").casefold() or None, last or None)


def read_questions(numbers: Sequence[int], reply: str, pieces: Pieces = parsing.numbered) -> dict[int, str]:
    """Lines `1 | Is there a motorcycle?` by the number of their tuple; raises UnreadableReply where there are none."""
    lines = [line for line in pieces(reply) if "?" in line.text]
    texts = {line.number: line.text.rpartition("?")[0] + "?" for line in lines}
    questions = {
        number: texts[number] for number in numbers if len(texts.get(number, "")) in range(2, parsing.MAX_QUESTION)
    }
    if not questions:
        raise UnreadableReply('no line such as "1 | Is there a motorcycle?" was found with the number of a tuple')
    return questions


def read_released_questions(numbers: Sequence[int], reply: str) -> dict[int, str]:
    """As `read_questions`, by the rules of the release's parser; raises UnreadableReply for a line of another form."""
    said = (reply.partition("output:")[2] or reply).strip()
    texts = {}
    for line in said.split("\n"):
        number, *text = (part.strip() for part in line.split("|"))
        if not number.isdecimal() or len(text) != 1 or not 0 < len(text[0]) < parsing.MAX_QUESTION:
            raise UnreadableReply(
                f'expected lines such as "1 | Is there a motorcycle?" alone, found {parsing.shown(line)}'
            )
        texts[int(number)] = text[0]
    questions = {number: texts[number] for number in numbers if number in texts}
    if not questions:
        raise UnreadableReply('no line such as "1 | Is there a motorcycle?" was found with the number of a tuple')
    return questions


def read_dependencies(numbers: Sequence[int], reply: str, pieces: Pieces = parsing.numbered) -> dict[int, str]:
    """Lines `6 | 1,4` by the number of their tuple, as written.

    Raises UnreadableReply where there are none, and where no line of a tuple can be read: one tuple without its parents
    would score higher than it should.
    """
    lines = [line for line in pieces(reply) if line.number in numbers]
    parents = {line.number: line.text for line in lines if parsing.named_parents(line.text) is not None}
    unread = next((line for line in lines if line.number not in parents), None)
    if unread is not None:
        raise UnreadableReply(f'expected numbers such as "1,3", or 0, after "{unread.number} |", found "{unread.text}"')
    if not parents:
        raise UnreadableReply('no line such as "2 | 1" or "1 | 0" was found')
    return parents


def json_tuples(reply: str) -> list[NumberedLine]:
    """The tuples of a reply in JSON as the lines of one in text, in their order."""
    stated = [(spelled(field(entry, "category")), field(entry, "words")) for entry in entries(reply, "tuples")]
    lines = (f"{kind} ({', '.join(map(spelled, said if isinstance(said, list) else [said]))})" for kind, said in stated)
    return [NumberedLine(number, line) for number, line in enumerate(lines, start=1)]


def json_questions(reply: str) -> list[NumberedLine]:
    """The questions of a reply in JSON as the lines of one in text."""
    return [line._replace(text=line.text.rstrip(" .?") + "?") for line in _json_lines(reply, "questions", "question")]


def json_dependencies(reply: str) -> list[NumberedLine]:
    """The dependencies of a reply in JSON as the lines of one in text."""
    return _json_lines(reply, "dependencies", "parents")


def _json_lines(reply: str, name: str, said: str) -> list[NumberedLine]:
    """`{"tuple": 1, said: ...}` as lines; entries of no tuple count in their order."""
    lines = []
    for index, entry in enumerate(entries(reply, name), start=1):
        value = field(entry, said)
        text = ",".join(map(spelled, value)) if isinstance(value, list) else spelled(value)
        place = entry.get("tuple") if isinstance(entry, dict) else index
        lines += [NumberedLine(place, text)] if isinstance(place, int) else []
    return lines


_PLACE = integer(MAX_TUPLES)
_TUPLE = record(category=one_of(CATEGORIES), words=list_of(string(40), 3))
_QUESTION = record(tuple=_PLACE, question=string(120))
_DEPENDENCY = record(tuple=_PLACE, parents=list_of(_PLACE, 8, least=0))
TUPLES = both_forms("dsg_tuples", parsing.numbered, json_tuples, listing("tuples", _TUPLE, 40))
QUESTIONS = both_forms("dsg_questions", parsing.numbered, json_questions, listing("questions", _QUESTION, 40))
DEPENDENCIES = both_forms(
    "dsg_dependencies", parsing.numbered, json_dependencies, listing("dependencies", _DEPENDENCY, 40)
)


def _written(
    prompt: str, tuples: Mapping[int, SemanticTuple], questions: Mapping[int, str], dependencies: Mapping[int, str]
) -> list[WrittenQuestion]:
    """The questions in the order of their tuples, each with those of its parents that have a question."""
    return [
        _question(prompt, number, text, tuples[number], _parents(number, dependencies.get(number, ""), questions))
        for number, text in questions.items()
    ]


def _parents(number: int, written: str, questions: Mapping[int, str]) -> tuple[str, ...]:
    named = dict.fromkeys(parsing.named_parents(written) or ())
    return tuple(str(parent) for parent in named if parent in questions and parent != number)


def _question(prompt: str, number: int, text: str, about: SemanticTuple, parents: tuple[str, ...]) -> WrittenQuestion:
    place = parsing.find(about.words, prompt) if about.words else None
    span = prompt[place.start : place.end] if place else about.words
    start, end = place or (None, None)
    return WrittenQuestion(str(number), text, parsing.YES_NO, "yes", about.kind, span, start, end, parents)
