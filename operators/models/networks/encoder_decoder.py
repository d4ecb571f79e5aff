"""Encoder-decoder VQA models: a question is encoded together with its image, and the decoder scores answers.

Every choice is scored by teacher forcing from the same encoding of its question.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig
from transformers import T5ForConditionalGeneration as T5
from transformers.activations import NewGELUActivation
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.t5.modeling_t5 import T5LayerNorm

from plumbline.operators.base.batches import call_in_batches
from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import MAX_ANSWER_TOKENS, Question
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.attention import SIZE_ALIGNMENT
from plumbline.operators.models.networks.loaded import LoadedImageModel

MAX_CACHED_CHOICES = 4096
COMPILED_ALIGNMENT = 64
"""Multiple of tokens to which the input of a compiled encoder is padded, so that only a few lengths have to be
compiled.
"""

TokenizedQuestion = tuple[Question, list[int]]


class EncodedQuestions(NamedTuple):
    """The encoder's output for a batch of questions, each with its image."""

    states: torch.Tensor
    """Output states, (n, tokens, width)."""
    mask: torch.Tensor
    """Mask (n, tokens): 1 for tokens and 0 for padding."""


class EncoderDecoder(LoadedImageModel, ABC):
    """Base class for encoder-decoder models, which serve the `likelihood` call.

    The encoder reads image features together with a question, and the decoder scores or writes answers.
    """

    pad_id: int

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self._cached_choice_ids = lru_cache(maxsize=MAX_CACHED_CHOICES)(self.tokenize_choice)

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        check_entries(model.folder("tokenizer"), loaded.tokenizer, loaded.rows)
        return loaded

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of rows of the token embedding, which may exceed the number of tokens."""

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def format_question(self, question: str) -> str:
        """Return the question in the form that the encoder reads."""
        return question

    @abstractmethod
    def read(self, images: torch.Tensor, questions: Sequence[str], ids: torch.Tensor) -> EncodedQuestions:
        """Return the encoder's output for image features (n, tokens, width), each with its question.

        `ids` (n, tokens) are the tokens of the questions.
        """

    @abstractmethod
    def predict(self, encoded: EncodedQuestions, choices: Sequence[Sequence[list[int]]]) -> torch.Tensor:
        """Return teacher-forced logits (tokens, entries) for the tokens of all questions' choices, concatenated."""

    @abstractmethod
    def write(self, encoded: EncodedQuestions) -> torch.Tensor:
        """Return, for each encoded question, the tokens (n, tokens) of the likeliest answer."""

    def tokenize_choice(self, choice: str) -> list[int]:
        """Return the tokens of an answer, including the end token."""
        return list(self.tokenizer(choice).input_ids)

    def tokenize_questions(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of the questions as input for the encoder."""
        return list(self.tokenizer(list(texts)).input_ids)

    def likelihood(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[list[list[float]]]:
        """Return the log-probabilities of every choice's tokens for each question (vqascore_genai_bench.txt, eq. 3)."""
        tokenized = self._tokenize_batch(questions)
        lengths = [len(ids) for _, ids in tokenized]  # batches of similar length need little padding
        return call_in_batches(partial(self._score_batch, features), tokenized, lengths, size=self.pair_batch)

    def reply(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[str]:
        def answer_batch(batch: Sequence[Question]) -> list[str]:
            tokens = self.write(self._encode_questions(features, self._tokenize_batch(batch)))
            return [text.strip() for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]

        return call_in_batches(answer_batch, questions, size=self.pair_batch)

    def _tokenize_batch(self, questions: Sequence[Question]) -> list[TokenizedQuestion]:
        texts = [self.format_question(question.text) for question in questions]
        distinct = list(dict.fromkeys(texts))  # images of one prompt are asked the same questions
        ids = dict(zip(distinct, self.tokenize_questions(distinct), strict=True)) if texts else {}
        return [(question, ids[text]) for question, text in zip(questions, texts, strict=True)]

    def _encode_questions(
        self, features: Sequence[torch.Tensor], tokenized: Sequence[TokenizedQuestion]
    ) -> EncodedQuestions:
        images = torch.stack([features[question.image] for question, _ in tokenized])
        texts = [self.format_question(question.text) for question, _ in tokenized]
        return self.read(images, texts, self.pad_right([ids for _, ids in tokenized]))

    def _score_batch(
        self, features: Sequence[torch.Tensor], tokenized: Sequence[TokenizedQuestion]
    ) -> list[list[list[float]]]:
        encoded = self._encode_questions(features, tokenized)
        choices = [[self._cached_choice_ids(choice) for choice in question.choices] for question, _ in tokenized]
        tokens = torch.tensor([token for row in choices for choice in row for token in choice], device=self.device)
        logprobs = self.predict(encoded, choices).float().log_softmax(-1).gather(1, tokens[:, None])
        numbers = iter(logprobs[:, 0].tolist())
        return [[[next(numbers) for _ in choice] for choice in row] for row in choices]

    def pad_right(self, ids: Sequence[list[int]]) -> torch.Tensor:
        """Return rows of tokens as one tensor (n, tokens), padded on the right."""
        return _pad_rows(ids, self.pad_id, self.device)


def check_entries(folder: Path, tokenizer: Any, rows: int) -> None:
    """Raise ModelError if the tokenizer in `folder` has more entries than the model's embedding has rows."""
    if len(tokenizer) > rows:
        raise ModelError(
            f"{folder}: the tokenizer has {len(tokenizer)} entries, but the model's embedding has only {rows} rows; "
            "set the model's `tokenizer` to the tokenizer that it was trained with"
        )


class T5AnswerModel(EncoderDecoder):
    """Base class for encoder-decoder VQA models whose language model is a T5."""

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.t5: T5 = self.model.language_model
        fuse_kernels(self.t5)
        self.pad_id = int(self.t5.config.pad_token_id)
        self.before = torch.empty(0, dtype=torch.long, device=self.device)
        """Tokens of the prompt before the image."""
        suppressed = list(range(self.entries, self.rows)) or None
        self.t5.generation_config = make_greedy_settings(self.t5.config, self.tokenizer, suppress_tokens=suppressed)
        self.alignment = SIZE_ALIGNMENT if self.device.type == "cuda" else 1

    def compile(self) -> None:
        """Compile the encoder's blocks once; the compiled code serves all blocks and any number of questions."""
        self.alignment = COMPILED_ALIGNMENT
        for block in self.t5.encoder.block:
            block.compile()

    @property
    def entries(self) -> int:
        """Number of embedding rows that belong to a token; further rows are unused."""
        return self.rows

    @property
    def rows(self) -> int:
        return int(self.t5.shared.num_embeddings)

    def read(self, images: torch.Tensor, questions: Sequence[str], ids: torch.Tensor) -> EncodedQuestions:
        return encode_image_and_text(self.t5, images, self.before, ids, alignment=self.alignment)

    def predict(self, encoded: EncodedQuestions, choices: Sequence[Sequence[list[int]]]) -> torch.Tensor:
        return compute_choice_logits(self.t5, encoded, choices)[..., : self.entries]

    def write(self, encoded: EncodedQuestions) -> torch.Tensor:
        states = BaseModelOutput(last_hidden_state=encoded.states)
        tokens: torch.Tensor = self.t5.generate(encoder_outputs=states, attention_mask=encoded.mask)
        return tokens


def make_greedy_settings(config: Any, tokenizer: Any, **options: Any) -> GenerationConfig:
    """Return settings for greedy answers from a T5, without the penalties in the checkpoint's config."""
    return GenerationConfig(
        max_new_tokens=MAX_ANSWER_TOKENS,
        do_sample=False,
        decoder_start_token_id=int(config.decoder_start_token_id),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=config.pad_token_id,
        **options,
    )


def encode_image_and_text(
    t5: T5, features: torch.Tensor, before: torch.Tensor, after: torch.Tensor, *, alignment: int = 1
) -> EncodedQuestions:
    """Return the encoder's output for image tokens (n, tokens, d_model) between two texts.

    The token ids `before` (b) precede every image, and `after` (n, a), padded on the right, follow it.
    """
    head = t5.shared(before).expand(len(features), -1, -1)
    inputs = torch.cat([head, features.to(head.dtype), t5.shared(after)], dim=1)
    mask = torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device)
    mask[:, inputs.shape[1] - after.shape[1] :] = (after != t5.config.pad_token_id).long()
    return encode(t5, inputs, mask, alignment=alignment)


def join_encodings(parts: Sequence[EncodedQuestions]) -> EncodedQuestions:
    """Return encodings of the same questions joined along the tokens, so that a decoder attends to all of them."""
    return EncodedQuestions(torch.cat([each.states for each in parts], 1), torch.cat([each.mask for each in parts], 1))


def encode(t5: T5, inputs: torch.Tensor, mask: torch.Tensor, *, alignment: int = 1) -> EncodedQuestions:
    """Return the encoder's output for inputs (n, tokens, d_model), padded to a multiple of `alignment` tokens.

    The padding is on the right. The additive mask of position biases and padding is built once. Transformers builds it
    in each layer, which takes 1.7 GB for 64 images in an XL model.
    """
    if t5.training:  # with dropout
        return EncodedQuestions(t5.encoder(inputs_embeds=inputs, attention_mask=mask).last_hidden_state, mask)
    padding = -inputs.shape[1] % alignment
    inputs, mask = pad(inputs, (0, 0, 0, padding)), pad(mask, (0, padding))
    bias = _compute_position_bias(t5.encoder, inputs.shape[1], inputs.device)
    if not mask.all():  # otherwise all rows share one bias
        bias = _add_mask(bias, mask[:, None, None, :].bool())
    for batched in (inputs, bias):  # a compiled block then takes any number of questions
        torch._dynamo.maybe_mark_dynamic(batched, 0)
    states = inputs
    for block in t5.encoder.block:
        states = block(states, None, bias)[0]
    return EncodedQuestions(t5.encoder.final_layer_norm(states), mask)


def compute_choice_logits(t5: T5, encoded: EncodedQuestions, choices: Sequence[Sequence[list[int]]]) -> torch.Tensor:
    """Return teacher-forced logits (tokens of all choices, rows).

    A question's choices are decoded in one sequence, without attending to each other; transformers would need a copy of
    the encoder's output for each choice.
    """
    start, device = t5.config.decoder_start_token_id, encoded.states.device
    ids = _pad_rows([[token for choice in row for token in [start, *choice[:-1]]] for row in choices], 0, device)
    positions = _pad_rows([[index for choice in row for index in range(len(choice))] for row in choices], 0, device)
    owners = _pad_rows([[number for number, choice in enumerate(row) for _ in choice] for row in choices], -1, device)
    bias_table = _compute_position_bias(t5.decoder, int(positions.max()) + 1, device)[0]
    bias = bias_table[:, positions[:, :, None], positions[:, None, :]].transpose(0, 1).contiguous()
    same_choice = owners[:, :, None] == owners[:, None, :]
    bias = _add_mask(bias, (same_choice & (positions[:, None, :] <= positions[:, :, None]))[:, None])
    image = _add_mask(torch.zeros((), dtype=encoded.states.dtype, device=device), encoded.mask[:, None, None, :].bool())
    image = image.expand(-1, t5.config.num_heads, ids.shape[1], -1)
    states = t5.shared(ids)
    for block in t5.decoder.block:
        states = block(states, None, bias, encoded.states, None, image)[0]
    states = t5.decoder.final_layer_norm(states)[owners >= 0]
    if t5.config.scale_decoder_outputs:
        states = states * t5.model_dim**-0.5
    logits: torch.Tensor = t5.lm_head(states)
    return logits


def fuse_kernels(t5: T5) -> None:
    """Replace GELUs (tanh approximation, seven kernels) and norms (five kernels) with modules that run one kernel."""
    for module in list(t5.modules()):
        if isinstance(getattr(module, "act", None), NewGELUActivation):
            module.act = nn.GELU(approximate="tanh")
        for name, child in list(module.named_children()):
            if isinstance(child, T5LayerNorm):
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, device="meta")
                norm.weight = child.weight
                setattr(module, name, norm)


def _compute_position_bias(stack: Any, length: int, device: torch.device) -> torch.Tensor:
    """Return the position bias (1, heads, length, length) of an encoder or decoder, contiguous along each row.

    In transformers' bias the heads are contiguous. A GPU's attention kernels do not accept such a mask: torch then
    computes attention step by step in float32, and CLIP-FlanT5-XL as a whole takes 2.6 times as long on an H200.
    """
    bias: torch.Tensor = stack.block[0].layer[0].SelfAttention.compute_bias(length, length, device=device)
    return bias.contiguous()


def _add_mask(bias: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen, bias, torch.finfo(bias.dtype).min)


def _pad_rows(rows: Sequence[Sequence[int]], padding: int, device: torch.device) -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=padding).to(device)
