"""The similarities stage: how well every image fits the text of its prompt, as one number."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
from PIL import Image

from plumbline.operators import rows, schemas
from plumbline.operators.batches import isolate
from plumbline.operators.errors import RowError
from plumbline.operators.images import Edit, PreparedImages
from plumbline.operators.models.calls import Compared, Measure, Pair, PixelRule, SimilarityModel
from plumbline.operators.models.family import Family
from plumbline.operators.stages.images import ImagesStage
from plumbline.operators.stages.stage import Inputs, StageOptions, remembered, text_of, texts_of


@runtime_checkable
class ComparingMetric(Protocol):
    """A metric that compares images with texts."""

    @property
    def pixels(self) -> PixelRule:
        """How images are made the model's input."""

    @property
    def measure(self) -> Measure:
        """What the model's number is to be."""

    def comparing(self) -> dict[str, str]:
        """All that decides what is compared."""

    def text(self, prompt: str) -> str:
        """The text that images of a prompt are compared with."""


class PromptTexts(NamedTuple):
    """What one metric compares the images of each prompt with."""

    prompts: Mapping[str, str]
    metric: ComparingMetric

    def text(self, prompt_id: str | None) -> str | RowError:
        text = text_of(self.prompts, prompt_id)
        return self.metric.text(text) if isinstance(text, str) else text

    def basis(self, prompt_id: str | None) -> str | None:
        text = self.text(prompt_id)
        return rows.basis_of(text) if isinstance(text, str) else None


class Comparison(NamedTuple):
    """What the images of a shard are compared with, and how."""

    texts: tuple[str | RowError, ...]
    """Beside each image, its text, or why it has none."""
    measure: Measure
    pixels: PixelRule


class SimilaritiesStage(ImagesStage):
    """Images and prompts to similarities (schema SIMILARITIES), every image encoded once for all metrics."""

    name = "similarities"
    version = 3
    schema = schemas.SIMILARITIES
    needs = ComparingMetric
    calls: ClassVar = {"model": "similarity"}
    words = True

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": {"kind": metric.kind, **metric.comparing()}}

    @classmethod
    def refusal(cls, metric: Any, family: Family[Any]) -> str | None:
        if metric.measure not in family.measures:
            return f"the measure {metric.measure!r} of a model that gives {' or '.join(family.measures)}"
        if "prompt" not in family.compares:
            return f"an image compared with its prompt, of a model that takes {' or '.join(family.compares)}"
        rating = getattr(metric, "rating", None)  # only `similarity` takes one of a model's several numbers
        if rating is not None and rating not in family.ratings:
            return f"the rating {rating!r} of a model that gives {' or '.join(family.ratings) or 'none'}"
        if metric.pixels not in family.pixels:
            return f"pixels={metric.pixels} of a model that takes {' or '.join(family.pixels)}"
        return None

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self.model: SimilarityModel
        self.rules = sorted({metric.pixels for metric in metrics.values()})
        self._texts = remembered(texts_of)

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> Mapping[PixelRule, Any]:
        """One image by every rule."""
        return {rule: self.model.preprocess(image, rule) for rule in self.rules}

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> Mapping[PixelRule, Any]:
        """The frames of one video: models that take videos know one rule."""
        video = super().preprocess_video(frames, seconds)
        return dict.fromkeys(self.rules, video)

    def asked(self, inputs: Inputs) -> Mapping[str, PromptTexts]:
        prompts = self._texts(inputs.prompts)
        return {name: PromptTexts(prompts, self.metrics[name]) for name in inputs.metrics}

    def measure(self, images: PreparedImages, asked: Mapping[str, PromptTexts]) -> Mapping[str, pa.Table]:
        """Metrics that compare the same have one table: the model is asked once."""
        features = {rule: self._encode(images, rule) for rule in {texts.metric.pixels for texts in asked.values()}}
        tables: dict[Comparison, pa.Table] = {}
        compared = {name: self._comparison(images, texts) for name, texts in asked.items()}
        for comparison in compared.values():
            if comparison not in tables:
                tables[comparison] = self._table(images, features[comparison.pixels], comparison)
        return {name: tables[comparison] for name, comparison in compared.items()}

    def _comparison(self, images: PreparedImages, texts: PromptTexts) -> Comparison:
        wanted = tuple(texts.text(row.prompt_id) for row in images.rows)
        return Comparison(wanted, texts.metric.measure, texts.metric.pixels)

    def _encode(self, images: PreparedImages, rule: PixelRule) -> list[Any]:
        """What the model makes of every image, or why there is nothing."""
        encoded: list[Any] = []
        while len(encoded) < len(images.pixels):
            batch = images.pixels[len(encoded) : len(encoded) + self.image_batch.rows]
            encoded += isolate(self.model.encode, [shown[rule] for shown in batch], self.image_batch)
        return encoded

    def _table(self, images: PreparedImages, features: Sequence[Any], comparison: Comparison) -> pa.Table:
        shown = [text for text, count in zip(comparison.texts, images.counts, strict=True) for _ in range(count)]
        compared = iter(self._compare(features, shown, comparison.measure))
        records = []
        for row, digest, error, text, count in zip(
            images.rows, images.digests, images.errors, comparison.texts, images.counts, strict=True
        ):
            results = [error] if error is not None else [next(compared) for _ in range(count)]
            basis = rows.basis_of(text) if isinstance(text, str) else None
            records.append(row.row(**_columns(results), image_digest=digest, basis=basis))
        return rows.table(records, schemas.SIMILARITIES)

    def _compare(
        self, features: Sequence[Any], texts: Sequence[str | RowError], measure: Measure
    ) -> list[Compared | RowError]:
        """Each image with its text; where one of the two has an error, that."""
        errors = [
            next((part for part in both if isinstance(part, RowError)), None)
            for both in zip(features, texts, strict=True)
        ]
        pairs = [
            Pair(image, text)
            for image, (text, error) in enumerate(zip(texts, errors, strict=True))
            if error is None and isinstance(text, str)
        ]
        results = iter(isolate(lambda batch: self.model.compare(features, batch, measure), pairs))
        return [error if error is not None else next(results) for error in errors]


def _columns(results: Sequence[Compared | RowError]) -> dict[str, Any]:
    """The columns that the comparisons of a row's images fill."""
    sound = [result for result in results if isinstance(result, Compared)]
    similarities = [result.similarity for result in sound]
    errors = [result for result in results if isinstance(result, RowError)]
    if not all(map(math.isfinite, similarities)):
        errors.append(RowError("not_finite", f"the similarity is {similarities}; try dtype=float32"))
    if errors:
        return {"error": rows.error_value(errors[0])}
    columns = {"similarity": fmean(similarities), "truncated": any(result.truncated for result in sound)}
    if len(sound) > 1:
        return {**columns, "images": similarities}
    ratings = sound[0].ratings
    return (
        columns
        if ratings is None
        else {**columns, "ratings": [{"name": name, "value": value} for name, value in ratings.items()]}
    )
