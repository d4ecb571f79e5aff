"""The captions, regions and descriptions stages: models caption images, find regions, and summarise both."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from plumbline.operators.base import schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.judges.llmscore import CaptionedImage
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.models.calls import Region
from plumbline.operators.stages.derived import DerivedStage
from plumbline.operators.stages.image_writing import ImageTask, ImageWritingStage
from plumbline.operators.stages.programs import ProgramResults


@runtime_checkable
class CaptioningMetric(Protocol):
    def list_caption_options(self) -> dict[str, Any]:
        """Return all options that determine a caption, except the captioner."""

    def caption(self) -> Writing[str]:
        """Ask for a caption of one image and return it."""


class CaptionsStage(ImageWritingStage):
    """Stage that captions images (schema CAPTIONS), independently of their prompts."""

    name = "captions"
    version = 1
    schema = schemas.CAPTIONS
    call_unit = "row"
    metric_type = CaptioningMetric
    calls: ClassVar = {"captioner": "generate_from_images"}

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.list_caption_options()}

    def program(self, task: ImageTask) -> Writing[dict[str, Any]]:
        text = yield from self.metrics[task.metric].caption()
        return {"text": text, "width": task.image.width, "height": task.image.height}

    def columns(self, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"captions": results}


class RegionsStage(ImageWritingStage):
    """Stage that finds and captions regions of images (schema REGIONS), independently of their prompts."""

    name = "regions"
    version = 1
    schema = schemas.REGIONS
    call_unit = "row"
    metric_type = Metric
    calls: ClassVar = {"grounder": "regions"}

    def run_tasks(self, tasks: Sequence[ImageTask], features: Sequence[Any]) -> ProgramResults[list[Region]]:
        found: list[list[Region] | RowError] = isolate(self.model.regions, features)
        return ProgramResults([found[task.feature] for task in tasks], Usage(calls=len(found)))

    def columns(self, results: Sequence[list[Region]]) -> dict[str, Any]:
        return {"regions": [[region._asdict() for region in regions] for regions in results]}


@runtime_checkable
class DescribingMetric(Protocol):
    """Protocol for metrics that need descriptions written by a model that does not see the images."""

    def list_description_options(self) -> dict[str, Any]:
        """Return all options that determine a description, except the captions and the describer."""

    def describe(self, image: CaptionedImage) -> Writing[str]:
        """Ask for a description of one image, given captions of its parts, and return it."""


class DescriptionsStage(DerivedStage):
    """Stage that turns captions and regions into descriptions (schema DESCRIPTIONS), independently of the prompts."""

    name = "descriptions"
    version = 1
    schema = schemas.DESCRIPTIONS
    call_unit = "row"
    metric_type = DescribingMetric
    calls: ClassVar = {"describer": "generate"}
    side_by_side = True

    @classmethod
    def list_input_stages(cls, metric: Any) -> tuple[str, ...]:
        return tuple(stage for stage in ("captions", "regions") if stage in metric.chain)

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.list_description_options()}

    def make_image_inputs(
        self, metric: Any, read: Mapping[str, Mapping[str, Any]], text: str | RowError
    ) -> list[Any] | RowError:
        captions = read["captions"]["captions"]
        regions = read["regions"]["regions"] if "regions" in read else [[]] * len(captions)
        return [{**caption, "regions": of_image} for caption, of_image in zip(captions, regions, strict=True)]

    def program(self, metric: DescribingMetric, image: Mapping[str, Any]) -> Writing[str]:
        regions = tuple(Region(**region) for region in image["regions"])
        return metric.describe(CaptionedImage(image["text"], regions, image["width"], image["height"]))

    def columns(self, results: Sequence[str]) -> dict[str, Any]:
        return {"descriptions": results}
