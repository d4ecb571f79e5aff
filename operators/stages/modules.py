"""The modules stage: observations of a detector, a text reader and a VQA model for programs of checks."""

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.images.preparing import Edit, PreparedImages
from plumbline.operators.metrics.ablation import Ablation
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.modules import Look, LookResult
from plumbline.operators.models.calls import DetectionModel, LikelihoodModel, Question, ReadingModel, Wanted
from plumbline.operators.stages.answers import (
    AskingMetric,
    QuestionedImagesStage,
    QuestionIndex,
    ShardAnswers,
    require_finite,
)
from plumbline.operators.stages.stage import StageOptions


@runtime_checkable
class LookingMetric(AskingMetric, Protocol):
    """A metric whose questions are statements that modules check."""

    def looking(self) -> dict[str, Any]:
        """Return all options that decide the looks, except questions and models."""

    def looks(self, text: str) -> tuple[Look, ...]:
        """Return the looks for one question."""


class _ImageLooks(NamedTuple):
    """One question of one metric about one image of the shard."""

    metric: str
    row: int
    image: int
    question_id: str
    looks: tuple[Look, ...]


class ModulesStage(QuestionedImagesStage):
    """Images and questions to observations (schema MODULES).

    Each image is decoded once, each look is taken once, and each model preprocesses only the images that it is asked
    about.
    """

    name = "modules"
    version = 1
    schema = schemas.MODULES
    needs = LookingMetric
    calls: ClassVar = {"model": "likelihood", "detector": "detect", "reader": "ocr"}
    optional = frozenset(calls)

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.looking()}

    @classmethod
    def ablation(cls, metric: Metric) -> Ablation | None:
        """Return the metric's ablation; a metric that only reads text asks no words that could be shuffled."""
        return metric.ablation if metric.image_ablation or "model" in metric.roles else None

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self.models = models

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> Image.Image:
        """Return the image unchanged: three models' preprocessing of each image of a shard would fill the memory."""
        return image

    def measure(self, images: PreparedImages, asked: Mapping[str, QuestionIndex]) -> Mapping[str, pa.Table]:
        before = self._usage()
        answers = {name: ShardAnswers(images, index, schemas.MODULES) for name, index in asked.items()}
        shown = [row for row, count in enumerate(images.counts) for _ in range(count)]
        for first in range(0, len(shown), self.options.image_batch):
            window = range(first, min(first + self.options.image_batch, len(shown)))
            self._look_at({image: shown[image] for image in window}, images.pixels, answers)
        usage = self._usage().minus(before)
        return {name: rows.with_usage(answered.table(), usage) for name, answered in answers.items()}

    def _usage(self) -> Usage:
        return reduce(Usage.plus, (getattr(model, "usage", Usage()) for model in self.models.values()), Usage())

    def _look_at(
        self, window: Mapping[int, int], pictures: Sequence[Image.Image], answers: Mapping[str, ShardAnswers]
    ) -> None:
        """Take all looks at a window of images; `window` has the row of each image."""
        asked = [
            _ImageLooks(name, row, image, question.question_id, self.metrics[name].looks(question.vqa_prompt.text))
            for name, answered in answers.items()
            for image, row in window.items()
            for question in answered.questions(row)
        ]
        seen: dict[tuple[int, Look], LookResult | RowError] = {}
        for model in self.models:
            wanted = dict.fromkeys((one.image, look) for one in asked for look in one.looks if look.model == model)
            seen |= self._take_looks(model, list(wanted), pictures)
        for one in asked:
            answered, results = answers[one.metric], [seen[one.image, look] for look in one.looks]
            for error in (result for result in results if isinstance(result, RowError)):
                answered.fail(one.row, error)
            sound = [result for result in results if isinstance(result, LookResult)]
            boxes = [[box._asdict() for box in result.boxes] for result in sound]
            columns = {"boxes": boxes, "texts": [result.text for result in sound]}
            answered.answers[one.row].append({"question_id": one.question_id, **columns})

    def _take_looks(
        self, name: str, wanted: Sequence[tuple[int, Look]], pictures: Sequence[Image.Image]
    ) -> dict[tuple[int, Look], LookResult | RowError]:
        """Return what one model sees by each look, or the error of an image that cannot be encoded."""
        model = self.models[name]
        encoded = self._encode(model, list(dict.fromkeys(image for image, _ in wanted)), pictures)
        features = {image: feature for image, feature in encoded.items() if not isinstance(feature, RowError)}
        places = {image: place for place, image in enumerate(features)}
        sound = [one for one in wanted if one[0] in places]
        take = partial(_LOOKS[name], model, list(features.values()))
        taken = isolate(lambda batch: take([(places[image], look) for image, look in batch]), sound)
        seen: dict[tuple[int, Look], LookResult | RowError] = {one: encoded[one[0]] for one in wanted}
        return seen | dict(zip(sound, taken, strict=True))

    def _encode(self, model: Any, shown: Sequence[int], pictures: Sequence[Image.Image]) -> dict[int, Any]:
        """Return the encoding of each image, or its error."""

        def encode(batch: Sequence[int]) -> Sequence[Any]:
            features: Sequence[Any] = model.encode([model.preprocess(pictures[image]) for image in batch])
            return features

        return dict(zip(shown, isolate(encode, shown, self.image_batch), strict=True))


Looking = Sequence[tuple[int, Look]]
"""Looks with the index of their image among the features."""


def _detect(model: DetectionModel, features: Sequence[Any], looking: Looking) -> list[LookResult | RowError]:
    wanted = [Wanted(image, look.text, look.box_threshold, look.text_threshold) for image, look in looking]
    found = model.detect(features, wanted)
    return [boxes if isinstance(boxes, RowError) else LookResult(boxes=tuple(boxes)) for boxes in found]


def _read(model: ReadingModel, features: Sequence[Any], looking: Looking) -> list[LookResult | RowError]:
    texts = model.ocr([features[image] for image, _ in looking])
    return [text if isinstance(text, RowError) else LookResult(text=text) for text in texts]


def _answer(model: LikelihoodModel, features: Sequence[Any], looking: Looking) -> list[LookResult | RowError]:
    """Return the likeliest choice for looks with choices, and the model's own words for others."""
    asked = {one: Question(one[0], one[1].text, one[1].choices) for one in looking}
    weighed = {one: question for one, question in asked.items() if question.choices}
    worded = {one: question for one, question in asked.items() if not question.choices}
    logprobs = model.likelihood(features, [*weighed.values()]) if weighed else []
    replies = model.reply(features, [*worded.values()]) if worded else []
    chosen = map(_likeliest, weighed.values(), logprobs)
    seen = dict(zip([*weighed, *worded], [*chosen, *replies], strict=True))
    return [one if isinstance(one, RowError) else LookResult(text=one) for one in map(seen.__getitem__, looking)]


def _likeliest(question: Question, logprobs: list[list[float]] | RowError) -> str | RowError:
    numbers = require_finite(logprobs)
    if isinstance(numbers, RowError):
        return numbers
    sums = [math.fsum(choice) for choice in numbers]
    return question.choices[sums.index(max(sums))]


_LOOKS: Mapping[str, Any] = {"detector": _detect, "reader": _read, "model": _answer}
