"""What encoder-decoder VQA models share: a question is encoded with its image, and answers are scored by the decoder.

Every choice is scored by teacher forcing from the one encoding of its question.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig
from transformers import T5ForConditionalGeneration as T5
from transformers.modeling_outputs import BaseModelOutput

from plumbline.operators.batches import in_batches
from plumbline.operators.errors import ModelError
from plumbline.operators.models.calls import LONGEST_REPLY, Question
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel

CACHED_CHOICES = 4096

TokenizedQuestion = tuple[Question, list[int]]
"""A question with its tokens."""


class Encoded(NamedTuple):
    """The encoder's output for a batch of questions, each with its image."""

    states: torch.Tensor
    """(n, tokens, width)."""
    mask: torch.Tensor
    """(n, tokens), 1 where a token stands."""


class EncoderDecoder(LoadedImageModel, ABC):
    """The `likelihood` call by an encoder that reads an image's features with a question, and a decoder."""

    pad_id: int

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self._choice = lru_cache(maxsize=CACHED_CHOICES)(self.choice_ids)

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        check_entries(model.folder("tokenizer"), loaded.tokenizer, loaded.rows)
        return loaded

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many tokens the embedding has a row for."""

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        device: torch.device = self.model.device
        return device

    def question_text(self, question: str) -> str:
        """The question as the encoder reads it."""
        return question

    @abstractmethod
    def read(self, images: torch.Tensor, questions: Sequence[str], ids: torch.Tensor) -> Encoded:
        """Image features (n, tokens, width) with their questions, as texts and as right-padded tokens (n, tokens)."""

    @abstractmethod
    def predict(self, encoded: Encoded, labels: torch.Tensor) -> torch.Tensor:
        """Teacher-forced logits (n, tokens, entries) of the right-padded `labels` (n, tokens)."""

    @abstractmethod
    def write(self, encoded: Encoded) -> torch.Tensor:
        """The likeliest tokens (n, tokens) of each answer."""

    def choice_ids(self, choice: str) -> list[int]:
        """The tokens of an answer, its end included."""
        return list(self.tokenizer(choice).input_ids)

    def question_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of the questions that are to be encoded."""
        return list(self.tokenizer(list(texts)).input_ids)

    def likelihood(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[list[list[float]]]:
        """Log-probabilities of every choice's tokens (vqascore_genai_bench.txt, eq. 3), by question.

        Questions are batched by length, so that little of a batch is padding.
        """
        tokenized = self._tokenized(questions)
        return in_batches(
            partial(self._answer, features), tokenized, [len(ids) for _, ids in tokenized], size=self.pair_batch
        )

    def reply(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[str]:
        """The model's own answer to every question, by greedy decoding, in the order of `questions`."""
        return in_batches(partial(self._reply, features), questions, size=self.pair_batch)

    def _tokenized(self, questions: Sequence[Question]) -> list[TokenizedQuestion]:
        texts = [self.question_text(question.text) for question in questions]
        return list(zip(questions, self.question_ids(texts), strict=True)) if texts else []

    def _reply(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[str]:
        tokens = self.write(self._encode(features, self._tokenized(questions)))
        return [text.strip() for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]

    def _encode(self, features: Sequence[torch.Tensor], tokenized: Sequence[TokenizedQuestion]) -> Encoded:
        images = torch.stack([features[question.image] for question, _ in tokenized])
        texts = [self.question_text(question.text) for question, _ in tokenized]
        return self.read(images, texts, self.padded([ids for _, ids in tokenized]))

    def _answer(
        self, features: Sequence[torch.Tensor], tokenized: Sequence[TokenizedQuestion]
    ) -> list[list[list[float]]]:
        encoded = self._encode(features, tokenized)
        owners = [row for row, (question, _) in enumerate(tokenized) for _ in question.choices]
        labels = [self._choice(choice) for question, _ in tokenized for choice in question.choices]
        padded = self.padded(labels)
        rows = torch.tensor(owners, device=self.device)
        logits = self.predict(Encoded(encoded.states[rows], encoded.mask[rows]), padded).float()
        chosen = torch.gather(logits.log_softmax(-1), 2, padded.unsqueeze(-1)).squeeze(-1).cpu()
        answers: list[list[list[float]]] = [[] for _ in tokenized]
        for owner, label, logprobs in zip(owners, labels, chosen, strict=True):
            answers[owner].append(logprobs[: len(label)].tolist())
        return answers

    def padded(self, ids: Sequence[list[int]]) -> torch.Tensor:
        """Rows of tokens as one tensor (n, tokens), padded on the right."""
        rows = [torch.tensor(row) for row in ids]
        return pad_sequence(rows, batch_first=True, padding_value=self.pad_id).to(self.device)


class T5Answers(EncoderDecoder):
    """An EncoderDecoder whose language model is a T5."""

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.t5: T5 = self.model.language_model
        self.pad_id = int(self.t5.config.pad_token_id)
        self.before = torch.empty(0, dtype=torch.long, device=self.device)
        self.t5.generation_config = self._greedy()

    @property
    def entries(self) -> int:
        """The rows of the embedding that a token may be."""
        return self.rows

    @property
    def rows(self) -> int:
        return int(self.t5.shared.num_embeddings)

    def read(self, images: torch.Tensor, questions: Sequence[str], ids: torch.Tensor) -> Encoded:
        """Image tokens (n, tokens, d_model) between the tokens `before` every image and their questions, encoded."""
        return encode_beside(self.t5, images, self.before, ids)

    def predict(self, encoded: Encoded, labels: torch.Tensor) -> torch.Tensor:
        return decode(self.t5, encoded, labels)[..., : self.entries]

    def write(self, encoded: Encoded) -> torch.Tensor:
        tokens: torch.Tensor = self.t5.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded.states), attention_mask=encoded.mask
        )
        return tokens

    def _greedy(self) -> GenerationConfig:
        """Plain greedy decoding, whatever penalties the checkpoint's config names."""
        return GenerationConfig(
            max_new_tokens=LONGEST_REPLY,
            do_sample=False,
            decoder_start_token_id=int(self.t5.config.decoder_start_token_id),
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.pad_id,
            suppress_tokens=list(range(self.entries, self.rows)) or None,
        )


def encode_beside(t5: T5, features: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> Encoded:
    """Image tokens (n, tokens, d_model) between `before` (b) and right-padded `after` (n, a) token ids, encoded."""
    head = t5.shared(before).expand(len(features), -1, -1)
    inputs = torch.cat([head, features.to(head.dtype), t5.shared(after)], dim=1)
    mask = torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device)
    mask[:, inputs.shape[1] - after.shape[1] :] = (after != t5.config.pad_token_id).long()
    return Encoded(t5.encoder(inputs_embeds=inputs, attention_mask=mask).last_hidden_state, mask)


def decode(t5: T5, encoded: Encoded, labels: torch.Tensor) -> torch.Tensor:
    """Teacher-forced logits (n, tokens, rows) of the right-padded `labels` (n, tokens)."""
    start = torch.full_like(labels[:, :1], t5.config.decoder_start_token_id)
    output = t5(
        encoder_outputs=BaseModelOutput(last_hidden_state=encoded.states),
        attention_mask=encoded.mask,
        decoder_input_ids=torch.cat([start, labels[:, :-1]], dim=1),
        use_cache=False,
    )
    logits: torch.Tensor = output.logits
    return logits


def check_entries(folder: Path, tokenizer: Any, rows: int) -> None:
    """Raises ModelError where the tokenizer in `folder` has more entries than the model's embedding has rows."""
    if len(tokenizer) > rows:
        raise ModelError(
            f"{folder}: the tokenizer has {len(tokenizer)} entries and the model's embedding {rows}; "
            "set the model's `tokenizer` to the one it was trained with"
        )
