"""Networks that compare images with texts, and the use of dual encoders as VQA models.

Dual encoders compare embeddings of images and texts; joint encoders read a text together with an image. Nothing here
imports torch before a model is loaded, so that families can derive their models from these classes.
"""

import html
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from PIL import Image

from plumbline.operators.base.batches import call_in_batches
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule, Question, TextFeatures
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel, LoadedModel
from plumbline.operators.models.vqa_profiles import VqaProfile

if TYPE_CHECKING:
    import torch

MAX_REMEMBERED_TEXTS = 20_000
"""Number of embedded texts above which the cache is cleared."""
COSINE_PROFILE = VqaProfile(name="cosine", compares=True)
"""Profile of dual encoders used as VQA models, which is an ablation from "What makes a good metric?".

A metric that scores equally well with such a model does not need a VQA model.
"""


class TextEncoder(LoadedModel, ABC):
    """Base class for text-embedding networks, which serve the `embedding` call."""

    context: int | None
    """Maximum number of tokens of a text, including special ones; longer texts are truncated. None for no limit."""

    @abstractmethod
    def embed_texts(self, texts: Sequence[str]) -> "torch.Tensor":
        """Return embeddings (n, width) for one batch of texts."""

    def clean(self, text: str) -> str:
        """Return the text as it is passed to the tokenizer; unchanged unless a family overrides this method."""
        return text

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Return unit-length embeddings (n, width), float32. Texts beyond the context are truncated and flagged."""
        import torch

        texts = [self.clean(text) for text in texts]
        lengths = self.count_tokens(texts)
        rows = call_in_batches(
            lambda batch: normalize_rows(self.embed_texts(batch)), texts, lengths, size=self.pair_batch
        )
        truncated = [self.context is not None and length > self.context for length in lengths]
        return TextFeatures(torch.stack(rows) if rows else torch.empty(0, 0), truncated)


def clean_text(text: str) -> str:
    """Return the text cleaned as in CLIP's released code, except that runs of spaces are kept.

    The tokenizer treats a run of spaces as one space.
    """
    from ftfy import fix_text  # takes a tenth of a second to import, and only few models need it

    return html.unescape(html.unescape(fix_text(text))).strip().lower()


def normalize_rows(features: "torch.Tensor") -> "list[torch.Tensor]":
    """Return the rows of features scaled to unit length, float32, on the CPU."""
    from torch.nn.functional import normalize

    return list(normalize(features.float(), dim=-1).cpu())


class DualEncoder(ABC):
    """Base class for models that embed images and texts separately; implements `compare` for the `similarity` call."""

    scale = 1.0
    """Factor that converts a cosine to the logit of a match between image and text."""
    bias = 0.0
    """Offset that is added to the scaled cosine."""

    def __init__(self) -> None:
        self.embedded: dict[str, tuple[torch.Tensor, bool]] = {}
        """The embedding (width,) of each text, and whether the text was truncated."""

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        """Return unit-length embeddings. Texts longer than the context are truncated and flagged."""

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[ComparisonResult]:
        """Return the similarity of each pair by the given measure. Each distinct text is embedded only once.

        If an image has several unit-length embeddings (n, width) instead of one (width,), only the embedding nearest to
        the text counts.
        """
        from torch.nn.functional import cosine_similarity

        if len(self.embedded) > MAX_REMEMBERED_TEXTS:
            self.embedded.clear()
        texts = dict.fromkeys(text for pair in pairs for text in (pair.text, pair.source_text) if text)
        new = [text for text in texts if text not in self.embedded]
        encoded = self.encode_texts(new)
        self.embedded |= dict(zip(new, zip(encoded.features, encoded.truncated, strict=True), strict=True))
        results = []
        for pair in pairs:
            image, own = features[pair.image], [self.embedded[text] for text in (pair.text, pair.source_text) if text]
            if pair.source is None:
                similarity = float((image @ own[0][0]).max())
                if measure != "cosine":
                    similarity = self.scale * similarity + self.bias
                if measure == "match":
                    similarity = 1 / (1 + math.exp(-similarity))
            elif own:
                # an empty change has no direction, and its cosine with any other is 0
                change, intended = image - features[pair.source], own[0][0] - own[1][0]
                similarity = float(cosine_similarity(change, intended, dim=0))
            else:
                similarity = float(image @ features[pair.source])
            results.append(ComparisonResult(similarity, any(truncated for _, truncated in own)))
        return results


class Towers(LoadedImageModel, TextEncoder, DualEncoder):
    """Base class for dual encoders in transformers, with `get_image_features` and `get_text_features`."""

    context: int
    padded = False
    """True if the model was trained on texts padded to `context` tokens, and reads the padding like other tokens."""

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        DualEncoder.__init__(self)
        self.context = int(self.model.config.text_config.max_position_embeddings)
        self.scale = self.read_learned_scale()

    def read_learned_scale(self) -> float:
        """Return the learned factor that converts a cosine to the model's logit."""
        return math.exp(self.model.logit_scale.item())

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Any:
        """Return the image prepared by the checkpoint's processor, (3, height, width); `rule` is ignored."""
        return super().preprocess(image)

    def encode(self, pixels: Sequence[Any]) -> "list[torch.Tensor]":
        """Return unit-length embeddings of preprocessed images, each (width,), float32, on the CPU."""
        import torch

        with torch.inference_mode():
            return normalize_rows(self.model.get_image_features(**self.image_inputs(pixels)).pooler_output)

    def image_inputs(self, pixels: Sequence[Any]) -> "Mapping[str, torch.Tensor]":
        return {"pixel_values": self.batch(pixels)}

    def embed_texts(self, texts: Sequence[str]) -> "torch.Tensor":
        padding = "max_length" if self.padded else True
        inputs = self.tokenize(texts, context=self.context, padding=padding, return_attention_mask=not self.padded)
        mask = {} if self.padded else {"attention_mask": inputs.attention_mask}
        embeddings: torch.Tensor = self.model.get_text_features(input_ids=inputs.input_ids, **mask).pooler_output
        return embeddings


