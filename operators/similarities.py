"""The similarities stage: the cosine between every image and the text of its prompt."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from PIL import Image

from operators import rows
from operators.answers import UNKNOWN_PROMPT
from operators.batches import isolate
from operators.errors import RowError
from operators.images import FetchUri, Held, ImageLimits, PreparedImages, nothing_held, prepare_images
from operators.metrics.clipscore import ClipScoreConfig
from operators.models.calls import PixelRule, SimilarityModel
from operators.questions import EMPTY_PROMPT

if TYPE_CHECKING:
    import torch

VERSION = 3
REMEMBERED_TEXTS = 20_000


class _Text(NamedTuple):
    """An embedded text: unit length (width,), and whether it was cut."""

    feature: "torch.Tensor"
    truncated: bool


class SimilarityOperator:
    """Compares each image with the texts of every metric that shares a model, having encoded each once."""

    def __init__(
        self,
        model: SimilarityModel,
        *,
        image_batch: int,
        limits: ImageLimits,
        fetch: FetchUri,
        rules: Collection[PixelRule],
    ) -> None:
        """`rules` are those of all metrics by which images will be compared."""
        self.model = model
        self.rules = tuple(sorted(set(rules)))
        self.image_batch = image_batch
        self.limits = limits
        self.fetch = fetch
        self.texts: dict[str, _Text | RowError] = {}

    def prepare(self, images: pa.Table, generator: str, held: Held = nothing_held) -> PreparedImages:
        """Decodes and preprocesses a shard on the CPU; needs no model, so it may overlap `compare`."""
        return prepare_images(
            images, generator, preprocess=self._preprocess, limits=self.limits, fetch=self.fetch, held=held
        )

    def _preprocess(self, image: Image.Image) -> dict[PixelRule, "torch.Tensor"]:
        """One image by every rule."""
        return {rule: self.model.preprocess(image, rule) for rule in self.rules}

    def compare(
        self, images: PreparedImages, prompts: Mapping[str, str], metrics: Mapping[str, ClipScoreConfig]
    ) -> dict[str, pa.Table]:
        """Similarities tables (schema SIMILARITIES) by metric; `prompts` maps prompt_id to text."""
        rules = dict.fromkeys(metric.pixels for metric in metrics.values())
        features = {rule: self._encode_images(images, rule) for rule in rules}
        return {name: self._table(images, features[metric.pixels], prompts, metric) for name, metric in metrics.items()}

    def _encode_images(self, images: PreparedImages, rule: PixelRule) -> "list[torch.Tensor | RowError]":
        encoded: list[torch.Tensor | RowError] = []
        for first in range(0, len(images.pixels), self.image_batch):
            pixels = [shown[rule] for shown in images.pixels[first : first + self.image_batch]]
            encoded += isolate(self.model.encode, pixels)
        sound = iter(encoded)
        return [error if error is not None else next(sound) for error in images.errors]

    def _table(
        self,
        images: PreparedImages,
        features: "Sequence[torch.Tensor | RowError]",
        prompts: Mapping[str, str],
        metric: ClipScoreConfig,
    ) -> pa.Table:
        wanted = [_prompt_text(row.prompt_id, prompts, metric) for row in images.rows]
        self._encode_texts([text for text in wanted if isinstance(text, str)])
        records = [
            row.row(
                **_compare(feature, self.texts[text] if isinstance(text, str) else text),
                image_digest=digest,
                basis=_basis(text),
            )
            for row, digest, feature, text in zip(images.rows, images.digests, features, wanted, strict=True)
        ]
        return rows.table(records, rows.SIMILARITIES)

    def _encode_texts(self, texts: Sequence[str]) -> None:
        """Embeds the texts that are not remembered from an earlier shard; one that failed there is tried again."""
        if len(self.texts) > REMEMBERED_TEXTS:
            self.texts.clear()
        new = [text for text in dict.fromkeys(texts) if not isinstance(self.texts.get(text), _Text)]
        self.texts |= dict(zip(new, isolate(self._embed, new), strict=True))

    def _embed(self, texts: Sequence[str]) -> list[_Text]:
        encoded = self.model.encode_texts(texts)
        return [_Text(*pair) for pair in zip(encoded.features, encoded.truncated, strict=True)]


def _prompt_text(prompt_id: str | None, prompts: Mapping[str, str], metric: ClipScoreConfig) -> str | RowError:
    """The text that an image is compared with."""
    if prompt_id is None or prompt_id not in prompts:
        return RowError("unknown_prompt", UNKNOWN_PROMPT.format(prompt_id))
    return metric.text(prompts[prompt_id]) if prompts[prompt_id].strip() else EMPTY_PROMPT


def _basis(text: str | RowError) -> str | None:
    return rows.basis_of(text) if isinstance(text, str) else None


def text_basis(prompt_id: str | None, prompts: Mapping[str, str], metric: ClipScoreConfig) -> str | None:
    """What an image of the prompt stands on: the text that it is compared with."""
    return _basis(_prompt_text(prompt_id, prompts, metric))


def _compare(image: "torch.Tensor | RowError", text: _Text | RowError) -> dict[str, Any]:
    """The columns that one comparison fills."""
    if isinstance(image, RowError):
        return {"error": rows.error_value(image)}
    if isinstance(text, RowError):
        return {"error": rows.error_value(text)}
    cosine = float(image @ text.feature)
    if not math.isfinite(cosine):
        return {"error": rows.error_value(RowError("not_finite", f"the cosine is {cosine}; try dtype=float32"))}
    return {"similarity": cosine, "truncated": text.truncated}
