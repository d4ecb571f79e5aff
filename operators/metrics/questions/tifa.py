"""TIFA: multiple-choice questions, each answered in the VQA model's own words (Hu et al. 2023)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.bounds import Share
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Answered, Element, Scored, element, mean_scored
from plumbline.operators.metrics.metric import CallEstimate
from plumbline.operators.metrics.parsing import TextSpan
from plumbline.operators.metrics.question_blocks import Block, blocks_schema, read_blocks, read_json_blocks
from plumbline.operators.metrics.questions.question_metric import AnswerForm, WriterConfig, both_forms, likeliest
from plumbline.operators.metrics.questions.vqascore import Reduction
from plumbline.operators.metrics.reply_forms import Form, Replies, one_of, record, string, texts_under
from plumbline.operators.metrics.wording import template_digest
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.wordings.tifa import TifaRelease
from plumbline.operators.metrics.writing import ReplySampling, Writing, WrittenQuestion, ask, is_asked, read_each
from plumbline.operators.models.calls import Request

REDUCTION: Reduction = "product"
QUESTIONS_HEADING = "Questions and answers are below:\n"
_KINDS = "object human animal food activity attribute counting color material spatial location shape other"


@dataclass(frozen=True, kw_only=True, slots=True)
class TifaConfig(WriterConfig):
    """Options of TIFA: writing and filtering of questions. Its score has no options."""

    kind: Literal["tifa"] = "tifa"
    story: ClassVar[str] = (
        "lets a language model write multiple-choice questions about the prompt, and takes the share answered right"
    )
    answer_forms: ClassVar[tuple[AnswerForm, ...]] = ("reply", "likelihood")
    matcher: str = "matcher"
    """Role of the text embedder that finds the choice nearest to an answer that is not a choice (the release)."""
    filter: bool = True
    """Drop repeated questions and questions that the writer cannot answer from the prompt alone (the release)."""
    min_f1: Share = 0.6
    """The filter keeps a multiple-choice question only if its free answer has a token F1 above this, as released."""
    releases: ClassVar[tuple[type[Release], ...]] = (TifaRelease,)

    @property
    def roles(self) -> dict[str, str]:
        roles = {"writer": self.writer, "model": self.model}
        return roles if self.form == "likelihood" else {**roles, "matcher": self.matcher}

    @property
    def forms(self) -> Sequence[Mapping[Replies, Form[Any]]]:
        return QUESTIONS, CHOOSE, ANSWER

    def asking(self) -> dict[str, Any]:
        release = self.released(TifaRelease)
        templates = one_step_templates(self.form_for(QUESTIONS)) if release is None else release.digest
        asked = {"templates": templates, "sampling": self.sampling._asdict(), "filter": self.filter}
        if not self.filter:
            return asked
        templates = template_digest(*self.form_for(CHOOSE).identity, *self.form_for(ANSWER).identity)
        return {**asked, "filter_templates": templates, "min_f1": self.min_f1}

    def scoring(self) -> dict[str, Any]:
        """Return how the likeliest choice is found; nothing for replies, whose score is the share of right answers."""
        return {} if self.form == "reply" else {"reduction": REDUCTION}

    def estimate_calls(self, words: float) -> CallEstimate:
        """Return one call per prompt plus the filter's: one per question, two for open ones, which are every fourth."""
        return CallEstimate(1 + (1.25 * words if self.filter else 0), words)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Write the questions about a prompt; questions dropped by the filter are kept with `keep` false."""
        release = self.released(TifaRelease)
        if release is None:
            questions = yield from write_once(prompt, self.sampling, self.form_for(QUESTIONS))
        else:
            questions = place_questions(prompt, (yield from release.write(prompt, self.seed)))
        if not self.filter:
            return questions
        return (yield from _filter_questions(prompt, questions, self))

    def weigh(self, answered: Sequence[Answered]) -> Scored:
        """Return the share of kept questions whose chosen answer is right."""
        return mean_scored([self._element(answer) for answer in answered])

    def _element(self, answered: Answered) -> Element:
        if not is_asked(answered.question.keep):
            return element(answered, given=answered.chosen, score=None)
        given = answered.chosen if self.form == "reply" else likeliest(answered, REDUCTION)
        return element(answered, given=given, score=float(given == answered.question.answer))


_SUBJECT = {"about": string(60), "type": one_of(_KINDS.split())}
QUESTIONS = both_forms("tifa_questions", read_blocks, read_json_blocks, blocks_schema(**_SUBJECT))
CHOOSE = both_forms("tifa_choose", parsing.lines, texts_under("answer"), lambda _: record(answer=string(120)))
ANSWER = both_forms("tifa_answer", parsing.lines, texts_under("answer"), lambda _: record(answer=string(60)))


def one_step_templates(form: Form[Block]) -> str:
    """Return the digest of the texts that `write_once` sends."""
    return template_digest(*form.identity, QUESTIONS_HEADING)


def write_once(prompt: str, sampling: ReplySampling, form: Form[Block]) -> Writing[list[WrittenQuestion]]:
    """Write all questions in one reply, without a filter."""
    request = form.request(sampling, f"Description:\n{parsing.one_line(prompt)}\n{QUESTIONS_HEADING}")
    return (yield from ask(request, partial(read_questions, prompt, pieces=form.pieces)))


def read_questions(
    prompt: str, reply: str, pieces: Callable[[str], Sequence[Block]] = read_blocks
) -> list[WrittenQuestion]:
    """Return the questions of a reply in the form QUESTIONS; raise UnreadableReply if there are none."""
    return place_questions(prompt, pieces(reply))


def place_questions(prompt: str, blocks: Sequence[Block]) -> list[WrittenQuestion]:
    """Return the questions, each with the position in the prompt of the words that it is about."""
    taken: dict[str | None, TextSpan | None] = {None: None}
    questions = []
    for index, block in enumerate(blocks, start=1):
        words, kind = _subject(block.subject or "")
        if words not in taken and words is not None:
            taken[words] = parsing.find(words, prompt, taken=[place for place in taken.values() if place])
        place = taken[words]
        span = prompt[place.start : place.end] if place else words
        start, end = place or (None, None)
        questions.append(WrittenQuestion(str(index), block.text, block.choices, block.answer, kind, span, start, end))
    return questions


def _subject(written: str) -> tuple[str | None, str | None]:
    """Return the words and the type of `bow tie (object):`."""
    words, bracket, kind = written.strip(" :").rpartition("(")
    if not bracket:
        words, kind = kind, ""
    return parsing.one_line(words)[: parsing.MAX_CHOICE] or None, kind.strip(" ):").casefold() or None


def _filter_questions(
    prompt: str, questions: Sequence[WrittenQuestion], metric: TifaConfig
) -> Writing[list[WrittenQuestion]]:
    """Set `keep` to true for each text's first question if the prompt alone answers it right in every form."""
    firsts = {parsing.key(question.text): question for question in reversed(questions)}
    asked = [question for question in questions if firsts[parsing.key(question.text)] is question]
    checks = [check for question in asked for check in _checks(prompt, question, metric)]
    readers = [partial(parsing.first_answer, pieces=check.form.pieces) for check in checks]
    replies = yield from read_each([check.request for check in checks], readers)
    answers = iter([reply if isinstance(reply, str) else "" for reply in replies])
    kept = {question.question_id for question in asked if _passes(question, answers, metric.min_f1)}
    return [question._replace(keep=question.question_id in kept) for question in questions]


