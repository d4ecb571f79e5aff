"""VQ2: questions about phrases in the prompt, kept if a model can answer them from the prompt (Yarom et al. 2023)."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.bounds import Share
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import Answered, CallEstimate, Scored, average_elements, make_element
from plumbline.operators.metrics.parsing import TextSpan
from plumbline.operators.metrics.questions.question_metric import (
    AnswerForm,
    WriterConfig,
    compute_log_likelihoods,
    find_likeliest_choice,
    make_line_forms,
)
from plumbline.operators.metrics.questions.vqascore import Reduction
from plumbline.operators.metrics.reply_forms import (
    Form,
    ReplyFormat,
    make_list_schema,
    make_object_schema,
    make_string_schema,
)
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, ask, ask_each, is_asked

_QUESTION_LABEL_PATTERN = re.compile(r"^(?:\d{1,3} ?[.)] ?)?(?:q|question) ?\d{0,3} ?: ?", re.IGNORECASE)
MAX_SPANS = 100
MAX_SEARCHED_LINES = 500
"""Maximum number of lines, or of comma-separated parts, that are searched for phrases."""

Convention = Literal["paper", "released"]
"""VQ2 as described in its paper, or as implemented in its code (yonatanbitton/wysiwyr, vq2_zeroshot)."""


class Steps(NamedTuple):
    """The question-writing steps in which VQ2's paper and its released code differ."""

    phrases: Mapping[ReplyFormat, Form[str]]
    """Forms of the request for phrases."""
    statement: tuple[str, str, str]
    """Text before the phrase, between the phrase and the question, and after the question."""
    samples: int
    """Number of questions sampled for each phrase; repeated questions are kept."""
    filtered: bool
    """True if a question is kept only if its answer, given the prompt, is the phrase."""


