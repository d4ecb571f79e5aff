"""Image-only embedders (DINO and DINOv2) and text-only embedders (sentence encoders)."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from PIL import Image

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule
from plumbline.operators.models.checkpoints.parts import Fields, Part, find_architecture, read_fields
from plumbline.operators.models.family import IMAGES, Family
from plumbline.operators.models.model import LocalModel, ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel
from plumbline.operators.models.networks.similarity import TextEncoder, normalize_rows

if TYPE_CHECKING:
    import torch


RESIZE_RATIO = 256 / 224
"""Ratio of the resized shorter side to the crop: DINO's published code resizes the side to 256 pixels and crops the
centre 224 x 224 (facebookresearch/dino, eval_knn.py; facebookresearch/dinov2, dinov2/data/transforms.py).
"""


class DinoSimilarity(LoadedImageModel):
    """DINO or DINOv2, which serves the `similarity` call for edits.

    It compares the class tokens of the edited image and of its source.
    """

    architecture = "AutoModel"

    @classmethod
    def load_network(cls, model: ResolvedModel[Any]) -> Any:
        from plumbline.operators.models.processing import load_pretrained

        vit = read_fields(model.parts["checkpoint"])["model_type"] == "vit"
        options: dict[str, Any] = {"add_pooling_layer": False} if vit else {}
        return load_pretrained(cls.architecture, model, **options)

    @classmethod
    def load_tokenizer(cls, model: ResolvedModel[Any]) -> Any:
        return None

    @classmethod
    def load_processor(cls, model: ResolvedModel[Any], tokenizer: Any) -> Any:
        from plumbline.operators.models.processing import ReleasedTransform

        return ReleasedTransform(super().load_processor(model, tokenizer), RESIZE_RATIO)

    def preprocess(self, image: Image.Image, rule: PixelRule = "released") -> "torch.Tensor":
        """Return the image (3, height, width), preprocessed as in DINO's published code; `rule` is ignored."""
        return self.pixels.pin(self.processor.crop(image))

    def encode(self, pixels: Sequence[Any]) -> "list[torch.Tensor]":
        """Return unit-length class tokens, each (width,), float32, on the CPU."""
        import torch

        with torch.inference_mode():
            return normalize_rows(self.model(pixel_values=self.batch(pixels)).last_hidden_state[:, 0])

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[ComparisonResult]:
        both = [(pair.image, pair.source) for pair in pairs if pair.source is not None]
        return [ComparisonResult(float(features[image] @ features[source]), truncated=False) for image, source in both]


DINO_FAMILY = Family(
    loads={"similarity": DinoSimilarity.load},
    form="'vit', 'dinov2' or 'dinov2_with_registers'",
    suits=lambda fields: fields["model_type"] in ("vit", "dinov2", "dinov2_with_registers"),
    files=(IMAGES,),
    pixels=("released",),
    compares=("source",),
)
"""DINO (Caron et al. 2021) and DINOv2 (Oquab et al. 2024)."""


POOLING_MODES = {"cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"}


class SentenceEmbedder(TextEncoder):
    """BERT-like text embedder such as MiniLM. An embedding is the mean over a text's tokens, scaled to unit length."""

    architecture = "AutoModel"

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        from plumbline.operators.models.processing import explain_load_errors

        loaded = super().load(model, network)
        limits = [loaded.find_context_limit()]
        file = model.folder("checkpoint") / "sentence_bert_config.json"
        if file.is_file():
            with explain_load_errors(file.parent, file.name):
                limits.append(json.loads(file.read_text()).get("max_seq_length"))
        loaded.context = min((limit for limit in limits if limit is not None), default=None)
        return loaded

    @classmethod
    def load_network(cls, model: ResolvedModel[Any]) -> Any:
        from plumbline.operators.models.processing import load_pretrained

        return load_pretrained(cls.architecture, model, unused="pooler.")  # the mean needs no pooler

    def embed_texts(self, texts: Sequence[str]) -> "torch.Tensor":
        inputs = self.tokenize(texts, context=self.context)
        states = self.model(**inputs).last_hidden_state.float()
        mask = inputs.attention_mask[:, :, None]
        embeddings: torch.Tensor = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return embeddings


def _check_pooling(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """Raise ModelError if a sentence-transformers folder is configured for anything but mean pooling."""
    part = parts["checkpoint"]
    path = part.find_file("1_Pooling/config.json")
    if path is None:
        return
    try:
        pooling = json.loads(path.read_text())
        modes = {name.removeprefix("pooling_mode_") for name, on in pooling.items() if on is True}
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path}: not a valid pooling config ({error}); download the checkpoint again") from error
    if pooling.get("pooling_mode") != "mean" and modes & POOLING_MODES != {"mean_tokens"}:
        raise ModelError(f"{part.source}: 1_Pooling/config.json does not use mean pooling; use a checkpoint that does")


SENTENCE_EMBEDDER_FAMILY = Family(
    loads={"embedding": SentenceEmbedder.load},
    form="an encoder such as BertModel",
    suits=lambda fields: (
        find_architecture(fields).endswith("Model")
        and not fields.get("is_encoder_decoder")
        and "vision_config" not in fields
    ),
    check=_check_pooling,
    float32_on_gpu=True,
)
