"""Language models that answer VQA questions without the image: an ablation from "What makes a good metric?"."""

from abc import ABC, abstractmethod
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
    opens_thought,
    render_conversation,
    tokenize_choice,
    tokenize_conversation,
)
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.causal_lm import CausalLM, pad_left
from plumbline.operators.models.networks.encoder_decoder import check_entries, make_greedy_settings
from plumbline.operators.models.networks.loaded import LoadedModel

TOO_LONG_MESSAGE = (
    "the question takes {} tokens, beyond the model's context of {}; shorten the prompt, or use a model with a longer "
    "context"
)


class TextOnlyModel(ABC):
    """Base class for models that answer from the question alone, so that the answer is the same for every image.

    Each question is asked once, no matter how many images it is about.
    """

    side_by_side = False

    @abstractmethod
    def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[list[float] | RowError]:
        """Return the log-probabilities of each choice's tokens and end token, given the question, or an error.

        They are normalised over the full vocabulary.
        """

    @abstractmethod
    def write(self, texts: Sequence[str]) -> Sequence[str | RowError]:
        """Return, for each question text, the likeliest answer in the model's own words, or an error."""

    def preprocess(self, image: Image.Image) -> tuple[()]:
        return ()  # the model sees no image

    def encode(self, pixels: Sequence[tuple[()]]) -> Sequence[tuple[()]]:
        return pixels

    def likelihood(
        self, features: Sequence[tuple[()]], questions: Sequence[Question]
    ) -> list[list[list[float]] | RowError]:
        pairs = list(dict.fromkeys((question.text, choice) for question in questions for choice in question.choices))
        scored = dict(zip(pairs, self.score(pairs), strict=True))
        answers: list[list[list[float]] | RowError] = []
        for question in questions:
            choices = [scored[question.text, choice] for choice in question.choices]
            error = next((choice for choice in choices if isinstance(choice, RowError)), None)
            answers.append(error or [choice for choice in choices if not isinstance(choice, RowError)])
        return answers

    def reply(self, features: Sequence[tuple[()]], questions: Sequence[Question]) -> list[str | RowError]:
        texts = list(dict.fromkeys(question.text for question in questions))
        answers = dict(zip(texts, self.write(texts), strict=True))
        return [answers[question.text] for question in questions]


class TextOnlyVqa(TextOnlyModel):
    """A decoder-only language model, which serves the `likelihood` call. It sees only the question."""

    def __init__(self, language: CausalLM) -> None:
        """Check the tokenizer; raise ModelError if no token ends an answer or the chat template starts a thought."""
        self.language = language
        self.tokenizer = language.tokenizer
        self.end = self.tokenizer.eos_token_id
        self.usage = Usage()
        name = self.tokenizer.name_or_path
        if self.end is None:
            raise ModelError(
                f"{name}: the tokenizer has no eos_token, which is needed to end an answer; set it in "
                "tokenizer_config.json"
            )
        if opens_thought(render_conversation(self.tokenizer, [Message("user", "")])):
            raise ModelError(f"{name}: {THINKING_PROBLEM}")

    @classmethod
    def load(cls, model: ResolvedModel[Any]) -> "TextOnlyVqa":
        return cls(CausalLM.load(model))

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[list[float] | RowError]:
        context = self.language.context
        rows: list[tuple[list[int], list[int]]] = []
        errors: dict[int, RowError] = {}
        for index, (text, choice) in enumerate(pairs):
            messages = [Message("user", text)]
            prompt = tokenize_conversation(self.tokenizer, messages)
            rendered = render_conversation(self.tokenizer, messages)
            answer = tokenize_choice(self.tokenizer, rendered, choice, end=self.end)
            tokens = len(prompt) + len(answer)
            if context is not None and tokens > context:
                errors[index] = RowError("prompt_too_long", TOO_LONG_MESSAGE.format(tokens, context))
            else:
                rows.append((prompt, answer))
        lengths = [len(prompt) + len(answer) for prompt, answer in rows]
        scored = iter(call_in_batches(self._score_batch, rows, lengths, size=self.language.pair_batch))
        return [errors[index] if index in errors else next(scored) for index in range(len(pairs))]

    def write(self, texts: Sequence[str]) -> list[str | RowError]:
        replies = self.language.generate([Request((Message("user", text),), MAX_ANSWER_TOKENS) for text in texts])
        for reply in replies:
            if isinstance(reply, Generation):
                self.usage = self.usage.plus(reply.usage_with_cut)
        return [reply.text.strip() if isinstance(reply, Generation) else reply for reply in replies]

    def _score_batch(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        """Return the log-probabilities of the choices' tokens. Rows are left-padded, so all choices end together."""
        model: Any = self.language.model
        ids, mask = pad_left([[*prompt, *choice[:-1]] for prompt, choice in rows], self.language.pad_id)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = model(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            position_ids=positions.to(model.device),
            logits_to_keep=max(len(choice) for _, choice in rows),
            use_cache=False,
        ).logits
        self.usage = self.usage.plus(Usage(calls=len(rows), prompt_tokens=sum(len(prompt) for prompt, _ in rows)))
        logprobs = logits.float().log_softmax(-1)
        return [_gather_logprobs(own, choice) for own, (_, choice) in zip(logprobs, rows, strict=True)]


class TextOnlyT5(TextOnlyModel, LoadedModel):
    """A T5 model that serves the `likelihood` call: its encoder reads only the question, and its decoder answers."""

    architecture = "T5ForConditionalGeneration"

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        check_entries(model.folder("tokenizer"), loaded.tokenizer, int(loaded.model.shared.num_embeddings))
        return loaded

    @torch.inference_mode()
    def score(self, pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
        return call_in_batches(
            self._score_batch, pairs, self.count_tokens([text for text, _ in pairs]), size=self.pair_batch
        )

    @torch.inference_mode()
    def write(self, texts: Sequence[str]) -> list[str]:
        def write_batch(batch: Sequence[str]) -> list[str]:
            settings = make_greedy_settings(self.model.config, self.tokenizer)
            tokens = self.model.generate(**self._tokenize_texts(batch), generation_config=settings)
            return [text.strip() for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]

        return call_in_batches(write_batch, texts, self.count_tokens(texts), size=self.pair_batch)

    def _score_batch(self, pairs: Sequence[tuple[str, str]]) -> list[list[float]]:
        inputs = self._tokenize_texts([text for text, _ in pairs])
        choices = [list(self.tokenizer(choice).input_ids) for _, choice in pairs]
        start = int(self.model.config.decoder_start_token_id)
        before = pad_sequence([torch.tensor([start, *choice[:-1]]) for choice in choices], batch_first=True)
        logprobs = self.model(**inputs, decoder_input_ids=before.to(self.model.device)).logits.float().log_softmax(-1)
        return [_gather_logprobs(own[: len(choice)], choice) for own, choice in zip(logprobs, choices, strict=True)]

    def _tokenize_texts(self, texts: Sequence[str]) -> Mapping[str, torch.Tensor]:
        inputs = self.tokenize(texts, context=None)
        self.usage = self.usage.plus(Usage(calls=len(texts), prompt_tokens=int(inputs.attention_mask.sum())))
        return {"input_ids": inputs.input_ids, "attention_mask": inputs.attention_mask}


def _gather_logprobs(logprobs: torch.Tensor, choice: Sequence[int]) -> list[float]:
    """Return the log-probabilities of a choice's tokens from the last rows of `logprobs` (positions, vocabulary)."""
    last = logprobs[len(logprobs) - len(choice) :]
    values: list[float] = last.gather(1, torch.tensor(choice, device=last.device)[:, None])[:, 0].tolist()
    return values
