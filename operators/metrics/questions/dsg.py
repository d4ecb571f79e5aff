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
from plumbline.operators.metrics.metric import CallEstimate, Prior, with_prior
from plumbline.operators.metrics.parsing import NumberedLine
from plumbline.operators.metrics.questions.question_metric import WriterConfig, both_forms, likeliest, log_likelihoods
from plumbline.operators.metrics.questions.vqascore import Reduction
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
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, ask, read_each

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
"""Questions that must be right for a question to count: its parents (`direct`, the DSG release) or all its ancestors
(`recursive`, T2IScoreScore)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DsgConfig(WriterConfig):
    """Options of DSG: writing of questions, and the effect of a no on the questions that depend on it."""

    kind: Literal["dsg"] = "dsg"
    story: ClassVar[str] = (
        "lets a language model write yes/no questions that build on each other; where one fails, those that "
        "build on it fail too"
    )
    takes_letters: ClassVar[bool] = False
    reduction: Reduction = "product"
    """Rule that combines a choice's token likelihoods (operators/metrics/questions/vqascore.py). Matters for close
    answers."""
    aggregate: Literal["share", "soft_mean"] = "share"
    """`share`: share of questions answered correctly; `soft_mean`: mean likelihood of their right answers, as the
    VQAScore paper's table 15 scores DSG's questions. A question with a failed parent counts 0 in both."""
    zeroing: Zeroing = "direct"
    """A yes counts if all parents are answered yes (`direct`, the released code), or all ancestors (`recursive`,
    T2IScoreScore)."""
    questions: Literal["tidied", "released"] = "tidied"
    """Parsing of text replies: `tidied` takes a line up to its last question mark, joins spaces and skips lines without
    a mark; `released` takes everything after `id |`, as the released parser, and rejects replies with any other line.
    """

    prior: Prior | None = None
    """Removal of the model's bias from its answers (operators/metrics/metric.py)."""
    releases: ClassVar[tuple[type[Release], ...]] = (DsgRelease,)

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
    def forms(self) -> Sequence[Mapping[Replies, Form[Any]]]:
        return TUPLES, QUESTIONS, DEPENDENCIES

    def asking(self) -> dict[str, Any]:
        release = self.released(DsgRelease)
        if release is not None:
            return {"wording": release.digest, "seed": self.seed}
        asked = self.recipe(TUPLES, QUESTIONS, DEPENDENCIES)
        return asked if self.questions == "tidied" else {**asked, "questions": self.questions}

    def scoring(self) -> dict[str, Any]:
        if self.form == "reply":
            return {"zeroing": self.zeroing}
        soft = {} if self.aggregate == "share" else {"aggregate": self.aggregate}
        return {"reduction": self.reduction, "zeroing": self.zeroing, **soft}

    def estimate_calls(self, words: float) -> CallEstimate:
        """Return three calls per prompt, and a question for each content word."""
        return CallEstimate(3, words)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Write the questions about a prompt: first its tuples, then both their questions and their dependencies."""
        release = self.released(DsgRelease)
        if release is not None:
            reply = yield from release.write(prompt, self.seed)
            tuples = {
                number: _parse_tuple(parsing.one_line(reply.tuples.get(number, ""))) for number in reply.questions
            }
            return _assemble_questions(prompt, tuples, reply.questions, reply.parents)
        about = f"Description:\n{parsing.one_line(prompt)}\nTuples:\n"
        tuple_form, question_form, dependency_form = (
            self.form_for(TUPLES),
            self.form_for(QUESTIONS),
            self.form_for(DEPENDENCIES),
        )
        request = tuple_form.request(self.sampling, about)
        tuples = yield from ask(request, partial(read_tuples, pieces=tuple_form.pieces))
        about += "".join(f"{number} | {stated.text}\n" for number, stated in tuples.items())
        requests = [
            question_form.request(self.sampling, f"{about}Questions:\n"),
            dependency_form.request(self.sampling, f"{about}Dependencies:\n"),
        ]
        readers: list[Callable[[str], dict[int, str]]] = [
            partial(read_released_questions, list(tuples))
            if self.questions == "released"
            else partial(read_questions, list(tuples), pieces=question_form.pieces),
            partial(read_dependencies, list(tuples), pieces=dependency_form.pieces),
        ]
        questions, parents = yield from read_each(requests, readers)
        if isinstance(questions, UnreadableReply):
            raise questions
        return _assemble_questions(prompt, tuples, questions, {} if isinstance(parents, UnreadableReply) else parents)

    def weigh(self, answered: Sequence[Answered]) -> Scored:
        """Return the share of questions answered yes whose parents hold, or the mean likelihood of yes to these.

        A parent that is not among the questions counts as holding. In a cycle every question depends on all others.
        """
        by_id = {answer.question.question_id: answer for answer in answered}
        given = {name: self._answer_of(answer) for name, answer in by_id.items()}
        right = {name: given[name] == answer.question.answer for name, answer in by_id.items()}
        parents = {name: answer.question.parents for name, answer in by_id.items()}
        scores: dict[str, float] = dict(holding(right, parents, self.zeroing))
        if self.aggregate == "soft_mean":
            needed = {name: needed_questions(name, parents, self.zeroing) - {name} for name in by_id}
            asked = {name for name, others in needed.items() if all(right.get(other, True) for other in others)}
            scores = dict.fromkeys(by_id, 0.0)
            for name in asked:
                question = by_id[name].question
                log = log_likelihoods(by_id[name], self.reduction)[question.choices.index(question.answer or "")]
                scores[name] = math.exp(log)
        return mean_scored(
            [element(answer, given=given[name], score=float(scores[name])) for name, answer in by_id.items()]
        )

    def _answer_of(self, answered: Answered) -> str:
        """Return the choice that was answered, or the reply unchanged."""
        if self.form == "reply":
            return answered.chosen or answered.reply or ""
        return likeliest(answered, self.reduction)


def holding(right: Mapping[str, bool], parents: Mapping[str, Sequence[str]], zeroing: Zeroing) -> dict[str, bool]:
    """Return which questions count: right ones whose parents, or all ancestors, are right too."""
    return {
        name: own and all(right.get(other, True) for other in needed_questions(name, parents, zeroing))
        for name, own in right.items()
    }


def needed_questions(question_id: str, parents: Mapping[str, Sequence[str]], zeroing: Zeroing) -> set[str]:
    """Return the other questions that must be right for a question to count."""
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
    """One statement of a prompt, such as `attribute - color (motorcycle, blue)`."""

    text: str
    kind: str | None
    """Its category."""
    words: str | None
    """The word that the question asks about: the last one in the tuple."""


Pieces = Callable[[str], Sequence[NumberedLine]]


def read_tuples(reply: str, pieces: Pieces = parsing.numbered) -> dict[int, SemanticTuple]:
    """Return the lines `1 | entity - whole (motorcycle)` by number; raise UnreadableReply if there are none.

    Here and below, the last line with a number counts, as in the DSG release.
    """
    tuples = {line.number: _parse_tuple(line.text) for line in pieces(reply) if "(" in line.text}
    if not tuples:
        raise UnreadableReply('no line such as "1 | entity - whole (motorcycle)" was found')
    if len(tuples) > MAX_TUPLES:
        raise UnreadableReply(f"expected at most {MAX_TUPLES} tuples, found {len(tuples)}")
    return tuples


def _parse_tuple(text: str) -> SemanticTuple:
    text = text[: parsing.MAX_QUESTION]
    kind, _, words = text.partition("(")
    last = re.sub(r"\)[^)]*$", "", words).rpartition(",")[2].strip()
    return SemanticTuple(text, kind.strip(" |:-").casefold() or None, last or None)


def read_questions(numbers: Sequence[int], reply: str, pieces: Pieces = parsing.numbered) -> dict[int, str]:
    """Return the lines `1 | Is there a motorcycle?` by tuple number; raise UnreadableReply if there are none."""
    lines = [line for line in pieces(reply) if "?" in line.text]
    texts = {line.number: line.text.rpartition("?")[0] + "?" for line in lines}
    questions = {
        number: texts[number] for number in numbers if len(texts.get(number, "")) in range(2, parsing.MAX_QUESTION)
    }
    if not questions:
        raise UnreadableReply('no line such as "1 | Is there a motorcycle?" was found with the number of a tuple')
    return questions


def read_released_questions(numbers: Sequence[int], reply: str) -> dict[int, str]:
    """Read questions by the rules of the release's parser; raise UnreadableReply if any line has another form."""
    said = (reply.partition("output:")[2] or reply).strip()
    texts = {}
    for line in said.split("\n"):
        number, *text = (part.strip() for part in line.split("|"))
        if not number.isdecimal() or len(text) != 1 or not 0 < len(text[0]) < parsing.MAX_QUESTION:
            raise UnreadableReply(
                f'expected lines such as "1 | Is there a motorcycle?" alone, found {parsing.shorten(line)}'
            )
        texts[int(number)] = text[0]
    questions = {number: texts[number] for number in numbers if number in texts}
    if not questions:
        raise UnreadableReply('no line such as "1 | Is there a motorcycle?" was found with the number of a tuple')
    return questions


