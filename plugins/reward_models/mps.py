"""Model family MPS: a CLIP whose image patches attend to the words of the prompt that concern an aspect.

The released evaluation scripts (Kwai-Kolors/MPS be9027f, eval_overall_mps_on_hpdv2.py) define the score of one image:
the cosine of the prompt's embedding and the class token after the cross layers, multiplied by CLIP's learned scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from plumbline.operators.base.batches import call_in_batches
from plumbline.operators.base.bounds import Share
from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule
from plumbline.operators.models.checkpoints.parts import CONVERT_AGAIN_REMEDY, find_architecture
from plumbline.operators.models.family import TOKENIZER, Family, Files
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedImageModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.processing import PixelTransform
    from plumbline.plugins.reward_models.mps_network import PromptFeatures

OVERALL = "overall"
"""Rating that is the score."""
CONDITIONS: Mapping[str, str] = {
    OVERALL: "light, color, clarity, tone, style, ambiance, artistry, shape, face, hair, hands, limbs, structure, "
    "instance, texture, quantity, attributes, position, number, location, word, things.",
    "aesthetics": "light, color, clarity, tone, style, ambiance, artistry",
    "alignment": "quantity, attributes, position, number, location",
    "detail": "shape, face, hair, hands, limbs, structure, instance, texture",
}
"""Condition of each rating.

The overall condition is in Kwai-Kolors/MPS be9027f, README.md; the others, which the release does not contain, are in
modelscope/DiffSynth-Studio e63f9d6, diffsynth/extensions/ImageQualityMetric/mps.py.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class MpsModel(LocalModel):
    """Options of an MPS model."""

    mask_threshold: Share = 0.3
    """Relevance to the condition, relative to the most relevant token, that a token of the prompt must exceed to be
    seen by the image. 0.3 in the release's evaluation scripts; 0.01 in its network and in the example on its page.
    """


class _AttendedImage(NamedTuple):
    """An image, a prompt, and a mask of the prompt's tokens that the image attends to."""

    image: int
    text: str
    mask: tuple[bool, ...]


class MpsSimilarity(LoadedImageModel):
    """A loaded MPS, which serves the `similarity` call.

    The vision tower reads an image once. The cross layers read it once for each set of words that a condition selects.
    """

    architecture = "plumbline.plugins.reward_models.mps_network:Mps"
    mask_threshold: float

    @classmethod
    def load(cls, model: "ResolvedModel[Any]", network: Any = None) -> Self:
        loaded = super().load(model, network)
        loaded.mask_threshold = model.config.mask_threshold
        return loaded

    @classmethod
    def load_tokenizer(cls, model: "ResolvedModel[Any]") -> Any:
        tokenizer = super().load_tokenizer(model)
        tokenizer.padding_side = "right"
        return tokenizer

    @classmethod
    def load_processor(cls, model: "ResolvedModel[Any]", tokenizer: Any) -> "PixelTransform":
        from plumbline.operators.models.processing import load_pixel_transform

        return load_pixel_transform(model.folder("checkpoint"), pad_to_square=False)

    @property
    def context(self) -> int:
        return int(self.model.config.text_config.max_position_embeddings)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """Return the image (3, height, width), prepared by the checkpoint's processor; `rule` is ignored."""
        return self.pixels.pin(self.processor(image))

    def encode(self, pixels: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        """Return the embeddings of each image's class token and patches, (patches + 1, width), on the device."""
        import torch

        with torch.inference_mode():
            return list(self.model.embed_patches(self.batch(pixels)))

    @cached_property
    def conditions(self) -> "list[PromptFeatures]":
        """Features of the texts in CONDITIONS."""
        return self._read_texts(list(CONDITIONS.values()))

    def _read_texts(self, texts: Sequence[str]) -> "list[PromptFeatures]":
        import torch

        with torch.inference_mode():
            words = self.tokenize(texts, context=self.context, padding="max_length")
            read: list[PromptFeatures] = self.model.read_texts(words.input_ids)
            return read

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "reward"
    ) -> list[ComparisonResult]:
        """Return each pair's overall score, with its score for each condition as a rating."""
        import torch

        from plumbline.plugins.reward_models.mps_network import select_words

        texts = list(dict.fromkeys(pair.text for pair in pairs))
        read = dict(zip(texts, call_in_batches(self._read_texts, texts, size=self.pair_batch), strict=True))
        with torch.inference_mode():
            masks = {
                text: [
                    tuple(select_words(prompt, condition, self.mask_threshold).tolist())
                    for condition in self.conditions
                ]
                for text, prompt in read.items()
            }
        seen = [[_AttendedImage(pair.image, pair.text, mask) for mask in masks[pair.text]] for pair in pairs]
        distinct = list(dict.fromkeys(chain(*seen)))

        def score(batch: Sequence[_AttendedImage]) -> list[float]:
            patches = torch.stack([features[one.image] for one in batch])
            words, embeddings = (torch.stack(each) for each in zip(*(read[one.text] for one in batch), strict=True))
            mask = torch.tensor([one.mask for one in batch], device=patches.device)
            images = self.model.cross_model(patches, words.to(patches.dtype), mask)[:, 0].float()
            cosines = torch.cosine_similarity(images, embeddings, dim=-1)
            scores: list[float] = (self.model.logit_scale.float().exp() * cosines).tolist()
            return scores

        scores = dict(zip(distinct, call_in_batches(score, distinct, size=self.pair_batch), strict=True))
        lengths = dict(zip(texts, self.count_tokens(texts), strict=True))
        rated = [dict(zip(CONDITIONS, [scores[one] for one in each], strict=True)) for each in seen]
        return [
            ComparisonResult(ratings[OVERALL], lengths[pair.text] > self.context, ratings)
            for ratings, pair in zip(rated, pairs, strict=True)
        ]


FAMILY = Family(
    config=MpsModel,
    loads={"similarity": MpsSimilarity.load},
    form="an Mps folder from jobs.convert",
    suits=lambda fields: find_architecture(fields) == "Mps",
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), CONVERT_AGAIN_REMEDY)),
    measures=("reward",),
    ratings=tuple(CONDITIONS),
    options_in_key=lambda config, profile: {"mask_threshold": config.mask_threshold},
)
"""A CLIP that was trained on people's choices between two images (Zhang et al. 2024)."""
