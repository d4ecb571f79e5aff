"""The modules stage: a detector, a text reader and a VQA model answer the queries of evaluation programs."""

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.images.preparing import Edit, PreparedImages
from plumbline.operators.metrics.modules import ImageQuery, QueryResult
from plumbline.operators.models.calls import DetectionModel, DetectionRequest, LikelihoodModel, Question, ReadingModel
from plumbline.operators.stages.answers import (
    QuestionedImagesStage,
    QuestionIndex,
    VqaMetric,
    make_answer_collectors,
    require_finite,
)
from plumbline.operators.stages.stage import StageOptions


@runtime_checkable
class ModuleMetric(VqaMetric, Protocol):
    """Protocol for metrics whose questions are statements that modules check."""

    def list_query_options(self) -> dict[str, Any]:
        """Return all options that determine the queries, except questions and models."""

    def list_image_queries(self, text: str) -> tuple[ImageQuery, ...]:
        """Return the queries that together answer the question `text`, which is one statement of a program."""


class ModulesStage(QuestionedImagesStage):
    """Stage that turns images and questions into observations (schema MODULE_ANSWERS).

    Each image is decoded once and each query is computed once. Each model preprocesses only the images that it is asked
    about.
    """

    name = "modules"
    version = 1
    schema = schemas.MODULE_ANSWERS
    metric_type = ModuleMetric
    calls: ClassVar = {"model": "likelihood", "detector": "detect", "reader": "ocr"}
    optional_calls = frozenset(calls)
    shuffles_words = True

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.list_query_options()}

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self.models = models

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> Image.Image:
        """Return the image unchanged, because preprocessing a whole shard for three models would exhaust memory."""
        return image

    def measure(self, images: PreparedImages, questions: Mapping[str, QuestionIndex]) -> Mapping[str, pa.Table]:
        before = self._sum_usage()
        answers = make_answer_collectors(images, questions)
        for first in range(0, len(images.pixels), self.options.image_batch):
            window = range(first, min(first + self.options.image_batch, len(images.pixels)))
            asked = [
                (image, of_metric[image], question, self.metrics[name].list_image_queries(question.vqa_prompt.text))
                for name, of_metric in answers.items()
                for image in window
                for question in of_metric[image].questions
            ]
            seen: dict[tuple[int, ImageQuery], QueryResult | RowError] = {}
            for model in self.models:
                wanted = dict.fromkeys(
                    (image, query) for image, *_, queries in asked for query in queries if query.model == model
                )
                seen |= self.run_queries(model, list(wanted), images.pixels)
            for image, of_image, question, queries in asked:
                results = [seen[image, query] for query in queries]
                error = next((result for result in results if isinstance(result, RowError)), None)
                sound = [result for result in results if isinstance(result, QueryResult)]
                boxes = [[box._asdict() for box in result.boxes] for result in sound]
                columns = {"boxes": boxes, "texts": [result.text for result in sound]}
                of_image.add(error or {"question_id": question.question_id, **columns})
        usage = self._sum_usage().minus(before)
        return {
            name: rows.attach_usage(self.tabulate_answers(images, questions[name], of_metric), usage)
            for name, of_metric in answers.items()
        }

    def _sum_usage(self) -> Usage:
        return reduce(Usage.plus, (getattr(model, "usage", Usage()) for model in self.models.values()), Usage())

    def run_queries(
        self, name: str, wanted: Sequence[tuple[int, ImageQuery]], images: Sequence[Image.Image]
    ) -> dict[tuple[int, ImageQuery], QueryResult | RowError]:
        """Return the result of each query for the model `name`; a query is a pair with the index of its image."""
        model = self.models[name]

        def encode_batch(batch: Sequence[int]) -> Sequence[Any]:
            features: Sequence[Any] = model.encode([model.preprocess(images[image]) for image in batch])
            return features

        shown = list(dict.fromkeys(image for image, _ in wanted))
        encoded = dict(zip(shown, isolate(encode_batch, shown, self.image_batch), strict=True))
        features = {image: feature for image, feature in encoded.items() if not isinstance(feature, RowError)}
        indices = {image: index for index, image in enumerate(features)}
        sound = [(image, query) for image, query in wanted if image in features]
        take = partial(_RUNNERS[name], model, list(features.values()))
        results = isolate(lambda batch: take([(indices[image], query) for image, query in batch]), sound)
        failed = {(image, query): encoded[image] for image, query in wanted if image not in features}
        return failed | dict(zip(sound, results, strict=True))


IndexedQueries = Sequence[tuple[int, ImageQuery]]
"""Pairs of an image's index in the list of features and a query about that image."""


def _run_detector(
    model: DetectionModel, features: Sequence[Any], queries: IndexedQueries
) -> list[QueryResult | RowError]:
    wanted = [
        DetectionRequest(image, query.text, query.box_threshold, query.text_threshold) for image, query in queries
    ]
    found = model.detect(features, wanted)
    return [boxes if isinstance(boxes, RowError) else QueryResult(boxes=tuple(boxes)) for boxes in found]


def _run_reader(model: ReadingModel, features: Sequence[Any], queries: IndexedQueries) -> list[QueryResult | RowError]:
    texts = model.ocr([features[image] for image, _ in queries])
    return [text if isinstance(text, RowError) else QueryResult(text=text) for text in texts]


def _run_vqa_model(
    model: LikelihoodModel, features: Sequence[Any], queries: IndexedQueries
) -> list[QueryResult | RowError]:
    asked = [Question(image, query.text, query.choices) for image, query in queries]
    closed = list(dict.fromkeys(question for question in asked if question.choices))
    free = list(dict.fromkeys(question for question in asked if not question.choices))
    answers: dict[Question, str | RowError] = {}
    for question, outcome in zip(closed, model.likelihood(features, closed) if closed else (), strict=True):
        logprobs = require_finite(outcome)
        if isinstance(logprobs, RowError):
            answers[question] = logprobs
        else:
            sums = [math.fsum(choice) for choice in logprobs]
            answers[question] = question.choices[sums.index(max(sums))]
    answers |= zip(free, model.reply(features, free) if free else (), strict=True)
    found = [answers[question] for question in asked]
    return [answer if isinstance(answer, RowError) else QueryResult(text=answer) for answer in found]


_RUNNERS: Mapping[str, Any] = {"detector": _run_detector, "reader": _run_reader, "model": _run_vqa_model}