def read_dependencies(numbers: Sequence[int], reply: str, pieces: Pieces = parsing.numbered) -> dict[int, str]:
    """Return the lines `6 | 1,4` by their tuple's number, as written.

    Raises UnreadableReply if there are none, or if a tuple's line cannot be read: without its parents, a tuple would
    score higher than it should.
    """
    lines = [line for line in pieces(reply) if line.number in numbers]
    parents = {line.number: line.text for line in lines if parsing.read_parents(line.text) is not None}
    unread = next((line for line in lines if line.number not in parents), None)
    if unread is not None:
        raise UnreadableReply(f'expected numbers such as "1,3", or 0, after "{unread.number} |", found "{unread.text}"')
    if not parents:
        raise UnreadableReply('no line such as "2 | 1" or "1 | 0" was found')
    return parents


def json_tuples(reply: str) -> list[NumberedLine]:
    """Return the tuples of a JSON reply as numbered lines of a text reply."""
    stated = [(spelled(field(entry, "category")), field(entry, "words")) for entry in entries(reply, "tuples")]
    lines = (f"{kind} ({', '.join(map(spelled, said if isinstance(said, list) else [said]))})" for kind, said in stated)
    return [NumberedLine(number, line) for number, line in enumerate(lines, start=1)]


def json_questions(reply: str) -> list[NumberedLine]:
    """Return the questions of a JSON reply as lines of a text reply."""
    return [line._replace(text=line.text.rstrip(" .?") + "?") for line in _json_lines(reply, "questions", "question")]


