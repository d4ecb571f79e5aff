"""What the metrics share that ask questions about images, written by a language model or not, and how answers weigh."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any, ClassVar, Literal, Self

from plumbline.operators.base.bounds import NotNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Answered, Scored
from plumbline.operators.metrics.metric import SHARES, Evidence, Metric, ScoreRange
from plumbline.operators.metrics.reply_forms import Form, Piece, Replies, Schema
from plumbline.operators.metrics.vqascore import log_likelihood
from plumbline.operators.metrics.worded import Worded, prompt_template
from plumbline.operators.metrics.writing import RETRY, STOP, Put, ReplySampling, Writing, WrittenQuestion
from plumbline.operators.models.vqa_profiles import Reduction, VqaProfile

AnswerForm = Literal["likelihood", "reply"]
"""`likelihood`: the VQA model weighs the choices; `reply`: it answers in its own words."""
CHOICES = "{choices}"
"""The place of a question's choices in a template."""
LETTERED = f"\n{CHOICES}\nAnswer with the letter of the right choice alone."
"""End of a template that does not place the choices, if they are weighed by their letters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskingConfig(Metric):
    """Which VQA model answers questions about images, and how they are put to it."""

    answer_forms: ClassVar[tuple[AnswerForm, ...]] = ("likelihood", "reply")
    """Forms of answers that the metric can score; the first is its default."""
    takes_letters: ClassVar[bool] = True
    """False if its choices cannot be weighed by letters, as yes and no."""
    model: str = "vqa"
    """The role, among the sweep's models, of the VQA model."""
    template: str = "{}"
    """Text that the VQA model reads: `{}` is the question, `{choices}` its choices."""
    answers: AnswerForm | None = None
    """`likelihood`: the VQA model weighs the choices; `reply`: it answers in its own words. Null is the metric's own
    form, or `likelihood` if the model has no words."""
    letters: bool | None = None
    """Show the choices of multiple choice as A, B, C and weigh the letters. Null does so for services, which report the
    likelihoods of single tokens alone. Yes and no stay words."""
    yes_no: Literal["capitalised", "as_written"] | None = None
    """Whether yes and no are put as `Yes` and `No` (vqascore_genai_bench.txt) or as they are written; null is as
    VQAScore has its answer from models of the kind, once the metric is settled, and `capitalised` before."""

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
        """The form of the VQA model's answers."""
        return self.answers or self.answer_forms[0]

    @property
    def weighs_letters(self) -> bool:
        """Return True if the choices of multiple choice are weighed by their letters."""
        return bool(self.letters) and self.form == "likelihood"

    @property
    def score_range(self) -> ScoreRange | None:
        return SHARES

    def settled(self, profile_of: Callable[[str], VqaProfile]) -> Self:
        """Return the metric with the defaults of its VQA model: letters, the case of yes and no, the form of answers.

        Raises ConfigError if a model that has no words is to reply.
        """
        profile = profile_of(self.model)
        if profile.compares and self.answers == "reply":
            raise ConfigError(
                f"{self.kind} answers: the role {self.model!r} is a {profile.name} model, which compares choices and "
                "has no words of its own; set answers=likelihood, or use another VQA model"
            )
        cased: Literal["capitalised", "as_written"]
        cased = "capitalised" if profile.asks.answer.istitle() else "as_written"
        return replace(
            self,
            answers="likelihood" if profile.compares else self.answers,
            letters=True if self.letters is None and profile.lettered and self.takes_letters else self.letters,
            yes_no=cased if self.yes_no is None else self.yes_no,
        )

    def answering(self) -> dict[str, Any]:
        """All that decides how questions are put to the VQA model."""
        asked = {"form": self.form, "template": self.template, "yes_no": self.yes_no or "capitalised"}
        return {**asked, "letters": LETTERED} if self.weighs_letters else asked

    def put(self, text: str, choices: Sequence[str]) -> Put:
        """A question as it is put to the VQA model, with its choices in the same order."""
        lettered = self.weighs_letters and 1 < len(choices) <= len(ascii_uppercase) and not parsing.is_yes_no(choices)
        letters = tuple(ascii_uppercase[: len(choices)])
        pairs = zip(letters, choices, strict=False)
        shown = "\n".join(f"{letter}. {choice}" for letter, choice in pairs) if lettered else ", ".join(choices)
        template = self.template + LETTERED if lettered and CHOICES not in self.template else self.template
        before, after = (part.replace(CHOICES, shown) for part in template.split("{}"))
        asked = letters if lettered else self.choices_put(choices)
        free = self.form == "reply"
        return Put(before + self.worded(text) + after, asked, free, exact=free and "matcher" not in self.roles)

    def choices_put(self, choices: Sequence[str]) -> tuple[str, ...]:
        """The answers whose likelihood is wanted; of a reply, those one of which it is taken to mean."""
        if self.form == "reply" or self.yes_no == "as_written":
            return tuple(choices)
        return tuple(choice.capitalize() if choice.lower() in parsing.YES_NO else choice for choice in choices)


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterConfig(AskingConfig, Worded):
    """Who writes the questions, and in which form."""

    role_keys: ClassVar[tuple[str, ...]] = ("writer", "model")
    writer: str = "llm"
    """The role, among the sweep's models, of the language model that writes the questions."""
    max_tokens: Positive = 2048
    """Tokens after which a reply of the writer is cut; the papers do not say."""
    temperature: NotNegative = 0.0
    """Of the writer's replies; 0 takes the likeliest token each time. The papers do not say."""
    seed: int = 0
    """Of the writer's replies at a temperature above 0."""
    replies: Replies = "text"
    """The form of the writer's replies: `text`, as the releases have it, or `json`, by a schema that vLLM, transformers
    and many services enforce, so that a small model's replies can be read too."""

    def __post_init__(self) -> None:
        AskingConfig.__post_init__(self)
        for name, role in self.roles.items():
            if not role.strip():
                raise ConfigError(f"{self.kind} {name}: expected the role of one of the sweep's models, got {role!r}")

    @property
    @abstractmethod
    def forms(self) -> Sequence[Mapping[Replies, Form[Any]]]:
        """All in which replies may be asked for."""

    @property
    def sampling(self) -> ReplySampling:
        """How the writer's replies are drawn."""
        return ReplySampling(self.max_tokens, self.temperature, self.seed)

    @property
    def templates(self) -> tuple[str, ...]:
        return tuple(form.template for forms in self.forms for form in forms.values())

    def settled(self, profile_of: Callable[[str], VqaProfile]) -> Self:
        """As both of its bases."""
        return AskingConfig.settled(Worded.settled(self, profile_of), profile_of)

    def words(self, forms: Mapping[Replies, Form[Piece]]) -> Form[Piece]:
        """The one in which replies are asked for, in its words."""
        form = forms[self.replies]
        return form._replace(instructions=self.template_text(form.template))

    def recipe(self, *forms: Mapping[Replies, Form[Any]], texts: Sequence[str] = ()) -> dict[str, Any]:
        """All that decides replies in these forms; `texts` are what else requests say."""
        pieces = (part for form in forms for part in self.words(form).identity)
        return {"templates": digest(*pieces, *texts), "sampling": self.sampling._asdict()}

    @property
    def chain(self) -> tuple[str, ...]:
        return "questions", "answers", "scores"

    @property
    def scored_from(self) -> tuple[str, ...]:
        return "answers", *self.chain[:-2]

    @abstractmethod
    def asking(self) -> dict[str, Any]:
        """All that decides the questions."""

    @abstractmethod
    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """The program that has the questions about a prompt written; it raises UnreadableReply where there are none."""

    @abstractmethod
    def weigh(self, answered: Sequence[Answered]) -> Scored:
        """The score of an image by its answered questions."""

    def score(self, evidence: Evidence) -> Scored:
        """As `weigh`."""
        return self.weigh(evidence.answered)