_PHRASES_SCHEMA = make_list_schema("phrases", make_string_schema(80), 24)
QUESTION_FORMS = make_line_forms(
    "vq2_question", "question", lambda _: make_object_schema(question=make_string_schema(120))
)
ANSWER_FORMS = make_line_forms("vq2_answer", "answer", lambda _: make_object_schema(answer=make_string_schema(60)))
STEPS_BY_CONVENTION: Mapping[Convention, Steps] = {
    "paper": Steps(
        make_line_forms("vq2_spans", "phrases", _PHRASES_SCHEMA),
        ("is '", "' true for '", "' in this image?"),
        1,
        True,
    ),
    "released": Steps(
        make_line_forms("vq2_noun_phrases", "phrases", _PHRASES_SCHEMA),
        ('Question: is "', '" true for "', '" in this image? Answer:'),
        5,
        False,
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Vq2Config(WriterConfig):
    kind: Literal["vq2"] = "vq2"
    story: ClassVar[str] = (
        "lets a language model write questions and answers from the prompt, and takes the likelihood of the answers"
    )
    answer_forms: ClassVar[tuple[AnswerForm, ...]] = ("likelihood",)
    takes_letters: ClassVar[bool] = False
    convention: Convention = "paper"
    """`paper`: one question for each phrase, in single quotes, kept if the prompt's answer to it is the phrase;
    `released`: five questions sampled for each name and noun phrase, in double quotes inside `Question: ... Answer:`,
    all kept (docs/questions.md lists the missing parts of the published code).
    """
    min_f1: Share = 0.54
    """Minimum token F1 between a question's phrase and its answer from the prompt; used only with `paper`. The value is
    quoted from memory from VQ2A (Changpinyo et al. 2022), which is not among our papers.
    """
    reduction: Reduction = "product"
    """Method for combining the token likelihoods of yes (operators/metrics/questions/vqascore.py)."""

    def __post_init__(self) -> None:
        WriterConfig.__post_init__(self)
        if self.steps.samples > 1 and not self.temperature:
            raise ConfigError(
                "vq2 temperature: expected a value above 0 (upstream uses 1), got 0; "
                f"convention={self.convention} draws {self.steps.samples} questions for each phrase"
            )

    @property
    def steps(self) -> Steps:
        return STEPS_BY_CONVENTION[self.convention]

    @property
    def reply_forms(self) -> Sequence[Mapping[ReplyFormat, Form[Any]]]:
        return self.steps.phrases, QUESTION_FORMS, ANSWER_FORMS

    def list_question_options(self) -> dict[str, Any]:
        steps = self.steps
        asked = self.list_reply_options(steps.phrases, QUESTION_FORMS, ANSWER_FORMS, texts=steps.statement) | {
            "samples": steps.samples
        }
        return {**asked, "min_f1": self.min_f1} if steps.filtered else asked

    def list_score_options(self) -> dict[str, Any]:
        return {"reduction": self.reduction}

    def estimate_calls(self, words: float) -> CallEstimate:
        # there are as many phrases as content words, and half as many noun phrases
        questions = words if self.steps.filtered else words / 2 * self.steps.samples
        return CallEstimate(1 + (2 if self.steps.filtered else 1) * questions, questions)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Request a prompt's phrases, questions about each phrase, and answers that are based on the prompt alone.

        Return the questions. With the convention `paper`, `keep` is False if the answer is not the phrase.
        """
        steps, about = self.steps, f"Description:\n{parsing.collapse_spaces(prompt)}\n"
        listing = self.sampling if steps.samples == 1 else self.sampling._replace(temperature=0.0)
        form = self.choose_form(steps.phrases)
        request = form.make_request(listing, f"{about}Phrases:\n")
        spans = yield from ask(request, partial(read_spans, prompt, pieces=form.pieces))
        before, between, after = steps.statement
        written: list[WrittenQuestion] = []
        texts = []
        for span, question in (yield from self._ask_about(prompt, about, spans)):
            phrase = prompt[span.start : span.end]
            text = before + parsing.collapse_spaces(phrase) + between + question + after
            number = str(len(written) + 1)
            written.append(WrittenQuestion(number, text, parsing.YES_NO, "yes", None, phrase, *span))
            texts.append(f"{about}Question:\n{question}\nAnswer:\n")
        if not steps.filtered:
            return written
        form = self.choose_form(ANSWER_FORMS)
        requests = [form.make_request(self.sampling, text) for text in texts]
        answers = yield from ask_each(
            requests, [partial(parsing.read_short_answer, pieces=form.pieces)] * len(requests)
        )
        return [
            question._replace(
                keep=isinstance(answer, str) and parsing.compute_token_f1(answer, question.span or "") >= self.min_f1
            )
            for question, answer in zip(written, answers, strict=True)
        ]

    def _ask_about(self, prompt: str, about: str, spans: Sequence[TextSpan]) -> Writing[list[tuple[TextSpan, str]]]:
        samples, form = self.steps.samples, self.choose_form(QUESTION_FORMS)
        drawn = [span for span in spans for _ in range(samples)]
        requests = [
            form.make_request(
                self.sampling._replace(seed=self.seed * samples + index % samples),
                f"{about}Phrase:\n{parsing.collapse_spaces(prompt[span.start : span.end])}\nQuestion:\n",
            )
            for index, span in enumerate(drawn)
        ]
        read = yield from ask_each(requests, [partial(read_question, pieces=form.pieces)] * len(requests))
        asked = [(span, question) for span, question in zip(drawn, read, strict=True) if isinstance(question, str)]
        if not asked:
            raise next(result for result in read if isinstance(result, UnreadableReply))
        return asked

    def combine_answers(self, answered: Sequence[Answered]) -> Scored:
        """Return the mean likelihood of yes over the kept questions."""
        elements = []
        for answer in answered:
            given, score = None, None
            if is_asked(answer.question.keep):
                index = answer.question.choices.index("yes")
                score = math.exp(compute_log_likelihoods(answer, self.reduction)[index])
                given = find_likeliest_choice(answer, self.reduction)
            elements.append(make_element(answer, given=given, score=score))
        return average_elements(elements)


def read_spans(prompt: str, reply: str, pieces: Callable[[str], Sequence[str]] = parsing.split_lines) -> list[TextSpan]:
    """Return the distinct positions of phrases found in the prompt; raise UnreadableReply if there are none."""
    spans: dict[str, TextSpan] = {}
    phrases = (phrase for line in pieces(reply) for phrase in _split_phrases(prompt, line))
    for phrase in islice(phrases, MAX_SEARCHED_LINES):
        if span := parsing.find_words(phrase, prompt):
            spans.setdefault(parsing.normalise(phrase), span)
    if not spans:
        raise UnreadableReply("no line is a phrase of the description")
    if len(spans) > MAX_SPANS:
        raise UnreadableReply(f"expected at most {MAX_SPANS} phrases, found {len(spans)}")
    return list(spans.values())


def _split_phrases(prompt: str, line: str) -> list[str]:
    """Return the line without its number, or its comma-separated parts if the whole line is not in the prompt."""
    if parsing.find_words(line, prompt):
        return [line]
    line = " ".join(rest.text for rest in parsing.read_numbered_lines(line)) or line
    return [line] if parsing.find_words(line, prompt) else parsing.split_choices(line)


def read_question(reply: str, pieces: Callable[[str], Sequence[str]] = parsing.split_lines) -> str:
    """Return the first question of a reply; raise UnreadableReply if it has no question."""
    for line in pieces(reply):
        text = _QUESTION_LABEL_PATTERN.sub("", line, count=1).rpartition("?")[0].strip(" \"'")
        if text and len(text) < parsing.MAX_QUESTION_CHARACTERS:
            return text + "?"
    raise UnreadableReply('no line that ends with "?" was found')
