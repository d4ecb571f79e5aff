"""Gecko: questions on every groundable word, filtered by entailment, scored by likelihood (gecko.txt, sec. 5)."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.bounds import Share
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Answered, Element, Scored, element, mean_scored
from plumbline.operators.metrics.metric import CallEstimate, Prior, with_prior
from plumbline.operators.metrics.parsing import TextSpan
from plumbline.operators.metrics.question_blocks import Block, blocks_schema, read_blocks, read_json_blocks
from plumbline.operators.metrics.questions.question_metric import (
    AnswerForm,
    WriterConfig,
    both_forms,
    likeliest,
    log_likelihoods,
)
from plumbline.operators.metrics.questions.tifa import QUESTIONS as ONE_STEP
from plumbline.operators.metrics.questions.tifa import one_step_templates, write_once
from plumbline.operators.metrics.questions.vqascore import Reduction
from plumbline.operators.metrics.reply_forms import (
    Form,
    Replies,
    entries,
    field,
    integer,
    listing,
    one_of,
    record,
    spelled,
    string,
)
from plumbline.operators.metrics.wording import template_digest
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, ask

MAX_SPANS = 200
_KINDS = "entity activity attribute counting color material spatial location shape style other"

SPANS_HEADING = "The visually groundable words and their scores are labelled below:\n"
LABELLED_HEADING = "The visually groundable words are labelled below:\n"
QUESTIONS_HEADING = "Generated questions and answers are below:\n"

_BODY = r"\[((?:[^\[\]]|\[[^\[\]]{0,100}\]){1,300})\]"
_LABEL = re.compile(r"(?:[{(\[<] ?(\d{1,3}) ?[})\]>]|\b(\d{1,3}) ?[.):]?) ?" + _BODY)
_BARE_LABEL = re.compile(r"()()" + _BODY)
_ABOUT = re.compile(r"\W{0,4}(\d{1,3})\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class GeckoConfig(WriterConfig):
    """Options of Gecko: writing, filtering and scoring of questions, with switches for the paper's ablations."""

    kind: Literal["gecko"] = "gecko"
    story: ClassVar[str] = (
        "lets a language model write a question about every visible word of the prompt, drops those that the "
        "prompt does not support, and takes the mean probability of the right answers"
    )
    answer_forms: ClassVar[tuple[AnswerForm, ...]] = ("likelihood",)
    nli: str | None = "nli"
    """Role of the entailment model that finds hallucinated questions (gecko.txt, sec. 5); null skips this filter."""
    coverage: bool = True
    """Label the prompt's words, then ask about each (gecko.txt, sec. 5); false writes all questions in one step, as
    TIFA does."""
    min_groundable: Share = 0.0
    """Lowest groundability score of a word to ask about; the paper states no threshold, and 0 asks about all."""
    normalise: bool = True
    """Score a question by eq. 2, the answer's share among the choices; false: by eq. 1, 1 if it is the likeliest
    choice."""
    likelihood: Literal["probability", "nll"] = "probability"
    """Eq. 2's s_i: each choice's probability, or, as printed, its negative log. With the negative log a likelier answer
    gets a smaller share, so a lower score is better."""
    reduction: Reduction = "product"
    """Rule that combines a choice's token likelihoods (operators/metrics/questions/vqascore.py); the paper does not
    specify it."""
    threshold: Share = 0.005
    """Lowest probability of entailment by the prompt; other questions are left out (gecko.txt, sec. 5's r)."""
    prior: Prior | None = None
    """Removal of the model's bias from its answers (operators/metrics/metric.py)."""

    def __post_init__(self) -> None:
        WriterConfig.__post_init__(self)
        if self.prior is not None and self.likelihood == "nll":
            raise ConfigError(
                f"gecko prior: {self.prior} divides likelihoods, and likelihood=nll weighs their logs; set one to null "
                "or likelihood=probability"
            )

    @property
    def chain(self) -> tuple[str, ...]:
        checked = () if self.nli is None else ("entailment",)
        return with_prior(("questions", *checked, "answers", "scores"), self.prior)

    @property
    def roles(self) -> dict[str, str]:
        roles = {"writer": self.writer, "model": self.model}
        return roles if self.nli is None else {**roles, "nli": self.nli}

    @property
    def prefers_lower(self) -> bool:
        return self.likelihood == "nll"

    @property
    def forms(self) -> Sequence[Mapping[Replies, Form[Any]]]:
        return (SPANS, QUESTIONS) if self.coverage else (ONE_STEP,)

    def asking(self) -> dict[str, Any]:
        asked = {"coverage": self.coverage, "sampling": self.sampling._asdict()}
        if not self.coverage:
            return {**asked, "templates": one_step_templates(self.form_for(ONE_STEP))}
        forms = (*self.form_for(SPANS).identity, SPANS_HEADING, *self.form_for(QUESTIONS).identity)
        templates = template_digest(*forms, LABELLED_HEADING, QUESTIONS_HEADING)
        return {**asked, "templates": templates, "min_groundable": self.min_groundable}

    def scoring(self) -> dict[str, Any]:
        scored: dict[str, Any] = {"normalise": self.normalise, "reduction": self.reduction}
        if self.normalise:
            scored["likelihood"] = self.likelihood
        return scored if self.nli is None else {**scored, "threshold": self.threshold}

    def estimate_calls(self, words: float) -> CallEstimate:
        """Return the calls per prompt, two or one, and a question for each content word."""
        return CallEstimate(2 if self.coverage else 1, words)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Write the questions about a prompt: one reply labels its words, a second has all questions (appendix C)."""
        if not self.coverage:
            return (yield from write_once(prompt, self.sampling, self.form_for(ONE_STEP)))
        about = f"Description:\n{parsing.one_line(prompt)}\n"
        form = self.form_for(SPANS)
        request = form.request(self.sampling, about + SPANS_HEADING)
        labelled = yield from ask(request, partial(read_spans, prompt, pieces=form.pieces))
        spans = [span for span in labelled if span.groundable >= self.min_groundable]
        if not spans:
            return []
        about += f"{LABELLED_HEADING}{annotate(prompt, spans)}\n{QUESTIONS_HEADING}"
        questions = self.form_for(QUESTIONS)
        request = questions.request(self.sampling, about)
        return (yield from ask(request, partial(read_questions, spans, pieces=questions.pieces)))

    def weigh(self, answered: Sequence[Answered]) -> Scored:
        """Return the mean of the questions' scores without hallucinated ones (eq. 1 or 2)."""
        return mean_scored([self._element(answer) for answer in answered])

    def _element(self, answered: Answered) -> Element:
        given = likeliest(answered, self.reduction)
        if self.nli is not None and answered.p_entail is not None and answered.p_entail < self.threshold:
            return element(answered, given=given, score=None)
        if not self.normalise:
            return element(answered, given=given, score=float(given == answered.question.answer))
        shares = _shares(log_likelihoods(answered, self.reduction), self.likelihood)
        return element(answered, given=given, score=shares[answered.question.choices.index(answered.question.answer)])


