"""LLMScore: a language model compares the prompt with a description of the image (Lu et al. 2023, llmscore.txt).

The description is written from a caption of the image and captions of its regions (3.1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

from plumbline.operators.base.bounds import NonNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import (
    REPEAT_REQUEST,
    JudgeMetricConfig,
    Scale,
    accept_all,
    fill_template,
    map_ratings,
)
from plumbline.operators.metrics.metric import SHARE_RANGE, CallEstimate, Rating, ScoreRange, Verdict
from plumbline.operators.metrics.wording import (
    Checkout,
    Release,
    TemplateText,
    WordedMetric,
    ask_as_released,
    digest_templates,
    fill_slots,
)
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply, Writing, ask
from plumbline.operators.models.calls import Region

Variant = Literal["overall", "error_counting", "errors", "rule_enhanced"]

DESCRIBE_TEMPLATE, JUDGE_TEMPLATE = "llmscore_describe", "llmscore_judge"
DEFAULT_SCALE = 100
MAX_COUNT = 99
MAX_COUNTED_ERRORS = 9
MAX_ERRORS = 99
"""Largest number of errors accepted. The published prompt asks for 0 to 9, but upstream accepts any number; in
T2IScoreScore, its judge counted up to 36.
"""
RELEASED_TEMPERATURE = 1.0
"""The services' default temperature, because upstream sends none."""
SCALES: Mapping[Variant, tuple[Scale, ...]] = {
    "overall": (Scale("rating", 1, DEFAULT_SCALE),),
    "error_counting": (Scale("errors", 0, MAX_COUNTED_ERRORS),),
    "errors": (Scale("errors", 0, MAX_ERRORS),),
    "rule_enhanced": (
        Scale("objects", 1, MAX_COUNT),
        Scale("objects_matched", 0, MAX_COUNT),
        Scale("attributes", 0, MAX_COUNT),
        Scale("attributes_matched", 0, MAX_COUNT),
    ),
}


class CaptionedImage(NamedTuple):
    """Description of an image for a model that cannot see it: its caption, its regions with captions, and its size."""

    caption: str
    regions: Sequence[Region]
    width: int
    """Width in pixels."""
    height: int


@dataclass(frozen=True, slots=True)
class LlmScoreRelease(Release):
    """LLMScore's published prompts, from llm_descriptor and llm_evaluator (YujieLu10/LLMScore at 8b898e3)."""

    repository: ClassVar[str] = "YujieLu10/LLMScore"
    marker_file: ClassVar[str] = "llm_evaluator/evaluation_instruction.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("temperature", "description_temperature", "replies", "scale")
    temperature: ClassVar[float] = RELEASED_TEMPERATURE
    description_prompt: TemplateText
    judge_prompt: TemplateText
    scores: str
    """Instruction that asks for a rating and the number of errors."""
    rule: str
    """Instruction that asks for four counts. It is in upstream's repository, but upstream's code never sends it."""

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.parse_python(cls.marker_file)
        scores, rule = (code.read_plain_string(f"self.evaluation_instruction_{number}") for number in (1, 2))
        describing = checkout.parse_python("llm_descriptor/visual_descriptor.py").read_text("prompt")
        return cls(describing, code.read_text("prompt"), scores, rule)

    def describe(self, image: CaptionedImage, sampling: ReplySampling) -> Writing[str]:
        """Ask for a description of an image and return it (upstream's generate_multi_granualrity_description)."""
        regions = (
            f"{region.label}: [{region.x1}, {region.y1}, {region.x2}, {region.y2}]; " for region in image.regions
        )
        # upstream's caller swaps the two arguments of the function
        values = {"local_description": image.caption, "global_description": "".join(regions)}
        text = fill_slots(self.description_prompt, {**values, "width": str(image.width), "height": str(image.height)})
        request = sampling._replace(temperature=self.temperature).make_request(text, stop=())
        (description,) = yield from ask_as_released([request], [_join_lines])
        return description

    def judge(self, prompt: str, description: str, *, by_rule: bool, sampling: ReplySampling) -> Writing[Verdict]:
        """Ask how well a description matches the prompt; return the verdict (upstream's generate_score_with_rationale).

        `by_rule` asks for counts of objects and attributes instead of a rating.
        """
        instruction = self.rule if by_rule else self.scores
        values = {"text_prompt": prompt, "description": description, "self.evaluation_instruction_1": instruction}
        request = sampling._replace(temperature=self.temperature).make_request(
            fill_slots(self.judge_prompt, values), stop=()
        )
        (verdict,) = yield from ask_as_released([request], [_read_counts if by_rule else _read_scores])
        return verdict


def _join_lines(reply: str) -> str:
    if not reply.strip():
        raise ValueError("it is empty")
    return reply.strip().replace("\n", " ")


