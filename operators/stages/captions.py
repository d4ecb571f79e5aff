"""The captions, regions and descriptions stages: what models say of images, and what a language model makes of that."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

from plumbline.operators.base import schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.described import Sight
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.models.calls import Region
from plumbline.operators.stages.derived import DerivedStage, ImageMaterial
from plumbline.operators.stages.programs import Ran, generate, run_programs
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


@runtime_checkable
class DescribingMetric(Protocol):
    """A metric that has images described by a model that does not see them."""

    def describing(self) -> dict[str, Any]:
        """All that decides a description, but for what is told of the image and for the model."""

    def describe(self, sight: Sight) -> Writing[str]:
        """The program that has one image described."""


class DescriptionsStage(DerivedStage):
    """Captions and regions to descriptions (schema DESCRIPTIONS), whatever the prompts."""

    name = "descriptions"
    version = 1
    schema = schemas.DESCRIPTIONS
    counted = "one"
    needs = DescribingMetric
    calls: ClassVar = {"describer": "generate"}
    side_by_side = True

    @classmethod
    def reads(cls, metric: Any) -> tuple[str, ...]:
        return tuple(stage for stage in ("captions", "regions") if stage in metric.chain)

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.describing()}

    def materials(
        self, metric: Any, read: Mapping[str, Mapping[str, Any]], text: str | RowError
    ) -> list[Any] | RowError:
        captions = read["captions"]["captions"]
        regions = read["regions"]["regions"] if "regions" in read else [[]] * len(captions)
        return [{**caption, "regions": of_image} for caption, of_image in zip(captions, regions, strict=True)]

    def make(self, wanted: Sequence[ImageMaterial]) -> Ran[str]:
        programs = [self.metrics[one.metric].describe(_sight(one.material)) for one in wanted]
        return run_programs(programs, partial(generate, self.models["describer"]))

    def columns(self, made: Sequence[str]) -> dict[str, Any]:
        return {"descriptions": list(made)}


def _sight(material: Mapping[str, Any]) -> Sight:
    regions = tuple(Region(**region) for region in material["regions"])
    return Sight(material["text"], regions, material["width"], material["height"])
