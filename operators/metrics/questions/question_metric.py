"""Base classes of metrics that ask questions about images, and functions for the likelihoods of answers."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from string import ascii_uppercase
from typing import Any, ClassVar, Literal, Self, TypeVar

from plumbline.operators.base.bounds import NonNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import SHARE_RANGE, Answered, Evidence, Metric, Scored, ScoreRange
from plumbline.operators.metrics.questions.vqascore import DEFAULT_QUESTIONS, Reduction, compute_log_likelihood
from plumbline.operators.metrics.reply_forms import Form, Piece, ReplyFormat, Schema, make_texts_reader
from plumbline.operators.metrics.wording import WordedMetric, digest_templates, read_prompt_template
from plumbline.operators.metrics.writing import ReplySampling, VqaPrompt, Writing, WrittenQuestion, ask
from plumbline.operators.models.vqa_profiles import VqaProfile

T = TypeVar("T")
AnswerForm = Literal["likelihood", "reply"]
"""`likelihood`: the VQA model returns the likelihood of each choice; `reply`: it answers in its own words."""
CHOICES_SLOT = "{choices}"
"""Placeholder for a question's choices in a template."""
LETTERED_CHOICES_TEXT = f"\n{CHOICES_SLOT}\nAnswer with the letter of the right choice alone."
"""Text appended to a template that has no placeholder for choices, if the likelihoods of the choices' letters are used.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionMetricConfig(Metric):
    """Base class of metrics that ask a VQA model questions about images, with the options that they share."""

    answer_forms: ClassVar[tuple[AnswerForm, ...]] = ("likelihood", "reply")
    """Forms of answers that the metric can score; the first is the default."""
    takes_letters: ClassVar[bool] = True
    """False if the metric's choices cannot be replaced by letters, for example yes and no."""
    model: str = "vqa"
    """Role of the VQA model."""
    template: str = "{}"
    """Text sent to the VQA model: `{}` is replaced by the question, `{choices}` by its choices."""
    answers: AnswerForm | None = None
    """`likelihood`: the VQA model returns the likelihood of each choice; `reply`: it answers in its own words. Null
    selects the metric's default, or `likelihood` if the model cannot reply in words.
    """
    letters: bool | None = None
    """If true, show multiple choices as A, B, C and compare the likelihoods of the letters. Null does so for services,
    which report only the likelihoods of single tokens. Yes and no are not replaced by letters.
    """
    yes_no: Literal["capitalised", "as_written"] | None = None
    """Send yes and no as `Yes` and `No` (vqascore_genai_bench.txt), or as they are written. Null uses the case of the
    answer in the VQA model's profile; before the defaults are filled in, it means `capitalised`.
    """

    def __post_init__(self) -> None:
        Metric.__post_init__(self)
        if self.template.count("{}") != 1:
            raise ConfigError(
                f"{self.kind} template: expected exactly one {{}} for the question, got {self.template!r}"
            )
        if self.answers is not None and self.answers not in self.answer_forms:
            raise ConfigError(
                f"{self.kind} answers: only {' and '.join(self.answer_forms)} can be scored, got {self.answers!r}; set "
                "it to null"
            )
        if self.letters and not self.takes_letters:
            raise ConfigError(
                f"{self.kind} letters: this metric's choices cannot be replaced by letters; set letters to null"
            )

    @property
    def form(self) -> AnswerForm:
        return self.answers or self.answer_forms[0]

    @property
    def compares_letters(self) -> bool:
        """Return True if the model is shown lettered choices and the likelihoods of the letters are compared."""
        return bool(self.letters) and self.form == "likelihood"

    @property
    def score_range(self) -> ScoreRange | None:
        return SHARE_RANGE

    def complete_options(self, profile_of: Callable[[str], VqaProfile]) -> Self:
        """Return the metric with its VQA model's defaults for letters, the case of yes and no, and the form of answers.

        Raise ConfigError if replies are requested from a model that only compares choices.
        """
        profile = profile_of(self.model)
        is_capitalised = DEFAULT_QUESTIONS[profile.question].answer.istitle()
        if profile.compares and self.answers == "reply":
            raise ConfigError(
                f"{self.kind} answers: the model for role {self.model!r} is a {profile.name} model, which compares "
                "choices and cannot reply in words; set answers=likelihood, or use another VQA model"
            )
        return replace(
            self,
            answers="likelihood" if profile.compares else self.answers,
            letters=True if self.letters is None and profile.lettered and self.takes_letters else self.letters,
            yes_no=self.yes_no or ("capitalised" if is_capitalised else "as_written"),
        )

    def list_answer_options(self) -> dict[str, Any]:
        asked = {"form": self.form, "template": self.template, "yes_no": self.yes_no or "capitalised"}
        return {**asked, "letters": LETTERED_CHOICES_TEXT} if self.compares_letters else asked

    def make_vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        """Return the prompt that asks the VQA model a question, with its choices in the given order."""
        template, listed, answers = self.template, ", ".join(choices), self.get_answer_choices(choices)
        if self.compares_letters and 1 < len(choices) <= len(ascii_uppercase) and not parsing.is_yes_no(choices):
            answers = tuple(ascii_uppercase[: len(choices)])
            listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(answers, choices, strict=True))
            if CHOICES_SLOT not in template:
                template += LETTERED_CHOICES_TEXT
        before, after = (part.replace(CHOICES_SLOT, listed) for part in template.split("{}"))
        asked = before + self.apply_word_order(text) + after
        free = self.form == "reply"
        return VqaPrompt(asked, answers, free, exact=free and "matcher" not in self.roles)

    def get_answer_choices(self, choices: Sequence[str]) -> tuple[str, ...]:
        """Return the answers whose likelihoods are computed or, with answers=reply, the answers that a reply may give.

        If likelihoods are computed, yes and no are capitalised unless the `yes_no` option is `as_written`.
        """
        if self.form == "reply" or self.yes_no == "as_written":
            return tuple(choices)
        return tuple(choice.capitalize() if choice.lower() in parsing.YES_NO else choice for choice in choices)


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterConfig(QuestionMetricConfig, WordedMetric):
    """Base class of metrics whose questions are written by a language model, with the options that they share."""

    role_keys: ClassVar[tuple[str, ...]] = ("writer", "model")
    writer: str = "llm"
    """Role of the language model that writes the questions."""
    max_tokens: Positive = 2048
    """Maximum number of tokens in the writer's reply; the papers give no value."""
    temperature: NonNegative = 0.0
    """Sampling temperature of the writer; 0 always selects the likeliest token. The papers give no value."""
    seed: int = 0
    """Random seed of the writer; has no effect at temperature 0."""
    replies: ReplyFormat = "text"
    """Format of the writer's replies: `text`, as in the published code, or `json` with a schema, which vLLM,
    transformers and many services enforce, so that the replies of small models can be parsed too.
    """

    def __post_init__(self) -> None:
        QuestionMetricConfig.__post_init__(self)
        for name, role in self.roles.items():
            if not role.strip():
                raise ConfigError(f"{self.kind} {name}: expected the role of one of the sweep's models, got {role!r}")

    @property
    def json_role(self) -> str | None:
        return "writer" if self.replies == "json" else None

    @property
    @abstractmethod
    def reply_forms(self) -> Sequence[Mapping[ReplyFormat, Form[Any]]]:
        """The forms of all replies that the writer is asked for; each entry has a form for every reply format."""

    @property
    def sampling(self) -> ReplySampling:
        return ReplySampling(self.max_tokens, self.temperature, self.seed)

    @property
    def templates(self) -> tuple[str, ...]:
        return tuple(form.template for forms in self.reply_forms for form in forms.values())

    def complete_options(self, profile_of: Callable[[str], VqaProfile]) -> Self:
        """Return the metric with the VQA model's defaults and with the digest of its wording filled in."""
        return QuestionMetricConfig.complete_options(WordedMetric.complete_options(self, profile_of), profile_of)

    def choose_form(self, forms: Mapping[ReplyFormat, Form[Piece]]) -> Form[Piece]:
        """Return the form for the metric's reply format, in the metric's wording."""
        form = forms[self.replies]
        return form._replace(instructions=self.get_template_text(form.template))

    def list_reply_options(self, *forms: Mapping[ReplyFormat, Form[Any]], texts: Sequence[str] = ()) -> dict[str, Any]:
        """Return a mapping of all options that determine the replies in these forms.

        `texts` are the other strings in the requests.
        """
        pieces = (part for form in forms for part in self.choose_form(form).identity)
        return {"templates": digest_templates(*pieces, *texts), "sampling": self.sampling._asdict()}

    def ask_writer(self, forms: Mapping[ReplyFormat, Form[Any]], text: str, read: Callable[..., T]) -> Writing[T]:
        """Ask the writer for one reply and return it as parsed by `read`.

        `read` is called with the reply and with `pieces`, the parser of the reply's form.
        """
        form = self.choose_form(forms)
        return (yield from ask(form.make_request(self.sampling, text), partial(read, pieces=form.pieces)))

    @property
    def chain(self) -> tuple[str, ...]:
        return "questions", "answers", "scores"

    @property
    def scored_from(self) -> tuple[str, ...]:
        return "answers", *self.chain[:-2]

    @abstractmethod
    def list_question_options(self) -> dict[str, Any]:
        """Return a mapping of all options that determine which questions are written; they are part of cell keys."""

    @abstractmethod
    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Request the questions about a prompt and return them; raise UnreadableReply if there are none."""

    @abstractmethod
    def combine_answers(self, answered: Sequence[Answered]) -> Scored:
        """Return an image's score with the contribution of each answered question."""

    def score(self, evidence: Evidence) -> Scored:
        return self.combine_answers(evidence.answered)


