"""Gecko: questions about every groundable word, filtered by entailment and scored by likelihood (gecko.txt, sec. 5)."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.bounds import Share
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import (
    Answered,
    CallEstimate,
    Prior,
    Scored,
    average_elements,
    insert_prior,
    make_element,
)
from plumbline.operators.metrics.parsing import TextSpan
from plumbline.operators.metrics.questions.question_metric import (
    AnswerForm,
    WriterConfig,
    compute_log_likelihoods,
    find_likeliest_choice,
    make_forms,
)
from plumbline.operators.metrics.questions.tifa import QUESTION_FORMS as ONE_STEP
from plumbline.operators.metrics.questions.tifa import digest_one_step_prompt, write_questions_in_one_reply
from plumbline.operators.metrics.questions.vqascore import Reduction
from plumbline.operators.metrics.reply_forms import (
    Block,
    Form,
    ReplyFormat,
    make_blocks_schema,
    make_choice_schema,
    make_integer_schema,
    make_list_schema,
    make_object_schema,
    make_string_schema,
    read_blocks,
    read_entries,
    read_json_blocks,
    read_json_text,
    read_member,
)
from plumbline.operators.metrics.wording import digest_templates
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion

MAX_SPANS = 200
_KIND_WORDS = "entity activity attribute counting color material spatial location shape style other"

SPANS_HEADING = "The visually groundable words and their scores are labelled below:\n"
LABELLED_HEADING = "The visually groundable words are labelled below:\n"
QUESTIONS_HEADING = "Generated questions and answers are below:\n"

_BODY_REGEX = r"\[((?:[^\[\]]|\[[^\[\]]{0,100}\]){1,300})\]"
_LABEL_PATTERN = re.compile(r"(?:[{(\[<] ?(\d{1,3}) ?[})\]>]|\b(\d{1,3}) ?[.):]?) ?" + _BODY_REGEX)
_BARE_LABEL_PATTERN = re.compile(r"()()" + _BODY_REGEX)
_ABOUT_PATTERN = re.compile(r"\W{0,4}(\d{1,3})\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class GeckoConfig(WriterConfig):
    kind: Literal["gecko"] = "gecko"
    story: ClassVar[str] = (
        "lets a language model write a question about every visible word of the prompt, drops those that the "
        "prompt does not support, and takes the mean probability of the right answers"
    )
    answer_forms: ClassVar[tuple[AnswerForm, ...]] = ("likelihood",)
    nli: str | None = "nli"
    """Role of the entailment model that finds hallucinated questions (gecko.txt, sec. 5); null skips this filter."""
    coverage: bool = True
    """If true, label the prompt's words, then ask about each of them (gecko.txt, sec. 5). If false, write all questions
    in one step, as TIFA does.
    """
    min_groundable: Share = 0.0
    """Minimum groundability score of the words to ask about. The paper states no threshold; 0 asks about all words."""
    normalise: bool = True
    """If true, score a question by eq. 2: the likelihood of the answer relative to the sum over all choices. If false,
    by eq. 1: 1 if the answer is the likeliest choice, otherwise 0.
    """
    likelihood: Literal["probability", "nll"] = "probability"
    """The s_i in eq. 2: each choice's probability or, as printed in the paper, its negative log. With the negative log,
    a likelier answer gets a lower score, so lower is better.
    """
    reduction: Reduction = "product"
    """Method for combining the token likelihoods of a choice (operators/metrics/questions/vqascore.py); the paper does
    not specify it.
    """
    threshold: Share = 0.005
    """Minimum probability that the prompt entails a question; other questions are left out (r in gecko.txt, sec. 5)."""
    prior: Prior | None = None
    """Method that removes the model's bias from its answers (operators/metrics/metric.py)."""

    def __post_init__(self) -> None:
        WriterConfig.__post_init__(self)
        if self.prior is not None and self.likelihood == "nll":
            raise ConfigError(
                f"gecko prior: {self.prior} divides likelihoods, but likelihood=nll uses their logs; set prior=null "
                "or likelihood=probability"
            )

    @property
    def chain(self) -> tuple[str, ...]:
        checked = () if self.nli is None else ("entailment",)
        return insert_prior(("questions", *checked, "answers", "scores"), self.prior)

    @property
    def roles(self) -> dict[str, str]:
        roles = {"writer": self.writer, "model": self.model}
        return roles if self.nli is None else {**roles, "nli": self.nli}

    @property
    def prefers_lower(self) -> bool:
        return self.likelihood == "nll"

    @property
    def reply_forms(self) -> Sequence[Mapping[ReplyFormat, Form[Any]]]:
        return (SPAN_FORMS, QUESTION_FORMS) if self.coverage else (ONE_STEP,)

    def list_question_options(self) -> dict[str, Any]:
        asked = {"coverage": self.coverage, "sampling": self.sampling._asdict()}
        if not self.coverage:
            return {**asked, "templates": digest_one_step_prompt(self)}
        forms = (*self.choose_form(SPAN_FORMS).identity, SPANS_HEADING, *self.choose_form(QUESTION_FORMS).identity)
        templates = digest_templates(*forms, LABELLED_HEADING, QUESTIONS_HEADING)
        return {**asked, "templates": templates, "min_groundable": self.min_groundable}

    def list_score_options(self) -> dict[str, Any]:
        scored: dict[str, Any] = {"normalise": self.normalise, "reduction": self.reduction}
        if self.normalise:
            scored["likelihood"] = self.likelihood
        return scored if self.nli is None else {**scored, "threshold": self.threshold}

    def estimate_calls(self, words: float) -> CallEstimate:
        return CallEstimate(2 if self.coverage else 1, words)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Ask for labels of a prompt's words, then for questions about the labelled words; return the questions.

        With `coverage=false`, all questions are requested in one step (gecko.txt, appendix C).
        """
        if not self.coverage:
            return (yield from write_questions_in_one_reply(self, prompt))
        about = f"Description:\n{parsing.collapse_spaces(prompt)}\n"
        labelled = yield from self.ask_writer(SPAN_FORMS, about + SPANS_HEADING, partial(read_spans, prompt))
        spans = [span for span in labelled if span.groundable >= self.min_groundable]
        if not spans:
            return []
        about += f"{LABELLED_HEADING}{annotate_prompt(prompt, spans)}\n{QUESTIONS_HEADING}"
        return (yield from self.ask_writer(QUESTION_FORMS, about, partial(read_questions, spans)))

    def combine_answers(self, answered: Sequence[Answered]) -> Scored:
        """Return the mean score of the questions that are not hallucinated (eq. 1 or 2)."""
        elements = []
        for answer in answered:
            given, question = find_likeliest_choice(answer, self.reduction), answer.question
            if self.nli is not None and answer.p_entail is not None and answer.p_entail < self.threshold:
                score = None
            elif self.normalise:
                shares = _normalise_likelihoods(compute_log_likelihoods(answer, self.reduction), self.likelihood)
                score = shares[question.choices.index(question.answer or "")]
            else:
                score = float(given == question.answer)
            elements.append(make_element(answer, given=given, score=score))
        return average_elements(elements)


class Span(NamedTuple):
    """Words in a prompt that describe something an image can show."""

    words: str
    """The words as spelled in the prompt, or as spelled by the writer if the prompt does not contain them."""
    kind: str | None
    groundable: float
    """Groundability score in [0, 1]: how visible the words are in an image."""
    position: TextSpan | None
    """Position of the words in the prompt; None if they were not found."""


class _Label(NamedTuple):
    before: str
    """Text between the previous label and this label."""
    words: str
    kind: str | None
    groundable: float


def read_text_labels(reply: str) -> list[_Label]:
    """Return the labels of an annotated prompt, in order; replies that omit the numbers are accepted too."""
    text = parsing.collapse_spaces(parsing.strip_markup(reply))
    return _find_labels(text, _LABEL_PATTERN) or _find_labels(text, _BARE_LABEL_PATTERN)


def read_json_labels(reply: str) -> list[_Label]:
    labels = []
    for entry in read_entries(reply, "labels"):
        words, kind = read_json_text(read_member(entry, "words")), read_json_text(read_member(entry, "type"))
        score = _read_share(read_json_text(read_member(entry, "score")))
        if any(map(str.isalnum, words)):
            labels.append(_Label("", words, kind.casefold() or None, 1.0 if score is None else score))
    return labels


def read_spans(prompt: str, reply: str, pieces: Callable[[str], Sequence[_Label]] = read_text_labels) -> list[Span]:
    """Return the labelled words in a reply such as `{1}[red colored, color, 1.0] {2}[dog, entity, 1.0]`, in order.

    Raise UnreadableReply if there are none. Words without a score count as fully groundable.
    """
    labels = pieces(reply)
    if not labels:
        raise UnreadableReply("no label such as {1}[dog, entity, 1.0] was found")
    if len(labels) > MAX_SPANS:
        raise UnreadableReply(f"expected at most {MAX_SPANS} labels, found {len(labels)}")
    cursor, spans = 0, []
    taken: list[TextSpan] = []
    for label in labels:  # search after the previous label and the words between, if these are found
        cursor = parsing.skip_text(label.before, prompt, cursor) if cursor else _find_start(label.before, prompt)
        position = parsing.find_words(label.words, prompt, after=cursor, taken=taken)
        if position:
            taken.append(position)
            cursor = max(cursor, position.end)
        words = prompt[position.start : position.end] if position else label.words
        spans.append(Span(words, label.kind, label.groundable, position))
    return spans


def _find_labels(text: str, form: re.Pattern[str]) -> list[_Label]:
    """Return the labels `[words, type, score]` in a text; the score, or both type and score, may be missing.

    Labels without a number must have a score; otherwise any text in brackets would match.
    """
    labels, end, seen = [], 0, set()
    for match in form.finditer(text):
        *members, last = match[3].split(",")
        score = _read_share(last)
        if score is None:
            members.append(last)
        kind = members.pop().strip().casefold() if len(members) > 1 else None
        words = ",".join(members).strip().strip('*"`')
        number = match[1] or match[2]
        is_label = any(map(str.isalnum, words)) and (number or score is not None)
        if is_label and (number, words) not in seen:
            seen.add((number, words))
            before = text[end : match.start()]
            labels.append(_Label(before, words, kind or None, 1.0 if score is None else score))
            end = match.end()
    return labels


def _read_share(text: str) -> float | None:
    match = re.fullmatch(r"(?:score ?[:=])? ?(-?\d{1,3}(?:\.\d{0,6})?|\.\d{1,6})", text.strip())
    return min(max(float(match[1]), 0.0), 1.0) if match else None


def _find_start(before: str, prompt: str) -> int:
    """Return the position in the prompt at which to search for the first label.

    The search starts after the longest suffix of the text before the label that is also a prefix of the prompt.
    """
    words = before.split()[-40:]
    ends = (parsing.skip_text(" ".join(words[index:]), prompt, 0) for index in range(len(words)))
    return next((end for end in ends if end), 0)


def annotate_prompt(prompt: str, spans: Sequence[Span]) -> str:
    """Return the prompt on one line with spans labelled as in `{1}[man, human]`; append spans without a position."""
    text, end, rest = "", 0, []
    order = sorted(range(len(spans)), key=lambda index: spans[index].position or (len(prompt), len(prompt)))
    for index in order:
        span = spans[index]
        label = f"{{{index + 1}}}[{span.words}, {span.kind or 'other'}]"
        if span.position is None or span.position.start < end:
            rest.append(label)
            continue
        text += prompt[end : span.position.start] + label
        end = span.position.end
    return parsing.collapse_spaces(" ".join([text + prompt[end:], *rest]))


def read_questions(
    spans: Sequence[Span], reply: str, pieces: Callable[[str], Sequence[Block]] = read_blocks
) -> list[WrittenQuestion]:
    """Return the questions in a reply (see QUESTION_FORMS), each with the span of the prompt that it is about.

    A question about an unknown label gets no span.
    """
    questions = []
    for index, block in enumerate(pieces(reply), start=1):
        question = WrittenQuestion(str(index), block.text, block.choices, block.answer)
        span = _find_subject(block.subject or "", spans)
        if span is not None:
            start, end = span.position or (None, None)
            question = question._replace(kind=span.kind, span=span.words, start=start, end=end)
        questions.append(question)
    return questions


_SCORE_SCHEMA = make_choice_schema([str(tenths / 10) for tenths in range(11)])  # engines spell a number 1.0 differently
_LABEL_SCHEMA = make_object_schema(
    words=make_string_schema(60), type=make_choice_schema(_KIND_WORDS.split()), score=_SCORE_SCHEMA
)
SPAN_FORMS = make_forms(
    "gecko_spans", read_text_labels, read_json_labels, make_list_schema("labels", _LABEL_SCHEMA, 40)
)
QUESTION_FORMS = make_forms(
    "gecko_questions", read_blocks, read_json_blocks, make_blocks_schema(about=make_integer_schema(MAX_SPANS))
)


def _find_subject(subject: str, spans: Sequence[Span]) -> Span | None:
    """Return the span that a question is about, by the number in `subject` or, without a number, by its words.

    Return None if there is no such span.
    """
    number = _ABOUT_PATTERN.match(subject)
    if number:
        return spans[int(number[1]) - 1] if 1 <= int(number[1]) <= len(spans) else None
    words = parsing.normalise(subject.partition("(")[0])
    return next((span for span in spans if parsing.normalise(span.words) == words), None)


def _normalise_likelihoods(logs: Sequence[float], likelihood: Literal["probability", "nll"]) -> list[float]:
    """Return s_i / sum_i s_i (eq. 2), where s_i is the probability, or the negative log-likelihood, of choice i.

    If all s_i are 0, all results are equal.
    """
    if likelihood == "probability":
        top = max(logs)
        weights = [1.0 if log == top else math.exp(log - top) for log in logs]
    else:
        weights = [-log for log in logs]
    total = math.fsum(weights)
    return [weight / total if total else 1 / len(weights) for weight in weights]