def json_dependencies(reply: str) -> list[NumberedLine]:
    """Return the dependencies of a JSON reply as lines of a text reply."""
    return _json_lines(reply, "dependencies", "parents")


def _json_lines(reply: str, name: str, member: str) -> list[NumberedLine]:
    """Return `{"tuple": 1, member: ...}` as numbered lines; entries without a tuple are numbered in order."""
    lines = []
    for index, entry in enumerate(entries(reply, name), start=1):
        value = field(entry, member)
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


def _assemble_questions(
    prompt: str, tuples: Mapping[int, SemanticTuple], questions: Mapping[int, str], dependencies: Mapping[int, str]
) -> list[WrittenQuestion]:
    """Return the questions in the order of their tuples, each with those of its parents that have a question."""
    written = []
    for number, text in questions.items():
        named = dict.fromkeys(parsing.read_parents(dependencies.get(number, "")) or ())
        parents = tuple(str(parent) for parent in named if parent in questions and parent != number)
        kind, words = tuples[number].kind, tuples[number].words
        place = parsing.find(words, prompt) if words else None
        span = prompt[place.start : place.end] if place else words
        start, end = place or (None, None)
        written.append(WrittenQuestion(str(number), text, parsing.YES_NO, "yes", kind, span, start, end, parents))
    return written
