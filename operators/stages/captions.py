"""The captions stage: what a captioner says of every image as a whole."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from plumbline.operators import rows, schemas
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.stages.programs import Ran
from plumbline.operators.stages.seeing import Encoded, SeeingStage, Seen, Shown, write_about
from plumbline.operators.stages.stage import Inputs


@runtime_checkable
class CaptioningMetric(Protocol):
    """A metric that has images captioned."""

    def captioning(self) -> dict[str, Any]:
        """All that decides a caption, but for the captioner."""

    def caption(self) -> Writing[str]:
        """The program that has one image captioned."""


class AnyPrompt(NamedTuple):
    """What is asked whatever the prompt."""

    def basis(self, prompt_id: str | None) -> str:
        """The same for all: the cell's recipe tells the rest."""
        return rows.basis_of()


class CaptionsStage(SeeingStage):
    """Images to captions (schema CAPTIONS), whatever their prompts."""

    name = "captions"
    version = 1
    schema = schemas.CAPTIONS
    needs = CaptioningMetric
    calls: ClassVar = {"captioner": "generate_from_images"}

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.captioning()}

    @classmethod
    def calls_of_row(cls, metric: Any, words: float) -> float:
        return 1.0

    def asked(self, inputs: Inputs) -> Mapping[str, AnyPrompt]:
        return dict.fromkeys(inputs.metrics, AnyPrompt())

    def say(self, encoded: Encoded, seen: Sequence[Seen]) -> Ran[str]:
        return write_about(self.model, encoded, seen, [self.metrics[one.metric].caption() for one in seen])

    def columns(self, said: Sequence[str], shown: Sequence[Shown]) -> dict[str, Any]:
        captions = [
            {"text": text, "width": image.width, "height": image.height}
            for text, image in zip(said, shown, strict=True)
        ]
        return {"captions": captions}
