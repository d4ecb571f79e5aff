"""Dual encoders as VQA models: the choice that fits the image best with its question ("What makes a good metric?").

An ablation of that paper: a metric that loses nothing by it has no need of a VQA model.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import Call, Compared, Pair, Question
from plumbline.operators.models.vqa_profiles import FIRST_TOKEN, VqaProfile

if TYPE_CHECKING:
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.networks.dual_encoder import Towers

COSINE = VqaProfile(name="cosine", asks=FIRST_TOKEN, compares=True)
NO_WORDS = RowError(
    "no_likelihood", "a model that compares choices has no words of its own; set the metric's answers=likelihood"
)


class CosineVqa:
    """The `likelihood` call served by a dual encoder, which has no `reply`.

    Each choice is compared as the text "question choice", with a question mark between them where the question ends
    with none. The choices' likelihoods are the softmax of their cosines in the scale that the model learnt, so that the
    likeliest is the one with the largest cosine; each counts as one token, whose end is taken for certain.
    """

    side_by_side = False

    def __init__(self, model: "Towers") -> None:
        self.model = model
        self.usage = Usage()

    def preprocess(self, image: "Image.Image") -> Any:
        """The image as for the `similarity` call."""
        return self.model.preprocess(image)

    def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
        """Preprocessed images as unit-length embeddings."""
        return self.model.encode(pixels)

    def likelihood(self, features: Sequence[Any], questions: Sequence[Question]) -> list[list[list[float]] | RowError]:
        """The log-likelihood of every choice among those of its question, and 0 for its end, or an error."""
        pairs = [
            Pair(question.image, choice_text(question.text, choice))
            for question in questions
            for choice in question.choices
        ]
        compared = iter(self.model.compare(features, pairs, "logit"))
        return [_weighed(question, compared) for question in questions]

    def reply(self, features: Sequence[Any], questions: Sequence[Question]) -> list[RowError]:
        """Nothing but why there is none."""
        return [NO_WORDS] * len(questions)


def dual_encoder(towers: "type[Towers]") -> "Mapping[Call, Callable[[ResolvedModel[Any]], Any]]":
    """What loads a dual encoder, by the calls that each serves."""
    return {
        "similarity": towers.load,
        "embedding": towers.load,
        "likelihood": lambda model: CosineVqa(towers.load(model)),
    }


def choice_text(question: str, choice: str) -> str:
    """The text by which a choice is compared."""
    stem = question.rstrip()
    return f"{stem} {choice}" if stem.endswith("?") else f"{stem}? {choice}"


def _weighed(question: Question, compared: Iterator[Compared]) -> list[list[float]] | RowError:
    """The log-softmax of the choices' logits, or why it says nothing."""
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