def make_forms(
    name: str,
    text: Callable[[str], Sequence[Piece]],
    in_json: Callable[[str], Sequence[Piece]],
    schema: Callable[[int], Schema],
) -> Mapping[ReplyFormat, Form[Piece]]:
    """Return two forms of the same reply: text (templates/NAME.txt) and JSON (templates/NAME_json.txt).

    `text` and `in_json` split a reply into pieces; `schema` returns the JSON schema for a maximum number of tokens.
    """
    return {
        "text": Form(read_prompt_template(name), text, template=name),
        "json": Form(read_prompt_template(f"{name}_json"), in_json, schema, template=f"{name}_json"),
    }


def make_line_forms(name: str, member: str, schema: Callable[[int], Schema]) -> Mapping[ReplyFormat, Form[str]]:
    """Return two forms of a reply with a list of strings: lines of text, or strings under `member` in JSON."""
    return make_forms(name, parsing.split_lines, make_texts_reader(member), schema)


def compute_log_likelihoods(answered: Answered, reduction: Reduction) -> list[float]:
    """Return each choice's log-likelihood, minus that for a blank image if the metric removes the prior."""
    logs = [compute_log_likelihood(logprobs, reduction) for logprobs in answered.token_logprobs]
    if not answered.prior:
        return logs
    priors = (compute_log_likelihood(logprobs, reduction) for logprobs in answered.prior)
    return [log - prior for log, prior in zip(logs, priors, strict=True)]


def find_likeliest_choice(answered: Answered, reduction: Reduction) -> str:
    """Return the likeliest choice; if several are equally likely, return the first."""
    logs = compute_log_likelihoods(answered, reduction)
    return answered.question.choices[logs.index(max(logs))]
