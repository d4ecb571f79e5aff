"""The captions and regions stages: what models say of every image as a whole, and of its parts."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from plumbline.operators import schemas
from plumbline.operators.batches import isolate
from plumbline.operators.errors import RowError
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.models.calls import Region, Usage
from plumbline.operators.stages.programs import Ran
from plumbline.operators.stages.seeing import Encoded, SeeingStage, Seen, Shown, write_about


@runtime_checkable
class CaptioningMetric(Protocol):
    """A metric that has images captioned."""

    def captioning(self) -> dict[str, Any]:
        """All that decides a caption, but for the captioner."""

    def caption(self) -> Writing[str]:
        """The program that has one image captioned."""


class CaptionsStage(SeeingStage):
    """Images to captions (schema CAPTIONS), whatever their prompts."""

    name = "captions"
    version = 1
    schema = schemas.CAPTIONS
    counted = "one"
    needs = CaptioningMetric
    calls: ClassVar = {"captioner": "generate_from_images"}

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.captioning()}

    def say(self, encoded: Encoded, seen: Sequence[Seen]) -> Ran[str]:
        return write_about(self.model, encoded, seen, [self.metrics[one.metric].caption() for one in seen])

    def columns(self, said: Sequence[str], shown: Sequence[Shown]) -> dict[str, Any]:
        captions = [
            {"text": text, "width": image.width, "height": image.height}
            for text, image in zip(said, shown, strict=True)
        ]
        return {"captions": captions}


class RegionsStage(SeeingStage):
    """Images to regions (schema REGIONS), whatever their prompts."""

    name = "regions"
    version = 1
    schema = schemas.REGIONS
    counted = "one"
    needs = Metric
    calls: ClassVar = {"grounder": "regions"}

    def say(self, encoded: Encoded, seen: Sequence[Seen]) -> Ran[list[Region]]:
        told: list[list[Region] | RowError] = isolate(self.model.regions, encoded.features)
        return Ran([told[encoded.places[one.image]] for one in seen], Usage(calls=len(told)))

    def columns(self, said: Sequence[list[Region]], shown: Sequence[Shown]) -> dict[str, Any]:
        return {"regions": [[region._asdict() for region in regions] for regions in said]}