def both_forms(
    name: str,
    text: Callable[[str], Sequence[Piece]],
    in_json: Callable[[str], Sequence[Piece]],
    schema: Callable[[int], Schema],
) -> Mapping[Replies, Form[Piece]]:
    """How replies are asked for by templates/NAME.txt and NAME_json.txt, and the readers of both."""
    return {
        "text": Form(prompt_template(name), text, template=name),
        "json": Form(prompt_template(f"{name}_json"), in_json, schema, template=f"{name}_json"),
    }


def digest(*templates: str) -> str:
    """A short name for exactly these texts, together with those that all requests share."""
    return hashlib.sha256("\0".join([*STOP, RETRY, *templates]).encode()).hexdigest()[:16]


def log_likelihoods(answered: Answered, reduction: Reduction) -> list[float]:
    """The log-likelihood of each choice, in the question's order; less that of the prior, where it is taken out."""
    logs = [log_likelihood(logprobs, reduction) for logprobs in answered.token_logprobs]
    if not answered.prior:
        return logs
    anyhow = (log_likelihood(logprobs, reduction) for logprobs in answered.prior)
    return [log - prior for log, prior in zip(logs, anyhow, strict=True)]


def likeliest(answered: Answered, reduction: Reduction) -> str:
    """The likeliest choice; of equals the first."""
    logs = log_likelihoods(answered, reduction)
    return answered.question.choices[logs.index(max(logs))]
