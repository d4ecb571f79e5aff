"""The descriptions stage: what a language model makes of the captions of an image and of its regions."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

from plumbline.operators import schemas
from plumbline.operators.errors import RowError
from plumbline.operators.metrics.described import Sight
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.models.calls import Region
from plumbline.operators.stages.derived import DerivedStage, ImageMaterial
from plumbline.operators.stages.programs import Ran, generate, run_programs


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
