"""FGA-BLIP2 scores how well an image matches a prompt (1 to 5) and each word of the prompt (0 to 1); Han et al. 2024.

The score, the preparation of texts and images, and an element's score are those of DYEvaLab/EvalMuse 0fa141b: eval.py,
lavis/models/blip2_models/fga_blip2.py (element_score) and lavis/processors/blip_processors.py.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.batches import call_in_batches
from plumbline.operators.metrics.metric import Element, Evidence, Scored, ScoreRange
from plumbline.operators.metrics.similarities.similarity import SimilarityConfig
from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule
from plumbline.operators.models.checkpoints.parts import CONVERT_AGAIN_REMEDY, find_architecture
from plumbline.operators.models.family import TOKENIZER, Family, Files
from plumbline.operators.models.networks.loaded import LoadedImageModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

PUNCTUATION_PATTERN = re.compile(r"[.!\"()*#:;~]")
"""Characters that the release replaces with spaces."""
MAX_WORDS = 50
"""Number of words of a prompt that the release reads."""
LOWEST, HIGHEST = 1.0, 5.0
"""Scores for match probabilities of 0 and 1."""


class Word(NamedTuple):
    """A word of the prompt, as the model reads it."""

    text: str
    """The word as it is read, in lower case."""
    start: int
    """Index of its first character in the prompt."""
    end: int

    @property
    def name(self) -> str:
        """Name of the word's rating; `read_word` returns the word for this name."""
        return f"{self.start}:{self.end} {self.text}"


def read_word(name: str) -> Word:
    """Return the word whose rating has this name."""
    place, _, text = name.partition(" ")
    start, _, end = place.partition(":")
    return Word(text, int(start), int(end))


def find_words(prompt: str) -> list[Word]:
    """Return all words of the prompt as the model reads them: in lower case, split at spaces and punctuation.

    Letters whose lowercase form has more than one character stay as they are.
    """
    lowered = "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in prompt)
    return [Word(found[0], *found.span()) for found in re.finditer(r"\S+", PUNCTUATION_PATTERN.sub(" ", lowered))]


class FgaBlip2Similarity(LoadedImageModel):
    """A loaded FGA-BLIP2, which serves the `similarity` call. An image is encoded once for all its prompts."""

    architecture = "plumbline.plugins.reward_models.fga_blip2_network:FgaBlip2"

    @classmethod
    def load_tokenizer(cls, model: "ResolvedModel[Any]") -> Any:
        tokenizer = super().load_tokenizer(model)
        tokenizer.padding_side = "right"
        return tokenizer

    @property
    def context(self) -> int:
        return int(self.model.config.qformer_config.max_position_embeddings)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> Any:
        """Return the image resized to the network's square input, (3, height, width); `rule` is ignored."""
        return super().preprocess(image)

    def encode(self, pixels: "Sequence[torch.Tensor]") -> "list[torch.Tensor]":
        """Return the vision tower's states for each image (patches + 1, width), on the model's device."""
        import torch

        with torch.inference_mode():
            return list(self.model.vision_model(pixel_values=self.batch(pixels)).last_hidden_state)

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "reward"
    ) -> list[ComparisonResult]:
        """Return each pair's score, and for each word a rating: the probability that the image matches the word."""
        words = {pair.text: find_words(pair.text) for pair in pairs}
        texts = [" ".join(word.text for word in words[pair.text][:MAX_WORDS]) for pair in pairs]
        lengths = self.count_tokens(texts)

        def match(batch: Sequence[tuple[int, str]]) -> list[tuple[float, list[list[float]]]]:
            import torch

            states = torch.stack([features[image] for image, _ in batch])
            tokens = self.tokenize([text for _, text in batch], context=self.context)
            whole, parts = self.model.match(states, tokens.input_ids, tokens.attention_mask)
            scores: list[float] = (LOWEST + (HIGHEST - LOWEST) * whole.mean(dim=1)).tolist()
            return [
                (score, _group_by_word(text, tokens, row, part))
                for row, (score, part, (_, text)) in enumerate(zip(scores, parts.tolist(), batch, strict=True))
            ]

        asked = [(pair.image, text) for pair, text in zip(pairs, texts, strict=True)]
        results = []
        matched = call_in_batches(match, asked, lengths, size=self.pair_batch)
        for pair, (score, by_word), length in zip(pairs, matched, lengths, strict=True):
            read = words[pair.text]
            ratings = {word.name: fmean(own) for word, own in zip(read, by_word, strict=False) if own}
            results.append(ComparisonResult(score, len(read) > MAX_WORDS or length > self.context, ratings))
        return results


def _group_by_word(text: str, tokens: Any, row: int, numbers: Sequence[float]) -> list[list[float]]:
    """Group a row's numbers, one per token, by the word that contains the token; `text` has spaces between words."""
    words: list[list[float]] = [[] for _ in text.split(" ")]
    for place, number in enumerate(numbers):
        span = tokens.token_to_chars(row, place)  # None for special tokens and for padding
        if span is not None:
            words[text.count(" ", 0, span.start)].append(number)
    return words


@dataclass(frozen=True, kw_only=True, slots=True)
class FgaBlip2Config(SimilarityConfig):
    """A score from 1 to 5 for the image and its prompt, and a score from 0 to 1 for each word of the prompt."""

    kind: Literal["fga_blip2"] = "fga_blip2"  # type: ignore[assignment]
    story: ClassVar[str] = (
        "lets a BLIP-2 that was trained on people's ratings read the prompt with the image: how well they fit as a "
        "whole, from 1 to 5, and how likely the image shows each word"
    )
    model: str = "fga_blip2"
    """Role of the model."""
    measure: Measure = "reward"

    @property
    def score_range(self) -> ScoreRange:
        return (LOWEST, HIGHEST)

    def score(self, evidence: Evidence) -> Scored:
        """Return the model's score, with the ratings of the words as elements."""
        scored = SimilarityConfig.score(self, evidence)
        words = [(read_word(rating.name), rating.value) for rating in scored.ratings or ()]
        elements = [
            Element(
                question_id=f"{word.start}:{word.end}",
                text=word.text,
                span=word.text,
                start=word.start,
                end=word.end,
                wanted=None,
                given=None,
                score=value,
            )
            for word, value in words
        ]
        return scored._replace(ratings=None, elements=tuple(elements))


FAMILY = Family(
    loads={"similarity": FgaBlip2Similarity.load},
    form="an FgaBlip2 folder from jobs.convert",
    suits=lambda fields: find_architecture(fields) == "FgaBlip2",
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), CONVERT_AGAIN_REMEDY)),
    measures=("reward",),
)
"""A BLIP-2 that was trained on people's ratings of images and of the elements of their prompts (Han et al. 2024)."""
