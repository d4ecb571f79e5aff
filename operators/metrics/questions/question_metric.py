"""Base classes of metrics that ask questions about images, and the likelihoods of answers."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from string import ascii_uppercase
from typing import Any, ClassVar, Literal, Self, TypeVar

from plumbline.operators.base.bounds import NotNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import SHARES, Answered, Evidence, Metric, Scored, ScoreRange
from plumbline.operators.metrics.questions.vqascore import DEFAULT_QUESTIONS, Reduction, log_likelihood
from plumbline.operators.metrics.reply_forms import Form, Piece, Replies, Schema, texts_under
from plumbline.operators.metrics.wording import WordedMetric, prompt_template, template_digest
from plumbline.operators.metrics.writing import ReplySampling, VqaPrompt, Writing, WrittenQuestion, ask
from plumbline.operators.models.vqa_profiles import VqaProfile

T = TypeVar("T")
AnswerForm = Literal["likelihood", "reply"]
"""`likelihood`: the VQA model weighs the choices; `reply`: it answers in its own words."""
CHOICES = "{choices}"
"""Placeholder of a question's choices in a template."""
LETTERED = f"\n{CHOICES}\nAnswer with the letter of the right choice alone."
"""Appended to a template without placeholder for choices if the choices are weighed by their letters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskingConfig(Metric):
    """Options for asking a VQA model about images."""

    answer_forms: ClassVar[tuple[AnswerForm, ...]] = ("likelihood", "reply")
    """Forms of answers that the metric can score; the first one is its default."""
    takes_letters: ClassVar[bool] = True
    """False if the choices cannot be weighed by letters, such as yes and no."""
    model: str = "vqa"
    """Role of the VQA model."""
    template: str = "{}"
    """Text that the VQA model reads: `{}` is the question, `{choices}` its choices."""
    answers: AnswerForm | None = None
    """`likelihood`: the VQA model weighs the choices; `reply`: it answers in its own words. Null is the metric's own
    form, or `likelihood` if the model has no words."""
    letters: bool | None = None
    """Show the choices of multiple choice as A, B, C and weigh the letters. Null does so for services, which report the
    likelihoods of single tokens alone. Yes and no stay words."""
    yes_no: Literal["capitalised", "as_written"] | None = None
    """Send yes and no as `Yes` and `No` (vqascore_genai_bench.txt), or as they are written. Null uses the case of the
    answer in the VQA model's profile; before the defaults are filled in it means `capitalised`."""

    def __post_init__(self) -> None:
        Metric.__post_init__(self)
        if self.template.count("{}") != 1:
            raise ConfigError(
                f"{self.kind} template: expected exactly one {{}} for the question, got {self.template!r}"
            )
        if self.answers is not None and self.answers not in self.answer_forms:
            raise ConfigError(
                f"{self.kind} answers: it scores {' and '.join(self.answer_forms)} alone, got {self.answers!r}; set it "
                "to null"
            )
        if self.letters and not self.takes_letters:
            raise ConfigError(f"{self.kind} letters: its choices are not weighed by letters; set it to null")

    @property
    def form(self) -> AnswerForm:
        return self.answers or self.answer_forms[0]

    @property
    def weighs_letters(self) -> bool:
        """True if the choices of multiple choice are weighed by their letters."""
        return bool(self.letters) and self.form == "likelihood"

    @property
    def score_range(self) -> ScoreRange | None:
        return SHARES

    def with_model_defaults(self, profile_of: Callable[[str], VqaProfile]) -> Self:
        """Return the metric with the defaults of its VQA model: letters, the case of yes and no, the form of answers.

        Raises ConfigError if a reply is wanted from a model that only compares choices.
        """
        profile = profile_of(self.model)
        is_capitalised = DEFAULT_QUESTIONS[profile.question].answer.istitle()
        if profile.compares and self.answers == "reply":
            raise ConfigError(
                f"{self.kind} answers: the role {self.model!r} is a {profile.name} model, which compares choices and "
                "has no words of its own; set answers=likelihood, or use another VQA model"
            )
        return replace(
            self,
            answers="likelihood" if profile.compares else self.answers,
            letters=True if self.letters is None and profile.lettered and self.takes_letters else self.letters,
            yes_no=self.yes_no or ("capitalised" if is_capitalised else "as_written"),
        )

    def answering(self) -> dict[str, Any]:
        asked = {"form": self.form, "template": self.template, "yes_no": self.yes_no or "capitalised"}
        return {**asked, "letters": LETTERED} if self.weighs_letters else asked

    def vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        """Return the prompt for a question and its choices, which stay in order."""
        template, listed, answers = self.template, ", ".join(choices), self.answer_choices(choices)
        if self.weighs_letters and 1 < len(choices) <= len(ascii_uppercase) and not parsing.is_yes_no(choices):
            answers = tuple(ascii_uppercase[: len(choices)])
            listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(answers, choices, strict=True))
            if CHOICES not in template:
                template += LETTERED
        before, after = (part.replace(CHOICES, listed) for part in template.split("{}"))
        asked = before + self.apply_word_order(text) + after
        free = self.form == "reply"
        return VqaPrompt(asked, answers, free, exact=free and "matcher" not in self.roles)

    def answer_choices(self, choices: Sequence[str]) -> tuple[str, ...]:
        """Return the answers whose likelihoods are needed, or the possible meanings of a reply."""
        if self.form == "reply" or self.yes_no == "as_written":
            return tuple(choices)
        return tuple(choice.capitalize() if choice.lower() in parsing.YES_NO else choice for choice in choices)


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterConfig(AskingConfig, WordedMetric):
    """Options for questions that a language model writes."""

    role_keys: ClassVar[tuple[str, ...]] = ("writer", "model")
    writer: str = "llm"
    """Role of the language model that writes the questions."""
    max_tokens: Positive = 2048
    """Maximum number of tokens of a writer's reply; the papers do not say."""
    temperature: NotNegative = 0.0
    """Temperature of the writer; 0 selects the likeliest token each time. The papers do not say."""
    seed: int = 0
    """Seed of the writer at a temperature above 0."""
    replies: Replies = "text"
    """Form of the writer's replies: `text`, as in the releases, or `json`, with a schema that vLLM, transformers and
    many services enforce, so that a small model's replies can be read too."""

    def __post_init__(self) -> None:
        AskingConfig.__post_init__(self)
        for name, role in self.roles.items():
            if not role.strip():
                raise ConfigError(f"{self.kind} {name}: expected the role of one of the sweep's models, got {role!r}")

    @property
    @abstractmethod
    def forms(self) -> Sequence[Mapping[Replies, Form[Any]]]:
        """All forms of the writer's replies."""

    @property
    def sampling(self) -> ReplySampling:
        return ReplySampling(self.max_tokens, self.temperature, self.seed)

    @property
    def templates(self) -> tuple[str, ...]:
        return tuple(form.template for forms in self.forms for form in forms.values())

    def with_model_defaults(self, profile_of: Callable[[str], VqaProfile]) -> Self:
        """Apply the defaults of both base classes."""
        return AskingConfig.with_model_defaults(WordedMetric.with_model_defaults(self, profile_of), profile_of)

    def form_for(self, forms: Mapping[Replies, Form[Piece]]) -> Form[Piece]:
        """Return the form for the metric's kind of replies, in the metric's wording."""
        form = forms[self.replies]
        return form._replace(instructions=self.template_text(form.template))

    def recipe(self, *forms: Mapping[Replies, Form[Any]], texts: Sequence[str] = ()) -> dict[str, Any]:
        """Return all options that decide replies in these forms; `texts` are the other texts of the requests."""
        pieces = (part for form in forms for part in self.form_for(form).identity)
        return {"templates": template_digest(*pieces, *texts), "sampling": self.sampling._asdict()}

    def ask_writer(self, forms: Mapping[Replies, Form[Any]], text: str, read: Callable[..., T]) -> Writing[T]:
        """Ask for one reply; `read` gets it, and its form's parser as `pieces`."""
        form = self.form_for(forms)
        return (yield from ask(form.request(self.sampling, text), partial(read, pieces=form.pieces)))

    @property
    def chain(self) -> tuple[str, ...]:
        return "questions", "answers", "scores"

    @property
    def scored_from(self) -> tuple[str, ...]:
        return "answers", *self.chain[:-2]

    @abstractmethod
    def asking(self) -> dict[str, Any]:
        """Return all options that decide the questions."""

    @abstractmethod
    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Write the questions about a prompt; raise UnreadableReply if there are none."""

    @abstractmethod
    def weigh(self, answered: Sequence[Answered]) -> Scored:
        """Return the score of an image from its answered questions."""

    def score(self, evidence: Evidence) -> Scored:
        return self.weigh(evidence.answered)


def make_forms(
    name: str,
    text: Callable[[str], Sequence[Piece]],
    in_json: Callable[[str], Sequence[Piece]],
    schema: Callable[[int], Schema],
) -> Mapping[Replies, Form[Piece]]:
    """Return the text form with templates/NAME.txt and the JSON form with templates/NAME_json.txt."""
    return {
        "text": Form(prompt_template(name), text, template=name),
        "json": Form(prompt_template(f"{name}_json"), in_json, schema, template=f"{name}_json"),
    }


def make_line_forms(name: str, member: str, schema: Callable[[int], Schema]) -> Mapping[Replies, Form[str]]:
    """Return the forms of replies that are lines of text, or texts under the name of a JSON member."""
    return make_forms(name, parsing.split_lines, texts_under(member), schema)


def log_likelihoods(answered: Answered, reduction: Reduction) -> list[float]:
    """Return the log-likelihood of each choice, in the question's order, minus the prior's if it is removed."""
    logs = [log_likelihood(logprobs, reduction) for logprobs in answered.token_logprobs]
    if not answered.prior:
        return logs
    priors = (log_likelihood(logprobs, reduction) for logprobs in answered.prior)
    return [log - prior for log, prior in zip(logs, priors, strict=True)]


def find_likeliest(answered: Answered, reduction: Reduction) -> str:
    """Return the likeliest choice; the first of equally likely choices."""
    logs = log_likelihoods(answered, reduction)
    return answered.question.choices[logs.index(max(logs))]
