"""The resized_objects stage, which finds objects in the pixels of images resized as UniDet reads them."""

from collections.abc import Sequence
from typing import ClassVar

from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.modules import ImageQuery, QueryResult
from plumbline.operators.stages.modules import ModulesStage
from plumbline.plugins.detected_objects.compbench_rules import resize_box


class ResizedObjectsStage(ModulesStage):
    """Stage that turns images into detected objects (schema MODULE_ANSWERS), for rules with limits in pixels."""

    name = "resized_objects"
    version = 1
    calls: ClassVar = {"detector": "detect"}
    optional_calls = frozenset()
    shuffles_words = False

    def run_queries(
        self, name: str, wanted: Sequence[tuple[int, ImageQuery]], images: Sequence[Image.Image]
    ) -> dict[tuple[int, ImageQuery], QueryResult | RowError]:
        """Return the objects for each query, with resized boxes."""
        found = super().run_queries(name, wanted, images)
        return {
            (image, query): result
            if isinstance(result, RowError)
            else QueryResult(tuple(resize_box(box, *images[image].size) for box in result.boxes))
            for (image, query), result in found.items()
        }
