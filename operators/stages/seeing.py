"""What the stages share whose model says something of each image: an image is encoded once, whoever asks about it."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows
from plumbline.operators.base.batches import BatchSize, in_windows
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.images.preparing import Edit, PreparedImages
from plumbline.operators.images.rows import ImageRow
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.models.calls import ImageRequest
from plumbline.operators.stages.images import ImagesStage, PromptBasis, basis_beside, shown_in
from plumbline.operators.stages.programs import ProgramRequest, Ran, Reply, generate_from_images, run_programs
from plumbline.operators.stages.stage import StageOptions


class Shown(NamedTuple):
    """An image as the model is shown it, in every view of the metrics."""

    width: int
    """Of the image as it was decoded, in pixels."""
    height: int
    views: tuple[Any, ...]
    """What the model's preprocessing made of each view."""


class Encoded(NamedTuple):
    """Images that a model has encoded together."""

    features: list[Any]
    places: dict[int, int]
    """By image of the shard, the place of its first view among the features; its other views follow."""
    errors: dict[int, RowError]
    """Of the images that could not be encoded."""


class Seen(NamedTuple):
    """One image that one metric wants to know about."""

    metric: str
    image: int
    """Among the shard's."""
    row: ImageRow
    asked: Any


class SeeingStage(ImagesStage):
    """Images to what a model says of each; a row of several images holds what it says of each of them.

    The tables' metadata has what the model's calls took, for all the metrics together (rows.with_usage).
    """

    joins = True

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self.side_by_side = self.model.side_by_side

    @abstractmethod
    def say(self, encoded: Encoded, seen: Sequence[Seen]) -> Ran[Any]:
        """What the model says of each of the images."""

    @abstractmethod
    def columns(self, said: Sequence[Any], shown: Sequence[Shown]) -> dict[str, Any]:
        """The columns that what it says of a row's images fills."""

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> Shown:
        views = tuple(self._pixels(shown_in(view, image, edit)) for view in self.views)
        return Shown(image.width, image.height, views)

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> Shown:
        return Shown(frames[0].width, frames[0].height, (self.model.preprocess_video(frames, seconds),))

    def _pixels(self, pictures: Sequence[Image.Image]) -> Any:
        return self.model.preprocess(*pictures) if len(pictures) == 1 else self.model.preprocess_several(pictures)

    def _encode(self, images: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """What the model makes of every view of each image."""
        made = iter(self.model.encode([pixels for views in images for pixels in views]))
        return [tuple(next(made) for _ in views) for views in images]

    def measure(self, images: PreparedImages, asked: Mapping[str, PromptBasis]) -> Mapping[str, pa.Table]:
        row_of = [row for row, count in zip(images.rows, images.counts, strict=True) for _ in range(count)]
        pixels = [shown.views for shown in images.pixels]
        size = BatchSize(len(pixels)) if self.side_by_side else self.image_batch
        said: dict[tuple[str, int], Any] = {}
        usages: list[Usage] = []

        def use(first: int, made: Sequence[Any], *, crowded: bool) -> None:
            encoded = _encoded(first, made)
            seen = [Seen(name, image, row_of[image], asked[name]) for name in asked for image in encoded.places]
            results, took = self.say(encoded, seen)
            usages.append(took)
            said.update({(one.metric, one.image): result for one, result in zip(seen, results, strict=True)})
            said.update({(name, image): error for name in asked for image, error in encoded.errors.items()})

        in_windows(self._encode, pixels, size, use)
        usage = reduce(Usage.plus, usages, Usage())
        return {name: rows.with_usage(self._table(images, name, asked[name], said), usage) for name in asked}

    def _table(
        self, images: PreparedImages, metric: str, asked: PromptBasis, said: Mapping[tuple[str, int], Any]
    ) -> pa.Table:
        records, first = [], 0
        of_rows = zip(images.rows, images.digests, images.sources, images.errors, images.counts, strict=True)
        for row, digest, source, error, count in of_rows:
            of_row = range(first, first := first + count)
            results = [said[metric, image] for image in of_row]
            failed = error or next((result for result in results if isinstance(result, RowError)), None)
            if failed is not None:
                records.append(row.row(error=rows.error_value(failed), image_digest=digest))
                continue
            columns = self.columns(results, [images.pixels[image] for image in of_row])
            basis = basis_beside(asked.basis(row.prompt_id), source)
            records.append(row.row(**columns, image_digest=digest, basis=basis))
        return rows.table(records, self.schema)


def _encoded(first: int, made: Sequence[Any]) -> Encoded:
    """What was made of the views of the images from the one numbered `first` on."""
    encoded = Encoded([], {}, {})
    for image, views in enumerate(made, first):
        if isinstance(views, RowError):
            encoded.errors[image] = views
        else:
            encoded.places[image] = len(encoded.features)
            encoded.features.extend(views)
    return encoded


def write_about(model: Any, encoded: Encoded, seen: Sequence[Seen], programs: Sequence[Writing[Any]]) -> Ran[Any]:
    """Runs a program about each of the images."""

    def answer(asked: Sequence[ProgramRequest]) -> Sequence[Reply]:
        places = [encoded.places[seen[one.program].image] + one.request.view for one in asked]
        requests = [ImageRequest(place, one.request) for place, one in zip(places, asked, strict=True)]
        return generate_from_images(model, encoded.features, requests)

    return run_programs(programs, answer)
