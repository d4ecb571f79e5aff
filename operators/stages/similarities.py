"""The similarities stage, which computes how well each image matches its prompt, or each edited image its source."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import call_on_distinct, isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.images.preparing import Edit, PreparedImages
from plumbline.operators.images.rows import CAPTION_COLUMNS, ImageRow
from plumbline.operators.models.calls import (
    ComparisonResult,
    ComparisonTarget,
    Measure,
    Pair,
    PixelRule,
    SimilarityModel,
)
from plumbline.operators.models.family import Family
from plumbline.operators.stages.images import ImagesStage, select_images_of_view
from plumbline.operators.stages.stage import Inputs, StageOptions, cache_upstream, find_text, read_prompt_texts


@runtime_checkable
class SimilarityMetric(Protocol):
    """Protocol for metrics that compare images with texts or sources."""

    @property
    def pixels(self) -> PixelRule:
        """Rule by which the images are preprocessed."""

    @property
    def measure(self) -> Measure:
        """Name of the number that the model returns for a comparison, such as `cosine`."""

    @property
    def compares(self) -> ComparisonTarget:
        """What images are compared with, such as `prompt` (their prompts) or `source` (the images before an edit)."""

    @property
    def captions(self) -> tuple[str, ...]:
        """Names of the columns whose texts are compared with the images; empty if the prompts are compared."""

    def list_similarity_options(self) -> dict[str, str]:
        """Return all options that determine the comparison, for use in cell keys."""

    def text(self, prompt: str) -> str:
        """Return the text to compare with the prompt's images."""


TextsOrError = tuple[str, ...] | RowError
"""Texts compared with an image, or an error: one text, two for a change, none for a source or an image alone."""


class PromptTexts(NamedTuple):
    """The texts that a metric compares with the images of each prompt."""

    prompts: Mapping[str, str]
    metric: SimilarityMetric
    captions: Mapping[str, Sequence[Any]] = {}
    """Captions of the shard's rows, by column."""

    def find_texts(self, prompt_id: str | None, position: int) -> TextsOrError:
        """Return the texts for the row at index `position` of the shard, or an error if it has no usable texts."""
        if self.metric.compares in ("source", "image"):
            return ()
        names = self.metric.captions
        if not names:
            text = find_text(self.prompts, prompt_id)
            return (self.metric.text(text),) if isinstance(text, str) else text
        captions = [str((self.captions[name][position] if name in self.captions else None) or "") for name in names]
        for name, caption in zip(names, captions, strict=True):
            if not caption.strip():
                return RowError("no_caption", f"the row has no {name.replace('_', ' ')}; fill it in")
        if len(set(captions)) < len(captions):
            return RowError("no_caption", f"both captions are {captions[0]!r}, which describes no change; correct them")
        return tuple(map(self.metric.text, captions))


