"""Encoder-decoder VQA models: a question is encoded with its image, and answers are scored by the decoder.

Every choice is scored by teacher forcing from the same encoding of its question.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch.nn.utils.rnn import pad_sequence

from plumbline.operators.base.batches import call_in_batches
from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import Question
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel

MAX_CACHED_CHOICES = 4096

TokenizedQuestion = tuple[Question, list[int]]
"""A question with its tokens."""


class EncodedQuestions(NamedTuple):
    """The encoder's output for a batch of questions, each with its image."""

    states: torch.Tensor
    """(n, tokens, width)."""
    mask: torch.Tensor
    """(n, tokens), 1 for tokens and 0 for padding."""


class EncoderDecoder(LoadedImageModel, ABC):
    """The `likelihood` call by an encoder that reads an image's features with a question, and a decoder."""

    pad_id: int

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self._choice = lru_cache(maxsize=MAX_CACHED_CHOICES)(self.choice_ids)

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        check_entries(model.folder("tokenizer"), loaded.tokenizer, loaded.rows)
        return loaded

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of tokens that have a row in the embedding."""

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def question_text(self, question: str) -> str:
        """Return the question as the encoder reads it."""
        return question

    @abstractmethod
    def read(self, images: torch.Tensor, questions: Sequence[str], ids: torch.Tensor) -> EncodedQuestions:
        """Encode image features (n, tokens, width) with questions, also as right-padded tokens (n, tokens)."""

    @abstractmethod
    def predict(self, encoded: EncodedQuestions, choices: Sequence[Sequence[list[int]]]) -> torch.Tensor:
        """Return teacher-forced logits (tokens, entries) of each question's choices, one token after the other."""

    @abstractmethod
    def write(self, encoded: EncodedQuestions) -> torch.Tensor:
        """Return the likeliest tokens (n, tokens) of each answer."""

    def choice_ids(self, choice: str) -> list[int]:
        """Return the tokens of an answer, including its end."""
        return list(self.tokenizer(choice).input_ids)

    def question_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of the questions for the encoder."""
        return list(self.tokenizer(list(texts)).input_ids)

    def likelihood(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[list[list[float]]]:
        """Return log-probabilities of every choice's tokens (vqascore_genai_bench.txt, eq. 3), by question.

        Questions are batched by length, so that little of a batch is padding.
        """
        tokenized = self._tokenize(questions)
        return call_in_batches(
            partial(self._answer, features), tokenized, [len(ids) for _, ids in tokenized], size=self.pair_batch
        )

    def reply(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[str]:
        return call_in_batches(partial(self._reply, features), questions, size=self.pair_batch)

    def _tokenize(self, questions: Sequence[Question]) -> list[TokenizedQuestion]:
        texts = [self.question_text(question.text) for question in questions]
        distinct = list(dict.fromkeys(texts))  # images of one prompt are asked the same
        ids = dict(zip(distinct, self.question_ids(distinct), strict=True)) if texts else {}
        return [(question, ids[text]) for question, text in zip(questions, texts, strict=True)]

    def _reply(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[str]:
        tokens = self.write(self._encode(features, self._tokenize(questions)))
        return [text.strip() for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]

    def _encode(self, features: Sequence[torch.Tensor], tokenized: Sequence[TokenizedQuestion]) -> EncodedQuestions:
        images = torch.stack([features[question.image] for question, _ in tokenized])
        texts = [self.question_text(question.text) for question, _ in tokenized]
        return self.read(images, texts, self.padded([ids for _, ids in tokenized]))

    def _answer(
        self, features: Sequence[torch.Tensor], tokenized: Sequence[TokenizedQuestion]
    ) -> list[list[list[float]]]:
        encoded = self._encode(features, tokenized)
        choices = [[self._choice(choice) for choice in question.choices] for question, _ in tokenized]
        tokens = torch.tensor([token for own in choices for choice in own for token in choice], device=self.device)
        logprobs = self.predict(encoded, choices).float().log_softmax(-1).gather(1, tokens[:, None])
        numbers = iter(logprobs[:, 0].tolist())
        return [[[next(numbers) for _ in choice] for choice in own] for own in choices]

    def padded(self, ids: Sequence[list[int]]) -> torch.Tensor:
        """Return rows of tokens as one tensor (n, tokens), padded on the right."""
        rows = [torch.tensor(row) for row in ids]
        return pad_sequence(rows, batch_first=True, padding_value=self.pad_id).to(self.device)


def check_entries(folder: Path, tokenizer: Any, rows: int) -> None:
    """Raise ModelError if the tokenizer in `folder` has more entries than the model's embedding has rows."""
    if len(tokenizer) > rows:
        raise ModelError(
            f"{folder}: the tokenizer has {len(tokenizer)} entries and the model's embedding {rows}; "
            "set the model's `tokenizer` to the one it was trained with"
        )
