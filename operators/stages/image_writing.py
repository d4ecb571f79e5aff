"""Base class of stages whose model writes about each image; an image is encoded once for all metrics."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows
from plumbline.operators.base.batches import BatchSize, encode_in_windows
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.images.preparing import Edit, PreparedImages
from plumbline.operators.images.rows import ImageRow
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.models.calls import ImageRequest
from plumbline.operators.stages.images import ImagesStage, PromptBasis, basis_with_sources, images_of_view
from plumbline.operators.stages.programs import (
    ProgramRequest,
    ProgramResults,
    Reply,
    generate_from_images,
    run_programs,
)
from plumbline.operators.stages.stage import StageOptions


class PreprocessedImage(NamedTuple):
    """An image, preprocessed in every view of the metrics."""

    width: int
    """Width of the decoded image in pixels."""
    height: int
    views: tuple[Any, ...]
    """Output of the model's preprocessing for each view."""


class EncodedBatch(NamedTuple):
    """Images that a model has encoded together."""

    features: list[Any]
    places: dict[int, int]
    """Index of each image's first view among the features; its other views follow."""
    errors: dict[int, RowError]
    """Errors of images that could not be encoded."""


class ImageTask(NamedTuple):
    """An image of the shard, and a metric that the model is asked for."""

    metric: str
    image: int
    """Index among the shard's images."""
    row: ImageRow
    asked: Any


class SeeingStage(ImagesStage):
    """Base of stages whose model writes about images; a row of several images has an output for each of them.

    The tables' metadata has the usage of the model's calls, for all metrics together (rows.with_usage).
    """

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self.side_by_side = self.model.side_by_side

    @abstractmethod
    def ask_model(self, encoded: EncodedBatch, seen: Sequence[ImageTask]) -> ProgramResults[Any]: ...

    @abstractmethod
    def columns(self, results: Sequence[Any], shown: Sequence[PreprocessedImage]) -> dict[str, Any]:
        """Return the columns of a row from the results for its images."""

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> PreprocessedImage:
        shown = [images_of_view(view, image, edit) for view in self.views]
        views = [
            self.model.preprocess(*images) if len(images) == 1 else self.model.preprocess_several(images)
            for images in shown
        ]
        return PreprocessedImage(image.width, image.height, tuple(views))

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> PreprocessedImage:
        return PreprocessedImage(frames[0].width, frames[0].height, (self.model.preprocess_video(frames, seconds),))

    def _encode(self, images: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the encoding of every view of each image."""
        made = iter(self.model.encode([pixels for views in images for pixels in views]))
        return [tuple(next(made) for _ in views) for views in images]

    def measure(self, images: PreparedImages, asked: Mapping[str, PromptBasis]) -> Mapping[str, pa.Table]:
        row_of = [row for row, count in zip(images.rows, images.counts, strict=True) for _ in range(count)]
        pixels = [shown.views for shown in images.pixels]
        size = BatchSize(len(pixels)) if self.side_by_side else self.image_batch
        results: dict[tuple[str, int], Any] = {}
        usages: list[Usage] = []

        def use(first: int, made: Sequence[Any], *, crowded: bool) -> None:
            encoded = _collect_features(first, made)
            seen = [ImageTask(name, image, row_of[image], asked[name]) for name in asked for image in encoded.places]
            answers, took = self.ask_model(encoded, seen)
            usages.append(took)
            results.update({(one.metric, one.image): answer for one, answer in zip(seen, answers, strict=True)})
            results.update({(name, image): error for name in asked for image, error in encoded.errors.items()})

        encode_in_windows(self._encode, pixels, size, use)
        usage = reduce(Usage.plus, usages, Usage())
        return {name: rows.with_usage(self._table(images, name, asked[name], results), usage) for name in asked}

    def _table(
        self, images: PreparedImages, metric: str, asked: PromptBasis, results: Mapping[tuple[str, int], Any]
    ) -> pa.Table:
        records, first = [], 0
        all_rows = zip(images.rows, images.digests, images.sources, images.errors, images.counts, strict=True)
        for row, digest, source, error, count in all_rows:
            indices = range(first, first := first + count)
            outputs = [results[metric, image] for image in indices]
            failed = error or next((output for output in outputs if isinstance(output, RowError)), None)
            if failed is not None:
                records.append(row.row(error=rows.error_value(failed), image_digest=digest))
                continue
            columns = self.columns(outputs, [images.pixels[image] for image in indices])
            basis = basis_with_sources(asked.basis(row.prompt_id), source)
            records.append(row.row(**columns, image_digest=digest, basis=basis))
        return rows.table(records, self.schema)


def _collect_features(first: int, made: Sequence[Any]) -> EncodedBatch:
    """Collect the encoded views; the first image has the index `first`."""
    encoded = EncodedBatch([], {}, {})
    for image, views in enumerate(made, first):
        if isinstance(views, RowError):
            encoded.errors[image] = views
        else:
            encoded.places[image] = len(encoded.features)
            encoded.features.extend(views)
    return encoded


def run_about_images(
    model: Any, encoded: EncodedBatch, seen: Sequence[ImageTask], programs: Sequence[Writing[Any]]
) -> ProgramResults[Any]:
    """Run a program about each of the images."""

    def answer(asked: Sequence[ProgramRequest]) -> Sequence[Reply]:
        places = [encoded.places[seen[one.program].image] + one.request.view for one in asked]
        requests = [ImageRequest(place, one.request) for place, one in zip(places, asked, strict=True)]
        return generate_from_images(model, encoded.features, requests)

    return run_programs(programs, answer)