def _read_scores(reply: str) -> Verdict:
    overall, errors, *reasons = [line for line in reply.split("\n") if line][:4]
    rating, counted = int(overall), int(errors)
    if len(reasons) < 2 or not 1 <= rating <= 100 or not 0 <= counted <= MAX_ERRORS:
        expected = f"a rating (1 to 100), a number of errors (0 to {MAX_ERRORS}) and two explanations, a line each"
        raise ValueError(f"expected {expected}")
    return Verdict((Rating("rating", rating), Rating("errors", counted)), " ".join(reasons))


def _read_counts(reply: str) -> Verdict:
    *lines, rationale = [line for line in reply.split("\n") if line]
    counts = [int(line) for line in lines]
    objects, matched, attributes, attributes_matched = counts
    if objects < 1 or min(matched, attributes, attributes_matched) < 0:
        raise ValueError("expected four counts, the first above 0, and an explanation, each on a line of its own")
    names = (scale.name for scale in SCALES["rule_enhanced"])
    return Verdict(tuple(map(Rating, names, counts)), rationale)


@dataclass(frozen=True, kw_only=True, slots=True)
class DescriptionMetricConfig(WordedMetric):
    """Options for captions and descriptions of images; metrics with equal options share both."""

    captioner: str = "captioner"
    """Role of the captioner (BLIP-2 with OPT 2.7B in the paper)."""
    caption_instruction: str = "Describe this image in one sentence."
    """Instruction for captioners that accept one; other captioners ignore it."""
    caption_tokens: Positive = 64
    """Maximum number of tokens in a caption."""
    grounder: str | None = "grounder"
    """Role of the model that captions regions (GRiT in the paper); if null, descriptions do not mention regions."""
    describer: str = "judge"
    """Role of the language model that writes a description from the caption and the regions."""
    description_tokens: Positive = 512
    """Number of tokens at which a description is cut off."""
    description_temperature: NonNegative = 0.0
    """Sampling temperature of the descriptions. The paper mentions both 0.7 and greedy decoding."""
    description_seed: int = 0
    """Random seed for sampling descriptions; has no effect at temperature 0."""

    @property
    def description_chain(self) -> tuple[str, ...]:
        return ("captions", *(["regions"] if self.grounder is not None else []), "descriptions")

    @property
    def description_roles(self) -> dict[str, str]:
        grounder = {"grounder": self.grounder} if self.grounder is not None else {}
        return {"captioner": self.captioner, **grounder, "describer": self.describer}

    @property
    def description_sampling(self) -> ReplySampling:
        return ReplySampling(self.description_tokens, self.description_temperature, self.description_seed)

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (LlmScoreRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return (DESCRIBE_TEMPLATE,)

    def list_caption_options(self) -> dict[str, Any]:
        """Return a mapping of all options that determine a caption, except the captioner."""
        return {"instruction": self.caption_instruction, "max_tokens": self.caption_tokens}

    def caption(self) -> Writing[str]:
        """Ask for a caption of an image and return it, even if it was cut off; do not ask again."""
        (reply,) = yield [ReplySampling(self.caption_tokens).make_request(self.caption_instruction, stop=())]
        return read_paragraph(reply.text)

    def list_description_options(self) -> dict[str, Any]:
        """Return a mapping of all options that determine a description, except the captions and the describer."""
        release, sampling = self.find_release(LlmScoreRelease), self.description_sampling._asdict()
        if release is not None:
            return {"wording": release.digest, **sampling}
        return {"templates": digest_templates(REPEAT_REQUEST, self.get_template_text(DESCRIBE_TEMPLATE)), **sampling}

    def describe(self, image: CaptionedImage) -> Writing[str]:
        """Ask for a description of an image, based on its caption and regions, and return it."""
        release = self.find_release(LlmScoreRelease)
        if release is not None:
            return (yield from release.describe(image, self.description_sampling))
        # `[object]: [caption]: [bounding box]` (3.1); one model writes object and caption as one label
        lines = (
            f"{parsing.collapse_spaces(region.label)}: [{region.x1}, {region.y1}, {region.x2}, {region.y2}]"
            for region in image.regions
        )
        text = fill_template(
            self.get_template_text(DESCRIBE_TEMPLATE),
            width=str(image.width),
            height=str(image.height),
            regions="\n".join(lines) or "(none was found)",
            caption=parsing.collapse_spaces(image.caption),
        )
        return (
            yield from ask(self.description_sampling.make_request(text, stop=()), read_paragraph, again=REPEAT_REQUEST)
        )


def read_paragraph(reply: str) -> str:
    """Return a reply as one paragraph; raise UnreadableReply if it is empty."""
    paragraph = parsing.collapse_spaces(parsing.strip_markup(reply))
    if not paragraph:
        raise UnreadableReply("it is empty")
    return paragraph


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmScoreConfig(DescriptionMetricConfig, JudgeMetricConfig):
    kind: Literal["llmscore"] = "llmscore"
    story: ClassVar[str] = (
        "lets models caption the image and its parts, a language model combine the captions into a description, and a "
        "judge rate how well the description fits the prompt"
    )
    judge: str = "judge"
    """Role of the language model that compares descriptions with prompts."""
    variant: Variant = "overall"
    """`overall`: a rating from 1 to `scale`, divided by `scale`; `error_counting`: 1 - n / 9 for n errors, and 0 for 9
    or more, as in the paper's figure 4; `errors`: n itself, so lower is better; `rule_enhanced`: (X2/X1)/2 + (Y2/Y1)/2,
    computed from four counts (3.2).
    """
    scale: Positive = DEFAULT_SCALE
    """Highest overall rating, called N in the paper (3.2)."""

    def __post_init__(self) -> None:
        JudgeMetricConfig.__post_init__(self)
        if self.scale != DEFAULT_SCALE and (self.variant != "overall" or self.scale < 2):
            raise ConfigError(
                f"{self.format_key('scale')}: expected {DEFAULT_SCALE}, or 2 or more with variant=overall, got "
                f"{self.scale} with variant={self.variant}; leave it at {DEFAULT_SCALE}"
            )

    @property
    def prefers_lower(self) -> bool:
        return self.variant == "errors"

    @property
    def score_range(self) -> ScoreRange:
        return (0.0, float(MAX_ERRORS)) if self.variant == "errors" else SHARE_RANGE

    @property
    def chain(self) -> tuple[str, ...]:
        return (*self.description_chain, "verdicts", "scores")

    @property
    def roles(self) -> dict[str, str]:
        return {**self.description_roles, "judge": self.judge}

    @property
    def templates(self) -> tuple[str, ...]:
        return DESCRIBE_TEMPLATE, JUDGE_TEMPLATE, self.task_template

    @property
    def task_template(self) -> str:
        return f"llmscore_{self.variant}" + ("" if self.scale == DEFAULT_SCALE else "_n")

    def estimate_calls(self, words: float) -> CallEstimate:
        return CallEstimate(1, 1)

    def list_verdict_options(self) -> dict[str, Any]:
        release = self.find_release(LlmScoreRelease)
        if release is not None:
            options = {"variant": self.variant, "wording": release.digest, **self.sampling._asdict()}
            return options if self.variant == "rule_enhanced" else {**options, "max_errors": MAX_ERRORS}
        return {**self.list_score_options(), **self.list_request_options(JUDGE_TEMPLATE, self.task_template)}

    def judge_description(self, prompt: str, description: str) -> Writing[Verdict]:
        by_rule, release = self.variant == "rule_enhanced", self.find_release(LlmScoreRelease)
        if release is not None:
            return (yield from release.judge(prompt, description, by_rule=by_rule, sampling=self.sampling))
        judged = fill_template(
            self.get_template_text(JUDGE_TEMPLATE), prompt=parsing.collapse_spaces(prompt), description=description
        )
        task = fill_template(self.get_template_text(self.task_template), scale=str(self.scale))
        scales = (Scale("rating", 1, self.scale),) if self.variant == "overall" else SCALES[self.variant]
        return (yield from self.request_verdict(judged + task, scales, _require_counts if by_rule else accept_all))

    def list_score_options(self) -> dict[str, Any]:
        return {"variant": self.variant} | ({} if self.scale == DEFAULT_SCALE else {"scale": self.scale})

    def score_ratings(self, ratings: Sequence[Rating]) -> float:
        """Return the score that the `variant` option defines, given the ratings or counts in a verdict.

        For a prompt without attributes, which the paper does not mention, `rule_enhanced` counts only objects.
        """
        rated = map_ratings(ratings)
        if self.variant == "overall":
            return rated["rating"] / self.scale
        if self.variant == "error_counting":
            return 1 - min(rated["errors"], MAX_COUNTED_ERRORS) / MAX_COUNTED_ERRORS
        if self.variant == "errors":
            return rated["errors"]
        objects = rated["objects_matched"] / rated["objects"]
        return (objects + rated["attributes_matched"] / rated["attributes"]) / 2 if rated["attributes"] else objects


def _require_counts(rated: Mapping[str, float]) -> None:
    """Raise UnreadableReply if more objects or attributes are matched than there are."""
    for name in ("objects", "attributes"):
        total, matched = rated[name], rated[f"{name}_matched"]
        if matched > total:
            raise UnreadableReply(f"{name}_matched, {matched:g}, is more than {name}, {total:g}")
