"""The similarities stage: one number for how well each image fits its prompt, or an edit its source."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.images.preparing import Edit, PreparedImages
from plumbline.operators.images.rows import CAPTIONS, ImageRow
from plumbline.operators.models.calls import Compared, Compares, Measure, Pair, PixelRule, SimilarityModel
from plumbline.operators.models.family import Family
from plumbline.operators.stages.images import ImagesStage, basis_with_sources, images_of_view
from plumbline.operators.stages.stage import Inputs, StageOptions, cache_upstream, find_text, texts_of


@runtime_checkable
class ComparingMetric(Protocol):
    """A metric that compares images with texts or sources."""

    @property
    def pixels(self) -> PixelRule:
        """Preprocessing of images."""

    @property
    def measure(self) -> Measure:
        """Number of the model that is used."""

    @property
    def compares(self) -> Compares:
        """Compared inputs."""

    @property
    def captions(self) -> tuple[str, ...]:
        """Columns of the texts that are compared instead of the prompts."""

    def comparing(self) -> dict[str, str]:
        """Return all options that decide the comparison."""

    def text(self, prompt: str) -> str:
        """Return the text that images of a prompt are compared with."""


Texts = tuple[str, ...] | RowError
"""Texts that an image is compared with: one text, two for a change, none for a source; or the error."""


class PromptTexts(NamedTuple):
    """Texts that a metric compares the images of each prompt with."""

    prompts: Mapping[str, str]
    metric: ComparingMetric
    captions: Mapping[str, Sequence[Any]] = {}
    """Captions of the shard's rows by column."""

    def texts(self, prompt_id: str | None, place: int) -> Texts:
        """Return the texts for this row of the shard."""
        if self.metric.compares == "source":
            return ()
        if self.metric.captions:
            return self._read_captions(place)
        text = find_text(self.prompts, prompt_id)
        return (self.metric.text(text),) if isinstance(text, str) else text

    def _read_captions(self, place: int) -> Texts:
        names = self.metric.captions
        captions = [str((self.captions[name][place] if name in self.captions else None) or "") for name in names]
        for name, caption in zip(names, captions, strict=True):
            if not caption.strip():
                return RowError("no_caption", f"the row has no {name.replace('_', ' ')}; fill it in")
        if len(set(captions)) < len(captions):
            return RowError("no_caption", f"both captions are {captions[0]!r}, which names no change; correct them")
        return tuple(map(self.metric.text, captions))

    def basis(self, prompt_id: str | None, place: int) -> str | None:
        """Return the digest of everything except the image that a row of the shard depends on."""
        texts = self.texts(prompt_id, place)
        return None if isinstance(texts, RowError) else rows.input_digest(*texts)


class Comparison(NamedTuple):
    """A comparison of a shard's images: its texts and its rules."""

    texts: tuple[Texts, ...]
    """Texts for each row."""
    measure: Measure
    pixels: PixelRule
    compares: Compares


