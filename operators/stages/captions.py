"""The captions, regions and descriptions stages: what models say of images, and a language model's summary of it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

from plumbline.operators.base import schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.judges.descriptions import Sight
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.models.calls import Region
from plumbline.operators.stages.derived import DerivedStage, ImageMaterial
from plumbline.operators.stages.image_writing import (
    EncodedBatch,
    ImageTask,
    PreprocessedImage,
    SeeingStage,
    run_about_images,
)
from plumbline.operators.stages.programs import ProgramResults, generate, run_programs


@runtime_checkable
class CaptioningMetric(Protocol):
    def captioning(self) -> dict[str, Any]:
        """Return all options that decide a caption, except the captioner."""

    def caption(self) -> Writing[str]:
        """Ask for a caption of one image."""


class CaptionsStage(SeeingStage):
    """Images to captions (schema CAPTIONS), independent of their prompts."""

    name = "captions"
    version = 1
    schema = schemas.CAPTIONS
    call_unit = "row"
    needs = CaptioningMetric
    calls: ClassVar = {"captioner": "generate_from_images"}

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.captioning()}

    def ask_model(self, encoded: EncodedBatch, seen: Sequence[ImageTask]) -> ProgramResults[str]:
        return run_about_images(self.model, encoded, seen, [self.metrics[one.metric].caption() for one in seen])

    def columns(self, results: Sequence[str], shown: Sequence[PreprocessedImage]) -> dict[str, Any]:
        captions = [
            {"text": text, "width": image.width, "height": image.height}
            for text, image in zip(results, shown, strict=True)
        ]
        return {"captions": captions}


class RegionsStage(SeeingStage):
    """Images to regions (schema REGIONS), independent of their prompts."""

    name = "regions"
    version = 1
    schema = schemas.REGIONS
    call_unit = "row"
    needs = Metric
    calls: ClassVar = {"grounder": "regions"}

    def ask_model(self, encoded: EncodedBatch, seen: Sequence[ImageTask]) -> ProgramResults[list[Region]]:
        found: list[list[Region] | RowError] = isolate(self.model.regions, encoded.features)
        return ProgramResults([found[encoded.places[one.image]] for one in seen], Usage(calls=len(found)))

    def columns(self, results: Sequence[list[Region]], shown: Sequence[PreprocessedImage]) -> dict[str, Any]:
        return {"regions": [[region._asdict() for region in regions] for regions in results]}


@runtime_checkable
class DescribingMetric(Protocol):
    """A metric that needs descriptions by a model that does not see images."""

    def describing(self) -> dict[str, Any]:
        """Return all options that decide a description, except its input and the model."""

    def describe(self, sight: Sight) -> Writing[str]:
        """Ask for a description of one image."""


class DescriptionsStage(DerivedStage):
    """Captions and regions to descriptions (schema DESCRIPTIONS), independent of the prompts."""

    name = "descriptions"
    version = 1
    schema = schemas.DESCRIPTIONS
    call_unit = "row"
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

    def make(self, wanted: Sequence[ImageMaterial]) -> ProgramResults[str]:
        programs = []
        for one in wanted:
            regions = tuple(Region(**region) for region in one.material["regions"])
            sight = Sight(one.material["text"], regions, one.material["width"], one.material["height"])
            programs.append(self.metrics[one.metric].describe(sight))
        return run_programs(programs, partial(generate, self.models["describer"]))

    def columns(self, made: Sequence[str]) -> dict[str, Any]:
        return {"descriptions": list(made)}