class JointEncoder(LoadedImageModel, ABC):
    """Base class for `similarity` networks whose text encoder attends to the states of the image."""

    context: int
    """Maximum number of tokens of a text; longer texts are truncated."""

    @classmethod
    def load_tokenizer(cls, model: ResolvedModel[Any]) -> Any:
        tokenizer = super().load_tokenizer(model)
        tokenizer.padding_side = "right"  # because the result is read at the first token
        return tokenizer

    @abstractmethod
    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return the similarity (n,) of texts (n, length) and image states (n, tokens, width).

        The mask is 0 for padding in the texts.
        """

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Any:
        """Return the image (3, height, width), preprocessed as during the model's training; `rule` is ignored."""
        return super().preprocess(image)

    def encode(self, pixels: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        """Return the vision tower's output states for each image, (tokens, width), on the model's device."""
        import torch

        with torch.inference_mode():
            return list(self.model.vision_model(pixel_values=self.batch(pixels)).last_hidden_state)

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[ComparisonResult]:
        """Return the similarity of each pair, computed by reading the text together with the image."""
        lengths = self.count_tokens([pair.text for pair in pairs])

        def read_batch(batch: Sequence[Pair]) -> list[float]:
            import torch

            states = torch.stack([features[pair.image] for pair in batch])
            words = self.tokenize([pair.text for pair in batch], context=self.context)
            similarities: list[float] = self.read(states, words.input_ids, words.attention_mask).float().tolist()
            return similarities

        similarities = call_in_batches(read_batch, pairs, lengths, size=self.pair_batch)
        return [ComparisonResult(one, length > self.context) for one, length in zip(similarities, lengths, strict=True)]


class MatchingEncoder(JointEncoder, TextEncoder, DualEncoder):
    """A JointEncoder that also embeds images and texts: `match` reads both together, `cosine` compares embeddings."""

    context: int

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        DualEncoder.__init__(self)

    @abstractmethod
    def embed_images(self, states: "torch.Tensor") -> "torch.Tensor":
        """Return one embedding per image (n, width), or several (n, k, width), for image states (n, tokens, width)."""

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[ComparisonResult]:
        import torch

        if measure == "match":
            return JointEncoder.compare(self, features, pairs)
        images = list(dict.fromkeys(pair.image for pair in pairs))

        def embed_batch(batch: Sequence[int]) -> list[torch.Tensor]:
            return normalize_rows(self.embed_images(torch.stack([features[image] for image in batch])))

        embedded: Any = dict(zip(images, call_in_batches(embed_batch, images, size=self.pair_batch), strict=True))
        return DualEncoder.compare(self, embedded, pairs)  # which only looks up the images of these pairs


class CosineVqa:
    """A dual encoder used as a VQA model: it serves the `likelihood` call, but cannot `reply`.

    Each choice is compared with the image as the text "question choice", with a question mark between them unless the
    question ends with one. The choices' likelihoods are the softmax of their cosines at the model's learned scale, so
    the likeliest choice has the largest cosine. Each choice counts as a single token followed by an end token with
    probability 1.
    """

    side_by_side = False

    def __init__(self, model: Towers) -> None:
        self.model = model
        self.usage = Usage()
        self.encode = model.encode

    def preprocess(self, image: Image.Image) -> Any:
        return self.model.preprocess(image)

    def likelihood(self, features: Sequence[Any], questions: Sequence[Question]) -> list[list[list[float]] | RowError]:
        """Return, for each question, each choice's normalised log-likelihood and a 0 for its end token, or an error."""
        pairs = [
            Pair(question.image, format_choice(question.text, choice))
            for question in questions
            for choice in question.choices
        ]
        compared = iter(self.model.compare(features, pairs, "logit"))
        return [
            _compute_choice_logprobs(question, list(islice(compared, len(question.choices)))) for question in questions
        ]

    def reply(self, features: Sequence[Any], questions: Sequence[Question]) -> list[RowError]:
        """Return an error for every question, because the model generates no text."""
        problem = "a model that only compares choices cannot generate text; set the metric's answers=likelihood"
        return [RowError("no_likelihood", problem)] * len(questions)


def format_choice(question: str, choice: str) -> str:
    """Return the text that is compared with the image for a choice: `question choice`, with ? after the question."""
    stem = question.rstrip()
    return f"{stem} {choice}" if stem.endswith("?") else f"{stem}? {choice}"


def _compute_choice_logprobs(question: Question, choices: Sequence[ComparisonResult]) -> list[list[float]] | RowError:
    """Return, for each choice, the log-softmax of its logit and a 0 for the end token.

    If there are fewer than two choices, or if one of them was truncated, an error is returned instead.
    """
    if len(choices) < 2:
        problem = "a model that compares choices cannot score a single choice"
        remedy = "use another VQA model, or a metric whose questions have several choices"
        return RowError("no_likelihood", f"{problem}; {remedy}")
    if any(choice.truncated for choice in choices):
        problem = f"{question.text!r} with its choices exceeds the model's context, so the choice would be cut"
        return RowError("prompt_too_long", f"{problem}; use a model with a longer context")
    largest = max(choice.similarity for choice in choices)
    total = largest + math.log(math.fsum(math.exp(choice.similarity - largest) for choice in choices))
    return [[choice.similarity - total, 0.0] for choice in choices]
