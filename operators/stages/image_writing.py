"""Base class for stages whose model writes text about each image, encoding each image once for all metrics."""

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
from plumbline.operators.stages.images import ImagesStage, QuestionsByPrompt, select_images_of_view
from plumbline.operators.stages.programs import (
    ProgramRequest,
    ProgramResults,
    Reply,
    generate_from_images,
    run_programs,
)
from plumbline.operators.stages.stage import StageOptions


class PreprocessedImage(NamedTuple):
    """An image's size, and the model's preprocessed input for each view that the metrics ask about."""

    width: int
    """Width of the decoded image in pixels."""
    height: int
    views: tuple[Any, ...]
    """The model's preprocessed input for each view."""


class ImageTask(NamedTuple):
    """An image that the model writes about, for one metric."""

    metric: str
    questions: Any
    """The metric's questions about the shard's images."""
    row: ImageRow
    row_number: int
    """Index of the row in the shard's table."""
    image: PreprocessedImage
    feature: int
    """Index of the first encoded view of the image; the other views follow it."""


class ImageWritingStage(ImagesStage):
    """Base class for stages whose model writes about images; a row with several images gets an output for each."""

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self.side_by_side = self.model.side_by_side

    def program(self, task: ImageTask) -> Writing[Any]:
        """Return a program that requests what the metric needs to know about the task's image.

        It is not called if `run_tasks` is overridden.
        """
        raise NotImplementedError

    @abstractmethod
    def columns(self, results: Sequence[Any]) -> dict[str, Any]:
        """Return one row's values for the stage's columns, by name, given the results for the row's images."""

    def run_tasks(self, tasks: Sequence[ImageTask], features: Sequence[Any]) -> ProgramResults[Any]:
        """Run the program of each task, and return the results; `features` contains the encoded views of all images."""

        def answer_requests(asked: Sequence[ProgramRequest]) -> Sequence[Reply]:
            requests = [ImageRequest(tasks[one.program].feature + one.request.view, one.request) for one in asked]
            return generate_from_images(self.model, features, requests)

        return run_programs([self.program(task) for task in tasks], answer_requests)

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> PreprocessedImage:
        shown = [select_images_of_view(view, image, edit) for view in self.views]
        views = [
            self.model.preprocess(*images) if len(images) == 1 else self.model.preprocess_several(images)
            for images in shown
        ]
        return PreprocessedImage(image.width, image.height, tuple(views))

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> PreprocessedImage:
        return PreprocessedImage(frames[0].width, frames[0].height, (self.model.preprocess_video(frames, seconds),))

    def measure(self, images: PreparedImages, questions: Mapping[str, QuestionsByPrompt]) -> Mapping[str, pa.Table]:
        numbered = zip(images.rows, images.row_numbers, images.counts, strict=True)
        row_of = [(row, number) for row, number, count in numbered for _ in range(count)]
        pixels: list[PreprocessedImage] = images.pixels
        results: dict[str, list[Any]] = {name: [None] * len(pixels) for name in questions}
        usages: list[Usage] = []

        def encode_window(window: Sequence[PreprocessedImage]) -> list[Sequence[Any]]:
            encoded = iter(self.model.encode([pixels for image in window for pixels in image.views]))
            return [[next(encoded) for _ in image.views] for image in window]

        def run_window(first: int, encoded: Sequence[Any], *, raise_oom: bool) -> None:
            features: list[Any] = []
            feature_of: dict[int, int] = {}
            for number, views in enumerate(encoded, first):
                if isinstance(views, RowError):
                    for of_metric in results.values():
                        of_metric[number] = views
                else:
                    feature_of[number] = len(features)
                    features += views
            numbers = [(name, number) for name in questions for number in feature_of]
            ran = self.run_tasks(
                [
                    ImageTask(name, questions[name], *row_of[number], pixels[number], feature_of[number])
                    for name, number in numbers
                ],
                features,
            )
            usages.append(ran.usage)
            for (name, number), result in zip(numbers, ran.results, strict=True):
                results[name][number] = result

        # A model with its own batching gets the whole shard at once, together with its other shards.
        size = BatchSize(len(pixels)) if self.side_by_side else self.image_batch
        encode_in_windows(encode_window, pixels, size, run_window)
        usage = reduce(Usage.plus, usages, Usage())
        return {
            name: rows.attach_usage(self.tabulate(images, questions[name], of_metric, self.columns), usage)
            for name, of_metric in results.items()
        }