class Span(NamedTuple):
    """Words of a prompt that an image can show."""

    words: str
    """Words in the prompt's spelling, or the writer's if the prompt does not contain them."""
    kind: str | None
    groundable: float
    """Visibility of the words, in [0, 1]."""
    place: TextSpan | None
    """Position of the words in the prompt."""


class _Label(NamedTuple):
    """A label of an annotated prompt."""

    before: str
    """Text between the previous label and this label."""
    words: str
    kind: str | None
    groundable: float


def text_labels(reply: str) -> list[_Label]:
    """Return the labels of an annotated prompt, also of a reply that omits the numbers."""
    text = parsing.one_line(parsing.plain(reply))
    return list(_labels(text, _LABEL)) or list(_labels(text, _BARE_LABEL))


def json_labels(reply: str) -> list[_Label]:
    labels = []
    for entry in entries(reply, "labels"):
        words, kind = spelled(field(entry, "words")), spelled(field(entry, "type"))
        score = _share(spelled(field(entry, "score")))
        if any(map(str.isalnum, words)):
            labels.append(_Label("", words, kind.casefold() or None, 1.0 if score is None else score))
    return labels


def read_spans(prompt: str, reply: str, pieces: Callable[[str], Sequence[_Label]] = text_labels) -> list[Span]:
    """Return the labelled words of a prompt such as `{1}[red colored, color, 1.0] {2}[dog, entity, 1.0]`, in order.

    Raises UnreadableReply if there are none. Words without a score count as fully groundable.
    """
    labels = pieces(reply)
    if not labels:
        raise UnreadableReply("no label such as {1}[dog, entity, 1.0] was found")
    if len(labels) > MAX_SPANS:
        raise UnreadableReply(f"expected at most {MAX_SPANS} labels, found {len(labels)}")
    return list(_locate(labels, prompt))


def _labels(text: str, form: re.Pattern[str]) -> Iterator[_Label]:
    """Yield the labels of a text; labels without a number must have a score, or any brackets would count."""
    end, seen = 0, set()
    for match in form.finditer(text):
        label = _label(text[end : match.start()], match[3])
        number = match[1] or match[2]
        if label is None or (not number and label.groundable < 0) or (number, label.words) in seen:
            continue
        seen.add((number, label.words))
        end = match.end()
        yield label._replace(groundable=label.groundable if label.groundable >= 0 else 1.0)