class SimilaritiesStage(ImagesStage):
    """Stage that turns images and prompts into similarities (schema SIMILARITIES).

    Each image is encoded once for all metrics.
    """

    name = "similarities"
    version = 1
    schema = schemas.SIMILARITIES
    metric_type = SimilarityMetric
    calls: ClassVar = {"model": "similarity"}
    shuffles_words = True

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": {"kind": metric.kind, **metric.list_similarity_options()}}

    @classmethod
    def explain_unsuitable_model(cls, metric: Any, family: Family[Any]) -> str | None:
        if metric.measure not in family.measures:
            return f"returns {' or '.join(family.measures)}, not {metric.measure}; set another measure or model"
        if metric.compares not in family.compares:
            return f"supports compares={' or '.join(family.compares)}, not {metric.compares}; use another model"
        rating = getattr(metric, "rating", None)  # only `similarity` takes one of a model's several numbers
        if rating is not None and rating not in family.ratings:
            return f"has {' and '.join(family.ratings) or 'no ratings'}, not the rating {rating!r}; set another rating"
        if metric.pixels not in family.pixels:
            return (
                f"supports pixels={' or '.join(family.pixels)}, not {metric.pixels}; set pixels, or use another model"
            )
        return None

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self.model: SimilarityModel
        self.rules = sorted({metric.pixels for metric in metrics.values()})
        self._texts = cache_upstream(read_prompt_texts)

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> Mapping[PixelRule, Any]:
        """Return all views of one image, preprocessed for the model by each rule."""
        model: Any = self.model  # checked before: only models that take several images at once get views of several

        def preprocess_view(images: Sequence[Image.Image], rule: PixelRule) -> Any:
            return model.preprocess_several(images) if len(images) > 1 else model.preprocess(images[0], rule)

        views = [select_images_of_view(view, image, edit) for view in self.views]
        return {rule: tuple(preprocess_view(images, rule) for images in views) for rule in self.rules}

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> Mapping[PixelRule, Any]:
        """Return a video, preprocessed for the model by each rule; models that accept videos have only one rule."""
        video = super().preprocess_video(frames, seconds)
        return dict.fromkeys(self.rules, (video,))

    def read_questions(self, inputs: Inputs) -> Mapping[str, PromptTexts]:
        prompts, columns = self._texts(inputs.prompts), inputs.rows.column_names
        captions = {name: inputs.rows.column(name).to_pylist() for name in CAPTION_COLUMNS if name in columns}
        return {name: PromptTexts(prompts, self.metrics[name], captions) for name in inputs.metrics}

    def compute_input_digest(
        self, questions: PromptTexts, row: ImageRow, position: int, sources: str | None
    ) -> str | None:
        texts = questions.find_texts(row.prompt_id, position)
        if isinstance(texts, RowError):
            return None
        digest = rows.digest_inputs(*texts)
        return digest if sources is None else rows.digest_inputs(digest, sources)

    def measure(self, images: PreparedImages, questions: Mapping[str, PromptTexts]) -> Mapping[str, pa.Table]:
        """Return each metric's table; metrics that make the same comparison share one, so the model is called once."""
        features = {
            rule: self._encode_views(images, rule) for rule in {texts.metric.pixels for texts in questions.values()}
        }
        by_comparison: dict[Any, pa.Table] = {}
        tables = {}
        for name, prompts in questions.items():
            metric = prompts.metric
            positions = zip(images.rows, images.row_numbers, strict=True)
            texts = tuple(prompts.find_texts(row.prompt_id, position) for row, position in positions)
            comparison = texts, metric.measure, metric.pixels, metric.compares
            if comparison not in by_comparison:
                each = [of_row for of_row, count in zip(texts, images.counts, strict=True) for _ in range(count)]
                compared = self._compare_images(features[metric.pixels], each, metric.measure)
                by_comparison[comparison] = self.tabulate(images, prompts, compared, make_similarity_columns)
            tables[name] = by_comparison[comparison]
        return tables

    def _encode_views(self, images: PreparedImages, rule: PixelRule) -> list[Any]:
        pixels = [view for shown in images.pixels for view in shown[rule]]
        encoded: list[Any] = []
        while len(encoded) < len(pixels):
            batch = pixels[len(encoded) : len(encoded) + self.image_batch.rows]
            encoded += isolate(partial(call_on_distinct, self.model.encode), batch, self.image_batch)
        return encoded

    def _compare_images(
        self, features: Sequence[Any], texts: Sequence[TextsOrError], measure: Measure
    ) -> list[ComparisonResult | RowError]:
        count = len(self.views)
        pairs: list[Pair] = []
        errors: list[RowError | None] = []
        for image, image_texts in enumerate(texts):
            first = image * count
            error = next((view for view in features[first : first + count] if isinstance(view, RowError)), None)
            if error is None and isinstance(image_texts, RowError):
                error = image_texts
            elif error is None and not isinstance(image_texts, RowError):
                text, source_text, *_ = (*image_texts, "", "")
                pairs.append(Pair(first, text, first + 1 if count > 1 else None, source_text))
            errors.append(error)
        results = iter(isolate(lambda batch: self.model.compare(features, batch, measure), pairs))
        return [error or require_finite_similarity(next(results)) for error in errors]


def require_finite_similarity(result: ComparisonResult | RowError) -> ComparisonResult | RowError:
    """Return the comparison, or an error if the similarity is not finite."""
    if isinstance(result, RowError) or math.isfinite(result.similarity):
        return result
    return RowError("not_finite", f"the similarity is {result.similarity}; try dtype=float32")


def make_similarity_columns(results: Sequence[ComparisonResult]) -> dict[str, Any]:
    """Return the columns of SIMILARITIES, given the comparisons of a row's images."""
    similarities = [result.similarity for result in results]
    columns = {"similarity": fmean(similarities), "truncated": any(result.truncated for result in results)}
    if len(results) > 1:
        return {**columns, "images": similarities}
    ratings = results[0].ratings
    if ratings is None:
        return columns
    return {**columns, "ratings": [{"name": name, "value": value} for name, value in ratings.items()]}