class SimilaritiesStage(ImagesStage):
    """Images and prompts to similarities (schema SIMILARITIES); each image is encoded once for all metrics."""

    name = "similarities"
    version = 1
    schema = schemas.SIMILARITIES
    needs = ComparingMetric
    calls: ClassVar = {"model": "similarity"}
    shuffles_words = True

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": {"kind": metric.kind, **metric.comparing()}}

    @classmethod
    def unsupported_option(cls, metric: Any, family: Family[Any]) -> str | None:
        if metric.measure not in family.measures:
            return f"the measure {metric.measure!r} of a model that gives {' or '.join(family.measures)}"
        if metric.compares not in family.compares:
            return f"compares={metric.compares} of a model that takes {' or '.join(family.compares)}"
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
        self._texts = cache_upstream(texts_of)

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> Mapping[PixelRule, Any]:
        """Preprocess every view of one image by every rule."""
        views = [images_of_view(view, image, edit) for view in self.views]
        return {rule: tuple(self._preprocess_view(pictures, rule) for pictures in views) for rule in self.rules}

    def _preprocess_view(self, pictures: Sequence[Image.Image], rule: PixelRule) -> Any:
        model: Any = self.model  # one that takes several images has a way to, and is not asked otherwise
        return model.preprocess_several(pictures) if len(pictures) > 1 else model.preprocess(pictures[0], rule)

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> Mapping[PixelRule, Any]:
        """Preprocess the frames of one video: models that take videos have one rule."""
        video = super().preprocess_video(frames, seconds)
        return dict.fromkeys(self.rules, (video,))

    def asked(self, inputs: Inputs) -> Mapping[str, PromptTexts]:
        prompts, columns = self._texts(inputs.prompts), inputs.rows.column_names
        captions = {name: inputs.rows.column(name).to_pylist() for name in CAPTIONS if name in columns}
        return {name: PromptTexts(prompts, self.metrics[name], captions) for name in inputs.metrics}

    def basis(self, asked: PromptTexts, row: ImageRow, place: int) -> str | None:
        return asked.basis(row.prompt_id, place)

    def measure(self, images: PreparedImages, asked: Mapping[str, PromptTexts]) -> Mapping[str, pa.Table]:
        """Return the tables; metrics with equal comparisons share one, so that the model is asked once."""
        features = {rule: self._encode(images, rule) for rule in {texts.metric.pixels for texts in asked.values()}}
        tables: dict[Comparison, pa.Table] = {}
        rows_and_places = list(zip(images.rows, images.places, strict=True))
        compared = {
            name: Comparison(
                tuple(texts.texts(row.prompt_id, place) for row, place in rows_and_places),
                texts.metric.measure,
                texts.metric.pixels,
                texts.metric.compares,
            )
            for name, texts in asked.items()
        }
        for comparison in compared.values():
            if comparison not in tables:
                tables[comparison] = self._table(images, features[comparison.pixels], comparison)
        return {name: tables[comparison] for name, comparison in compared.items()}

    def _encode(self, images: PreparedImages, rule: PixelRule) -> list[Any]:
        """Return the encoding, or the error, of every view of each image, one after the other."""
        pixels = [view for shown in images.pixels for view in shown[rule]]
        encoded: list[Any] = []
        while len(encoded) < len(pixels):
            batch = pixels[len(encoded) : len(encoded) + self.image_batch.rows]
            encoded += isolate(self.model.encode, batch, self.image_batch)
        return encoded

    def _table(self, images: PreparedImages, features: Sequence[Any], comparison: Comparison) -> pa.Table:
        shown = [texts for texts, count in zip(comparison.texts, images.counts, strict=True) for _ in range(count)]
        compared = iter(self._compare(features, shown, comparison.measure))
        records = []
        for row, digest, source, error, texts, count in zip(
            images.rows, images.digests, images.sources, images.errors, comparison.texts, images.counts, strict=True
        ):
            results = [error] if error is not None else [next(compared) for _ in range(count)]
            basis = None if isinstance(texts, RowError) else basis_with_sources(rows.input_digest(*texts), source)
            records.append(row.row(**_columns(results), image_digest=digest, basis=basis))
        return rows.table(records, schemas.SIMILARITIES)

    def _compare(self, features: Sequence[Any], texts: Sequence[Texts], measure: Measure) -> list[Compared | RowError]:
        """Compare each image with its texts and its source; an error of one of them is the result."""
        count = len(self.views)
        errors = [
            next(
                (part for part in (*features[image * count :][:count], image_texts) if isinstance(part, RowError)), None
            )
            for image, image_texts in enumerate(texts)
        ]
        pairs = [
            _pair(range(image * count, (image + 1) * count), image_texts)
            for image, (image_texts, error) in enumerate(zip(texts, errors, strict=True))
            if error is None and not isinstance(image_texts, RowError)
        ]
        results = iter(isolate(lambda batch: self.model.compare(features, batch, measure), pairs))
        return [error if error is not None else next(results) for error in errors]


def _pair(views: Sequence[int], texts: Sequence[str]) -> Pair:
    """Return the pair of an image, given the indices of its views, with its source and its texts."""
    text, source_text, *_ = (*texts, "", "")
    return Pair(views[0], text, views[1] if len(views) > 1 else None, source_text)


def _columns(results: Sequence[Compared | RowError]) -> dict[str, Any]:
    """Return the columns of a row from the comparisons of its images."""
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
