"""Dual encoders: separate embeddings of images and texts, their similarity, and their use as VQA models."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from plumbline.operators.base.batches import BatchSize, call_in_batches
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import Call, Compared, Compares, Measure, Pair, PixelRule, Question, TextFeatures
from plumbline.operators.models.networks.loaded import LoadedImageModel
from plumbline.operators.models.vqa_profiles import VqaProfile

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

MAX_REMEMBERED_TEXTS = 20_000
"""Number of embedded texts after which the cache is cleared."""
COMPARES: tuple[Compares, ...] = ("prompt", "caption", "source", "change")
"""Comparisons of a dual encoder with one embedding per image."""


class _Text(NamedTuple):
    """A unit-length text embedding (width,), and whether the text was cut."""

    feature: "torch.Tensor"
    truncated: bool


class TextEncoder(ABC):
    """The `embedding` call by a network that embeds texts."""

    context: int | None
    """Maximum number of tokens of a text, special ones included; longer texts are cut. None for no limit."""
    pair_batch: BatchSize

    @abstractmethod
    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text before it is cut."""

    @abstractmethod
    def text_points(self, texts: Sequence[str]) -> "torch.Tensor":
        """Return embeddings (n, width) of one batch of texts."""

    def cleaned(self, text: str) -> str:
        """Return the text as it is tokenized."""
        return text

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Return unit-length embeddings (n, width), float32; texts beyond the context are cut and reported."""
        import torch

        texts = [self.cleaned(text) for text in texts]
        lengths = self.lengths(texts)
        rows = call_in_batches(lambda batch: unit(self.text_points(batch)), texts, lengths, size=self.pair_batch)
        truncated = [self.context is not None and length > self.context for length in lengths]
        return TextFeatures(torch.stack(rows) if rows else torch.empty(0, 0), truncated)


class DualEncoder(ABC):
    """The `compare` step of the `similarity` call, by a model that embeds images and texts separately."""

    scale = 1.0
    bias = 0.0
    """A cosine times `scale`, plus `bias`, is the model's logit that image and text belong together."""

    def __init__(self) -> None:
        self.embedded: dict[str, _Text] = {}

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Return unit-length embeddings; texts beyond the context are cut and reported."""

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[Compared]:
        """Return the similarity of each pair in this measure; each text is embedded once.

        An image has one unit-length embedding (width,), or several (n, width); of several, the nearest to the text
        counts.
        """
        self._remember([text for pair in pairs for text in (pair.text, pair.source_text) if text])
        return [self._compare_pair(features, pair, measure) for pair in pairs]

    def _compare_pair(self, features: "Sequence[torch.Tensor]", pair: Pair, measure: Measure) -> Compared:
        """Compare one pair. An empty change has no direction, and its cosine with any other is 0."""
        from torch.nn.functional import cosine_similarity

        texts = [self.embedded[text] for text in (pair.text, pair.source_text) if text]
        image, truncated = features[pair.image], any(text.truncated for text in texts)
        if pair.source is None:
            return Compared(self._apply_measure(float((image @ texts[0].feature).max()), measure), truncated)
        source = features[pair.source]
        if not texts:
            return Compared(float(image @ source), truncated)
        change = cosine_similarity(image - source, texts[0].feature - texts[1].feature, dim=0)
        return Compared(float(change), truncated)

    def _apply_measure(self, cosine: float, measure: Measure) -> float:
        if measure == "cosine":
            return cosine
        logit = self.scale * cosine + self.bias
        return logit if measure == "logit" else 1 / (1 + math.exp(-logit))

    def _remember(self, texts: Sequence[str]) -> None:
        if len(self.embedded) > MAX_REMEMBERED_TEXTS:
            self.embedded.clear()
        new = [text for text in dict.fromkeys(texts) if text not in self.embedded]
        encoded = self.encode_texts(new)
        self.embedded |= dict(zip(new, map(_Text, encoded.features, encoded.truncated), strict=True))


class Towers(LoadedImageModel, TextEncoder, DualEncoder):
    """A network of transformers that has `get_image_features` and `get_text_features`."""

    context: int
    padded = False
    """True if it was trained on texts of one length, its `context`, with padding read like other tokens."""

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        DualEncoder.__init__(self)
        self.context = int(self.model.config.text_config.max_position_embeddings)
        self.scale = self.learnt_scale()

    def learnt_scale(self) -> float:
        """Return the factor of a cosine in the model's logit."""
        return math.exp(self.model.logit_scale.item())

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> Any:
        """Prepare the image with the checkpoint's processor, (3, height, width); `rule` is ignored."""
        return super().preprocess(image)

    def encode(self, pixels: Sequence[Any]) -> "list[torch.Tensor]":
        """Return unit-length embeddings of preprocessed images, each (width,), float32, on the CPU."""
        import torch

        with torch.inference_mode():
            return unit(self.model.get_image_features(**self.image_inputs(pixels)).pooler_output)

    def image_inputs(self, pixels: Sequence[Any]) -> "Mapping[str, torch.Tensor]":
        """Return the inputs of the image tower."""
        return {"pixel_values": self.batch(pixels)}

    def text_points(self, texts: Sequence[str]) -> "torch.Tensor":
        padding = "max_length" if self.padded else True
        inputs = self.tokens(texts, context=self.context, padding=padding, return_attention_mask=not self.padded)
        mask = {} if self.padded else {"attention_mask": inputs.attention_mask}
        points: torch.Tensor = self.model.get_text_features(input_ids=inputs.input_ids, **mask).pooler_output
        return points


