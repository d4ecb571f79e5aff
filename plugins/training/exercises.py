"""Training exercises for CLIP-FlanT5: captions split in two, questions with answers, and people's ratings of images.

VQAScore paper (Lin et al. 2024), appendix D. Stage 1 trains the projector on captions: the encoder reads the first part
of a caption, and the decoder writes the rest (BLIP-2's split text). Stage 2 trains everything except the vision tower
on questions phrased as at inference.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from plumbline.operators.models.networks.clip_flant5 import TEXT_AFTER_IMAGE, TEXT_BEFORE_IMAGE, ClipFlanT5

CAPTION_INPUT_FORMAT = "\n{}"
YES, NO = "Yes", "No"
TRAINED_PARTS = ("mm_projector", "language_model")
"""Parts of the network that can be trained. The vision tower always stays frozen."""


class Exercise(NamedTuple):
    """An image with a text, and the answer that the network learns to give."""

    image: int
    """Index into the batch's images."""
    before: str
    """Text before the image. It must be the same for all exercises of a batch."""
    after: str
    answer: str
    weight: float = 1.0
    """Weight of each token of the answer."""


class ExerciseBatch(NamedTuple):
    """Input of one training step."""

    pixels: torch.Tensor
    """Preprocessed images (images, 3, side, side)."""
    images: torch.Tensor
    """Index of each exercise's image (n,)."""
    before: torch.Tensor
    """Token ids of the text before every image."""
    after: torch.Tensor
    """Token ids of the text after the image (n, tokens), right-padded."""
    labels: torch.Tensor
    """Token ids of the answers (n, tokens), right-padded."""
    weights: torch.Tensor
    """Weight of each exercise (n,)."""

    def to(self, device: torch.device) -> "ExerciseBatch":
        return ExerciseBatch(*(tensor.to(device, non_blocking=True) for tensor in self))


def split_caption(image: int, caption: str, rng: Random) -> Exercise:
    """Split a caption at a random word. The network reads the first part (which may be empty) and writes the second."""
    words = caption.split()
    cut = rng.randrange(len(words))
    return Exercise(image, "", CAPTION_INPUT_FORMAT.format(" ".join(words[:cut])), " ".join(words[cut:]))


def make_question_exercise(image: int, question: str, answer: str, weight: float = 1.0) -> Exercise:
    """Return an exercise that asks a question in CLIP-FlanT5's conversation format."""
    return Exercise(image, TEXT_BEFORE_IMAGE, TEXT_AFTER_IMAGE.format(question=question), answer, weight)


def make_rating_exercises(
    tokenizer: PreTrainedTokenizerBase, image: int, question: str, target: float
) -> list[Exercise]:
    """Return exercises whose cross-entropy is minimal if VQAScore equals the target, a rating from 0 to 1.

    VQAScore is the geometric mean of the likelihoods of the tokens of Yes, so the target likelihood of Yes is a power
    of the rating.
    """
    likelihood = target ** len(tokenizer(YES).input_ids)
    return [
        make_question_exercise(image, question, YES, likelihood),
        make_question_exercise(image, question, NO, 1 - likelihood),
    ]


def make_batch(
    tokenizer: PreTrainedTokenizerBase, pixels: torch.Tensor, exercises: Sequence[Exercise]
) -> ExerciseBatch:
    """Convert exercises to tensors. All exercises must have the same text before the image."""
    return ExerciseBatch(
        pixels=pixels,
        images=torch.tensor([exercise.image for exercise in exercises]),
        before=torch.tensor(tokenizer(exercises[0].before).input_ids),
        after=_pad_texts(tokenizer, [exercise.after for exercise in exercises]),
        labels=_pad_texts(tokenizer, [exercise.answer for exercise in exercises]),
        weights=torch.tensor([exercise.weight for exercise in exercises]),
    )


def _pad_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> torch.Tensor:
    rows = [torch.tensor(ids) for ids in tokenizer(list(texts)).input_ids]
    return pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)


def compute_exercise_loss(model: ClipFlanT5, batch: ExerciseBatch) -> torch.Tensor:
    """Return the weighted mean cross-entropy over the answers' tokens, including EOS. Each image is encoded once."""
    features = model.encode_images(batch.pixels)[batch.images]
    logits = model.decode(model.encode_questions(features, batch.before, batch.after), batch.labels)
    tokens = cross_entropy(logits.float().transpose(1, 2), batch.labels, ignore_index=model.pad_id, reduction="none")
    weights = (batch.labels != model.pad_id) * batch.weights[:, None]
    return (tokens * weights).sum() / weights.sum()
