"""Base class of metrics that read what models say of an image: caption, regions, description (llmscore.txt, 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from plumbline.operators.base.bounds import NotNegative, Positive
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import AGAIN, fill
from plumbline.operators.metrics.wording import WordedMetric, template_digest
from plumbline.operators.metrics.wordings.llmscore import LlmScoreRelease
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply, Writing, ask
from plumbline.operators.models.calls import Region

DESCRIBE = "llmscore_describe"


class Sight(NamedTuple):
    """An image described to a model that does not see it."""

    caption: str
    regions: Sequence[Region]
    width: int
    """Width in pixels."""
    height: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribedConfig(WordedMetric):
    """Models for captions and descriptions of images.

    Metrics with equal options share captions and descriptions.
    """

    captioner: str = "captioner"
    """Role of the captioner (the paper's is BLIP-2 with OPT 2.7B)."""
    caption_instruction: str = "Describe this image in one sentence."
    """Instruction for captioners that take instructions; others ignore it."""
    caption_tokens: Positive = 64
    """Maximum number of tokens of a caption."""
    grounder: str | None = "grounder"
    """Role of the model that captions regions (the paper's is GRiT); null leaves regions out of descriptions."""
    describer: str = "judge"
    """Role of the language model that writes descriptions from captions and regions."""
    description_tokens: Positive = 512
    """Tokens after which a description is cut."""
    description_temperature: NotNegative = 0.0
    """Temperature of the descriptions; the paper has both 0.7 and greedy."""
    description_seed: int = 0
    """Seed of the draws at a temperature above 0."""

    @property
    def description_chain(self) -> tuple[str, ...]:
        """Stages that end in a description."""
        return ("captions", *(["regions"] if self.grounder is not None else []), "descriptions")

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (LlmScoreRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return (DESCRIBE,)

    @property
    def description_roles(self) -> dict[str, str]:
        """Roles of the models of these stages."""
        grounder = {"grounder": self.grounder} if self.grounder is not None else {}
        return {"captioner": self.captioner, **grounder, "describer": self.describer}

    def captioning(self) -> dict[str, Any]:
        """Return all options that decide a caption, except the captioner."""
        return {"instruction": self.caption_instruction, "max_tokens": self.caption_tokens}

    def caption(self) -> Writing[str]:
        """Ask for a caption once; a caption that was cut counts too."""
        (reply,) = yield [ReplySampling(self.caption_tokens).request(self.caption_instruction, stop=())]
        return read_prose(reply.text)

    def describing(self) -> dict[str, Any]:
        """Return all options that decide a description, except its input and the model."""
        release = self.released(LlmScoreRelease)
        if release is not None:
            return {"wording": release.digest, **self._describing._asdict()}
        return {"templates": template_digest(AGAIN, self.template_text(DESCRIBE)), **self._describing._asdict()}

    @property
    def _describing(self) -> ReplySampling:
        return ReplySampling(self.description_tokens, self.description_temperature, self.description_seed)

    def describe(self, sight: Sight) -> Writing[str]:
        """Ask for an object-centric description of an image, given its caption and regions."""
        release = self.released(LlmScoreRelease)
        if release is not None:
            return (yield from release.describe(*sight, sampling=self._describing))
        request = self._describing.request(description_prompt(sight, self.template_text(DESCRIBE)), stop=())
        return (yield from ask(request, read_prose, again=AGAIN))


def description_prompt(sight: Sight, template: str) -> str:
    """Return the request for a description."""
    # `[object]: [caption]: [bounding box]` (3.1); one model writes object and caption as one label
    lines = (
        f"{parsing.one_line(region.label)}: [{region.x1}, {region.y1}, {region.x2}, {region.y2}]"
        for region in sight.regions
    )
    regions = "\n".join(lines) or "(none was found)"
    size = {"width": str(sight.width), "height": str(sight.height)}
    return fill(template, **size, regions=regions, caption=parsing.one_line(sight.caption))


def read_prose(reply: str) -> str:
    """Return a reply as one paragraph; raise UnreadableReply if it is empty."""
    said = parsing.one_line(parsing.plain(reply))
    if not said:
        raise UnreadableReply("it is empty")
    return said