def unit(features: "torch.Tensor") -> "list[torch.Tensor]":
    """Normalise rows of features to unit length, float32, on the CPU."""
    from torch.nn.functional import normalize

    return list(normalize(features.float(), dim=-1).cpu())


COSINE = VqaProfile(name="cosine", compares=True)
"""An ablation of "What makes a good metric?": a metric that scores as well with it needs no VQA model."""
NO_WORDS = RowError(
    "no_likelihood", "a model that compares choices has no words of its own; set the metric's answers=likelihood"
)


class CosineVqa:
    """The `likelihood` call served by a dual encoder, which has no `reply`.

    Each choice is compared as the text "question choice", with a question mark between them unless the question ends
    with one. The choices' likelihoods are the softmax of their cosines in the scale that the model learnt, so the
    likeliest choice has the largest cosine. Each counts as one token with a certain end.
    """

    side_by_side = False

    def __init__(self, model: "Towers") -> None:
        self.model = model
        self.usage = Usage()

    def preprocess(self, image: "Image.Image") -> Any:
        return self.model.preprocess(image)

    def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
        """Return unit-length embeddings of preprocessed images."""
        return self.model.encode(pixels)

    def likelihood(self, features: Sequence[Any], questions: Sequence[Question]) -> list[list[list[float]] | RowError]:
        """Return the log-likelihood of every choice among those of its question, and 0 for its end, or an error."""
        pairs = [
            Pair(question.image, choice_text(question.text, choice))
            for question in questions
            for choice in question.choices
        ]
        compared = iter(self.model.compare(features, pairs, "logit"))
        return [_choice_logprobs_or_error(question, compared) for question in questions]

    def reply(self, features: Sequence[Any], questions: Sequence[Question]) -> list[RowError]:
        """Return an error for every question: the model writes no text."""
        return [NO_WORDS] * len(questions)


def dual_encoder_loads(towers: "type[Towers]") -> "Mapping[Call, Callable[[ResolvedModel[Any]], Any]]":
    """Return the loaders of a dual encoder, by call."""
    return {
        "similarity": towers.load,
        "embedding": towers.load,
        "likelihood": lambda model: CosineVqa(towers.load(model)),
    }


def choice_text(question: str, choice: str) -> str:
    """Return the text of a choice for the comparison."""
    stem = question.rstrip()
    return f"{stem} {choice}" if stem.endswith("?") else f"{stem}? {choice}"


def _choice_logprobs_or_error(question: Question, compared: Iterator[Compared]) -> list[list[float]] | RowError:
    """Return the log-softmax of the choices' logits, or an error if it would be meaningless."""
    choices = list(islice(compared, len(question.choices)))
    if len(choices) < 2:
        message = "a model that compares choices says nothing of one alone"
        return RowError(
            "no_likelihood", f"{message}; use another VQA model, or a metric that asks with several choices"
        )
    if any(choice.truncated for choice in choices):
        message = f"{question.text!r} with its choices is beyond the context of the model, which would cut the choice"
        return RowError("prompt_too_long", f"{message}; use a model with a longer context")
    largest = max(choice.similarity for choice in choices)
    total = largest + math.log(math.fsum(math.exp(choice.similarity - largest) for choice in choices))
    return [[choice.similarity - total, 0.0] for choice in choices]