class _Check(NamedTuple):
    form: Form[str]
    request: Request


def _checks(prompt: str, question: WrittenQuestion, metric: TifaConfig) -> Iterator[_Check]:
    """Yield the question with its choices and, unless these are yes and no, without them."""
    about = f"Description:\n{parsing.one_line(prompt)}\nQuestion:\n{question.text}\n"
    choose, answer = metric.form_for(CHOOSE), metric.form_for(ANSWER)
    choices = f"Choices:\n{', '.join(question.choices)}\n"
    yield _Check(choose, choose.request(metric.sampling, f"{about}{choices}Answer:\n"))
    if not parsing.is_yes_no(question.choices):
        yield _Check(answer, answer.request(metric.sampling, f"{about}Answer:\n"))


def _passes(question: WrittenQuestion, replies: Iterator[str], min_f1: float) -> bool:
    """Take the replies to the question's checks; return True if all are right."""
    answer = question.answer or ""
    passed = parsing.choice_of(next(replies), question.choices) == answer
    if not parsing.is_yes_no(question.choices):
        passed &= free_f1(next(replies), answer) > min_f1
    return passed


def free_f1(answer: str, gold: str) -> float:
    """Return the F1 of the words of a free answer and of the right one, as in the TIFA release's filter.

    Articles count. Punctuation is deleted from the answer but kept in the right one, so no answer equals `t-shirt`. If
    the right answer is a number, number words in the answer are read as one (`twenty one dogs` is 21). Unlike in the
    release, case in the right answer does not matter.
    """
    given = "".join(char for char in answer.casefold() if char.isalnum() or char.isspace())
    number = parsing.number_in(given) if gold.isnumeric() else None
    words, right = given.split() if number is None else [str(number)], gold.casefold().split()
    shared = sum(word in words for word in right)
    surplus = sum(word not in right for word in words)
    return 2 * shared / (shared + surplus + len(right)) if shared else float(words == right)
