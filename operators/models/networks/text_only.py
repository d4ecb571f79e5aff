"""Language models as VQA models that never see the image: an ablation of "What makes a good metric?"."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence

from plumbline.operators.base.batches import call_in_batches
from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import MAX_ANSWER_TOKENS, Generation, Message, Question, Request
from plumbline.operators.models.engines.conversation import (
    THINKING_PROBLEM,
    choice_ids,
    conversation_ids,
    conversation_text,
    opens_thought,
)
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.causal_lm import CausalLM, pad_left
from plumbline.operators.models.networks.encoder_decoder import check_entries
from plumbline.operators.models.networks.loaded import LoadedModel
from plumbline.operators.models.networks.t5 import greedy_settings

TOO_LONG = (
    "the question takes {} tokens, beyond the model's context of {}; shorten the prompt, or use a model with a longer "
    "context"
)


class TextOnly:
    """Base of models that answer from the question alone."""

    side_by_side = False

    def preprocess(self, image: Image.Image) -> None:
        """Return nothing: the model does not see the image."""

    def encode(self, pixels: Sequence[None]) -> Sequence[None]:
        """Return the placeholders unchanged."""
        return pixels


class TextOnlyVqa(TextOnly):
    """The `likelihood` call served from the question alone, so that the answer is the same for every image."""

    def __init__(self, language: CausalLM) -> None:
        """Raise ModelError if no token ends an answer, or the chat template opens a thought."""
        self.language = language
        self.tokenizer = language.tokenizer
        self.end = self.tokenizer.eos_token_id
        self.usage = Usage()
        name = self.tokenizer.name_or_path
        if self.end is None:
            raise ModelError(f"{name}: the tokenizer has no eos_token, which ends an answer; set it")
        if opens_thought(self._prompt("")):
            raise ModelError(f"{name}: {THINKING_PROBLEM}")

    @classmethod
    def load(cls, model: ResolvedModel[Any]) -> "TextOnlyVqa":
        return cls(CausalLM.load(model))

    def likelihood(self, features: Sequence[None], questions: Sequence[Question]) -> list[list[list[float]] | RowError]:
        """Return full-vocabulary log-probabilities of every choice's tokens and of the end of the turn.

        Each question is asked once, however many images it is about.
        """
        pairs = distinct_pairs(questions)
        read = dict(zip(pairs, self._read(pairs), strict=True))
        return [_join_choices([read[question.text, choice] for choice in question.choices]) for question in questions]

    def reply(self, features: Sequence[None], questions: Sequence[Question]) -> list[str | RowError]:
        texts = list(dict.fromkeys(question.text for question in questions))
        replies = self.language.generate([Request((Message("user", text),), MAX_ANSWER_TOKENS) for text in texts])
        for reply in replies:
            self.usage = self.usage.plus(reply.took if isinstance(reply, Generation) else Usage())
        answers = {
            text: reply if isinstance(reply, RowError) else reply.text.strip()
            for text, reply in zip(texts, replies, strict=True)
        }
        return [answers[question.text] for question in questions]

    def _prompt(self, question: str) -> str:
        return conversation_text(self.tokenizer, [Message("user", question)])

    def _read(self, pairs: Sequence[tuple[str, str]]) -> list[list[float] | RowError]:
        """Return the log-probabilities of each choice's tokens after its question, or an error if they do not fit."""
        rows = [
            (
                conversation_ids(self.tokenizer, [Message("user", text)]),
                choice_ids(self.tokenizer, self._prompt(text), choice, end=self.end),
            )
            for text, choice in pairs
        ]
        lengths = [len(prompt) + len(choice) for prompt, choice in rows]
        context = self.language.context
        fits = [context is None or length <= context for length in lengths]
        kept = [row for row, fit in zip(rows, fits, strict=True) if fit]
        sizes = [len(prompt) + len(choice) for prompt, choice in kept]
        scored = iter(call_in_batches(self._score, kept, sizes, size=self.language.pair_batch))
        refused = [RowError("prompt_too_long", TOO_LONG.format(length, context)) for length in lengths]
        return [next(scored) if fit else error for fit, error in zip(fits, refused, strict=True)]

    def _score(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        """Return the log-probabilities of the choices' tokens; rows are left-padded, so choices end together."""
        read = [[*prompt, *choice[:-1]] for prompt, choice in rows]
        ids, mask = pad_left(read, self.language.pad_id)
        logits = self._logits(ids, mask, keep=max(len(choice) for _, choice in rows))
        self.usage = self.usage.plus(Usage(calls=len(rows), prompt_tokens=sum(len(prompt) for prompt, _ in rows)))
        return [_gather_logprobs(own, choice) for own, (_, choice) in zip(logits, rows, strict=True)]

    def _logits(self, ids: torch.Tensor, mask: torch.Tensor, *, keep: int) -> torch.Tensor:
        """Return log-probabilities (n, keep, vocabulary) at the last positions."""
        model: Any = self.language.model
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits: torch.Tensor = model(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            position_ids=positions.to(model.device),
            logits_to_keep=keep,
            use_cache=False,
        ).logits
        return logits.float().log_softmax(-1)


class TextOnlyT5(TextOnly, LoadedModel):
    """The `likelihood` call of a T5 from the question alone: its encoder reads the question, its decoder answers."""

    architecture = "T5ForConditionalGeneration"

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        check_entries(model.folder("tokenizer"), loaded.tokenizer, int(loaded.model.shared.num_embeddings))
        return loaded

    @torch.inference_mode()
    def likelihood(self, features: Sequence[None], questions: Sequence[Question]) -> list[list[list[float]]]:
        """Return full-vocabulary log-probabilities of every choice's tokens and its end.

        Each question is asked once, however many images it is about.
        """
        pairs = distinct_pairs(questions)
        sizes = self.lengths([text for text, _ in pairs])
        read = dict(zip(pairs, call_in_batches(self._score, pairs, sizes, size=self.pair_batch), strict=True))
        return [[read[question.text, choice] for choice in question.choices] for question in questions]

    @torch.inference_mode()
    def reply(self, features: Sequence[None], questions: Sequence[Question]) -> list[str]:
        texts = list(dict.fromkeys(question.text for question in questions))
        written = call_in_batches(self._write, texts, self.lengths(texts), size=self.pair_batch)
        answers = dict(zip(texts, written, strict=True))
        return [answers[question.text] for question in questions]

    def _score(self, pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
        inputs = self._tokens([text for text, _ in pairs])
        choices = [list(self.tokenizer(choice).input_ids) for _, choice in pairs]
        start = int(self.model.config.decoder_start_token_id)
        before = pad_sequence([torch.tensor([start, *choice[:-1]]) for choice in choices], batch_first=True)
        logprobs = self.model(**inputs, decoder_input_ids=before.to(self.model.device)).logits.float().log_softmax(-1)
        return [_gather_logprobs(own[: len(choice)], choice) for own, choice in zip(logprobs, choices, strict=True)]

    def _write(self, texts: Sequence[str]) -> list[str]:
        settings = greedy_settings(self.model.config, self.tokenizer)
        tokens = self.model.generate(**self._tokens(texts), generation_config=settings)
        return [text.strip() for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]

    def _tokens(self, texts: Sequence[str]) -> Mapping[str, torch.Tensor]:
        read = self.tokens(texts, context=None)
        self.usage = self.usage.plus(Usage(calls=len(texts), prompt_tokens=int(read.attention_mask.sum())))
        return {"input_ids": read.input_ids, "attention_mask": read.attention_mask}


def distinct_pairs(questions: Sequence[Question]) -> list[tuple[str, str]]:
    """Return the texts of questions with each of their choices, without duplicates."""
    return list(dict.fromkeys((question.text, choice) for question in questions for choice in question.choices))


def _gather_logprobs(logprobs: torch.Tensor, choice: Sequence[int]) -> list[float]:
    own = logprobs[len(logprobs) - len(choice) :]
    values: list[float] = own.gather(1, torch.tensor(choice, device=own.device)[:, None])[:, 0].tolist()
    return values


def _join_choices(choices: Sequence[list[float] | RowError]) -> list[list[float]] | RowError:
    """Return a question's choices, or the error of the first that has one."""
    errors = [choice for choice in choices if isinstance(choice, RowError)]
    return errors[0] if errors else [choice for choice in choices if not isinstance(choice, RowError)]