def _label(before: str, body: str) -> _Label | None:
    """Return the label in `words, type, score`; score, or type and score, may be missing. A missing score is -1."""
    *pieces, last = body.split(",")
    score = _share(last)
    if score is None:
        pieces, score = [*pieces, last], -1.0
    kind = pieces.pop().strip().casefold() if len(pieces) > 1 else None
    words = ",".join(pieces).strip().strip('*"`')
    return _Label(before, words, kind or None, score) if any(map(str.isalnum, words)) else None


def _share(text: str) -> float | None:
    match = re.fullmatch(r"(?:score ?[:=])? ?(-?\d{1,3}(?:\.\d{0,6})?|\.\d{1,6})", text.strip())
    return min(max(float(match[1]), 0.0), 1.0) if match else None


def _locate(labels: Sequence[_Label], prompt: str) -> Iterator[Span]:
    """Yield the labels as spans; each is searched after the previous one and the words between, if these are found."""
    cursor = 0
    taken: list[TextSpan] = []
    for label in labels:
        cursor = parsing.skip(label.before, prompt, cursor) if cursor else _opening(label.before, prompt)
        place = parsing.find(label.words, prompt, after=cursor, taken=taken)
        if place:
            taken.append(place)
            cursor = max(cursor, place.end)
        words = prompt[place.start : place.end] if place else label.words
        yield Span(words, label.kind, label.groundable, place)


def _opening(before: str, prompt: str) -> int:
    """Return where to search the first label: after the longest end of the text before it that opens the prompt."""
    words = before.split()[-40:]
    ends = (parsing.skip(" ".join(words[index:]), prompt, 0) for index in range(len(words)))
    return next((end for end in ends if end), 0)


def annotate(prompt: str, spans: Sequence[Span]) -> str:
    """Return the prompt on one line with labelled spans, `{1}[man, human]`; spans without a position are appended."""
    text, end, rest = "", 0, []
    order = sorted(range(len(spans)), key=lambda index: spans[index].place or (len(prompt), len(prompt)))
    for index in order:
        span = spans[index]
        label = f"{{{index + 1}}}[{span.words}, {span.kind or 'other'}]"
        if span.place is None or span.place.start < end:
            rest.append(label)
            continue
        text += prompt[end : span.place.start] + label
        end = span.place.end
    return parsing.one_line(" ".join([text + prompt[end:], *rest]))


def read_questions(
    spans: Sequence[Span], reply: str, pieces: Callable[[str], Sequence[Block]] = read_blocks
) -> list[WrittenQuestion]:
    """Return the questions of a reply in the form QUESTIONS; raise UnreadableReply if there are none.

    Questions without a known label have no span.
    """
    blocks = pieces(reply)
    questions = []
    for index, block in enumerate(blocks, start=1):
        question = WrittenQuestion(str(index), block.text, block.choices, block.answer)
        span = _span(block, spans)
        if span is not None:
            start, end = span.place or (None, None)
            question = question._replace(kind=span.kind, span=span.words, start=start, end=end)
        questions.append(question)
    return questions


_SCORE = one_of([str(tenths / 10) for tenths in range(11)])  # engines spell a number 1.0 differently
_LABEL_SCHEMA = record(words=string(60), type=one_of(_KINDS.split()), score=_SCORE)
SPANS = both_forms("gecko_spans", text_labels, json_labels, listing("labels", _LABEL_SCHEMA, 40))
QUESTIONS = both_forms("gecko_questions", read_blocks, read_json_blocks, blocks_schema(about=integer(MAX_SPANS)))


def _span(block: Block, spans: Sequence[Span]) -> Span | None:
    """Return the span that a block is about, by its number or else by its words."""
    subject = block.subject or ""
    number = _ABOUT.match(subject)
    if number:
        return spans[int(number[1]) - 1] if 1 <= int(number[1]) <= len(spans) else None
    words = parsing.key(subject.partition("(")[0])
    return next((span for span in spans if parsing.key(span.words) == words), None)


def _shares(logs: Sequence[float], likelihood: Literal["probability", "nll"]) -> list[float]:
    """Return s_i / sum_i s_i (eq. 2) for choices' probabilities or negative logs s_i; equal shares if all are 0."""
    if likelihood == "probability":
        top = max(logs)
        weights = [1.0 if log == top else math.exp(log - top) for log in logs]
    else:
        weights = [-log for log in logs]
    total = math.fsum(weights)
    return [weight / total if total else 1 / len(weights) for weight in weights]
