"""The objects stage, which finds the objects that a metric asks about and, where it matters, names their colours."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from PIL import Image

from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.modules import ImageQuery, QueryResult
from plumbline.operators.models.calls import Box, Call
from plumbline.operators.models.family import Family
from plumbline.operators.stages.modules import ModulesStage
from plumbline.operators.stages.stage import StageOptions

if TYPE_CHECKING:
    import torch

MAX_OBJECTS = 16
"""Maximum number of objects of a class in an image; boxes with lower scores are dropped."""
LABEL_TEMPLATES = ("a photo of a {label} {name}", "a photo of a {label}-colored {name}", "a photo of a {label} object")
"""Texts that an object is compared with, for each label that it may have (GenEval's release)."""
Query = tuple[int, ImageQuery]
"""The index of an image and a query about the image."""


class ObjectsStage(ModulesStage):
    """Stage that turns images into detected objects (schema MODULE_ANSWERS), in descending order of their scores.

    If a query has `choices`, such as colours, `texts` has a line for each object with the choice that fits its part of
    the image best.
    """

    name = "objects"
    version = 1
    calls: ClassVar = {"detector": "detect", "classifier": "similarity"}
    optional_calls = frozenset()
    shuffles_words = False

    @classmethod
    def choose_needed_call(cls, key: str, metrics: Any, family: Family[Any]) -> Call:
        """Return the call that a model must serve; the classifier must also serve `embedding`, for its texts."""
        return "embedding" if key == "classifier" and "embedding" not in family.calls else cls.calls[key]

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self._embed_labels = lru_cache(maxsize=1000)(self._embed_uncached)

    def run_queries(
        self, name: str, wanted: Sequence[Query], images: Sequence[Image.Image]
    ) -> dict[Query, QueryResult | RowError]:
        """Return the objects for each query, with their labels if the query has choices.

        The classifier has no queries of its own.
        """
        if not wanted:
            return {}
        plain = {(image, query): (image, query._replace(choices=())) for image, query in wanted}
        found = super().run_queries(name, list(dict.fromkeys(plain.values())), images)
        results = {query: _keep_best(found[without]) for query, without in plain.items()}
        labelled = {query: result for query, result in results.items() if query[1].choices}
        return results | self._label_objects(labelled, images)

    def _label_objects(
        self, found: Mapping[Query, QueryResult | RowError], images: Sequence[Image.Image]
    ) -> dict[Query, QueryResult | RowError]:
        crops = [
            (crop_box(images[image], box), query)
            for (image, query), result in found.items()
            if isinstance(result, QueryResult)
            for box in result.boxes
        ]
        size, labels = self.image_batch.rows, list[str | RowError]()
        while len(labels) < len(crops):
            labels += isolate(self._classify, crops[len(labels) : len(labels) + size], self.image_batch)
        left = iter(labels)
        results: dict[Query, QueryResult | RowError] = {}
        for query, result in found.items():
            if isinstance(result, QueryResult):
                own = [next(left) for _ in result.boxes]
                error = next((label for label in own if isinstance(label, RowError)), None)
                results[query] = error or result._replace(text="\n".join(map(str, own)))
        return results

    def _classify(self, crops: Sequence[tuple[Image.Image, ImageQuery]]) -> list[str]:
        classifier = self.models["classifier"]
        features = classifier.encode([classifier.preprocess(crop, "released") for crop, _ in crops])
        return [
            query.choices[int((self._embed_labels(query.text, query.choices) @ feature).argmax())]
            for (_, query), feature in zip(crops, features, strict=True)
        ]

    def _embed_uncached(self, name: str, labels: tuple[str, ...]) -> "torch.Tensor":
        """Return the mean direction of the texts for each label, (labels, width)."""
        from torch.nn.functional import normalize

        texts = [template.format(label=label, name=name) for label in labels for template in LABEL_TEMPLATES]
        embedded = self.models["classifier"].encode_texts(texts).features
        return normalize(embedded.unflatten(0, (len(labels), -1)).mean(dim=1), dim=-1)


def _keep_best(result: QueryResult | RowError) -> QueryResult | RowError:
    if isinstance(result, RowError):
        return result
    return QueryResult(tuple(sorted(result.boxes, key=lambda box: box.score, reverse=True)[:MAX_OBJECTS]))


def crop_box(image: Image.Image, box: Box) -> Image.Image:
    """Return the part of the image in a box, in whole pixels: within the image, and at least one pixel."""
    left, top = (
        min(max(round(start), 0), length - 1) for start, length in zip((box.x1, box.y1), image.size, strict=True)
    )
    right, bottom = (
        min(max(round(end), start + 1), length)
        for end, start, length in zip((box.x2, box.y2), (left, top), image.size, strict=True)
    )
    cropped = image.crop((left, top, right, bottom))
    cropped.info.clear()  # it may contain the whole image as it is stored, which CLIP's preprocessing would read
    return cropped
