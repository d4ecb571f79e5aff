"""What the metrics share that read what models say of an image: caption, regions, description (llmscore.txt, 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from plumbline.operators.base.bounds import NotNegative, Positive
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judged import AGAIN, fill
from plumbline.operators.metrics.worded import Worded
from plumbline.operators.metrics.wordings.llmscore import LlmScoreRelease
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.writer import digest
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply, Writing, ask
from plumbline.operators.models.calls import Region

DESCRIBE = "llmscore_describe"


class Sight(NamedTuple):
    """What is told of an image to a model that does not see it."""

    caption: str
    regions: Sequence[Region]
    width: int
    """In pixels."""
    height: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribedConfig(Worded):
    """Who captions images, and who describes them by that; metrics that agree in this share captions and
    descriptions."""

    captioner: str = "captioner"
    """The role, among the sweep's models, of the captioner (the paper's is BLIP-2 with OPT 2.7B)."""
    caption_instruction: str = "Describe this image in one sentence."
    """What a captioner is told that takes instructions; others ignore it."""
    caption_tokens: Positive = 64
    """Tokens after which a caption is cut."""
    grounder: str | None = "grounder"
    """The role of the model that captions regions (the paper's is GRiT); null leaves regions out of descriptions."""
    describer: str = "judge"
    """The role of the language model that makes descriptions of captions and regions."""
    description_tokens: Positive = 512
    """Tokens after which a description is cut."""
    description_temperature: NotNegative = 0.0
    """Of the descriptions; the paper says both 0.7 and greedy."""
    description_seed: int = 0
    """Of draws at a temperature above 0."""

    @property
    def description_chain(self) -> tuple[str, ...]:
        """The stages that end in a description."""
        return ("captions", *(["regions"] if self.grounder is not None else []), "descriptions")

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (LlmScoreRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return (DESCRIBE,)

    @property
    def description_roles(self) -> dict[str, str]:
        """The models of these stages."""
        grounder = {"grounder": self.grounder} if self.grounder is not None else {}
        return {"captioner": self.captioner, **grounder, "describer": self.describer}

    def captioning(self) -> dict[str, Any]:
        """All that decides a caption, but for the captioner."""
        return {"instruction": self.caption_instruction, "max_tokens": self.caption_tokens}

    def caption(self) -> Writing[str]:
        """One request; a caption is taken as far as it goes."""
        (reply,) = yield [ReplySampling(self.caption_tokens).request(self.caption_instruction, stop=())]
        return read_prose(reply.text)

    def describing(self) -> dict[str, Any]:
        """All that decides a description, but for what is told of the image and for the model."""
        release = self.released(LlmScoreRelease)
        if release is not None:
            return {"wording": release.digest, **self._describing._asdict()}
        return {"templates": digest(AGAIN, self.template_text(DESCRIBE)), **self._describing._asdict()}

    @property
    def _describing(self) -> ReplySampling:
        return ReplySampling(self.description_tokens, self.description_temperature, self.description_seed)

    def describe(self, sight: Sight) -> Writing[str]:
        """The object-centric description of an image that is known by its caption and its regions."""
        release = self.released(LlmScoreRelease)
        if release is not None:
            return (yield from release.describe(*sight, sampling=self._describing))
        request = self._describing.request(description_prompt(sight, self.template_text(DESCRIBE)), stop=())
        return (yield from ask(request, read_prose, again=AGAIN))


def description_prompt(sight: Sight, template: str) -> str:
    """What a description is asked for with."""
    regions = "\n".join(map(_region_line, sight.regions)) or "(none was found)"
    size = {"width": str(sight.width), "height": str(sight.height)}
    return fill(template, **size, regions=regions, caption=parsing.one_line(sight.caption))


def _region_line(region: Region) -> str:
    """`[object]: [caption]: [bounding box]` (3.1), where one model gives object and caption in one."""
    return f"{parsing.one_line(region.label)}: [{region.x1}, {region.y1}, {region.x2}, {region.y2}]"


def read_prose(reply: str) -> str:
    """A reply as one paragraph; raises UnreadableReply where it is empty."""
    said = parsing.one_line(parsing.plain(reply))
    if not said:
        raise UnreadableReply("it is empty")
    return said
