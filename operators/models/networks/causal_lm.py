"""Language models built on transformers, which serve the `generate` call."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from threading import Lock
from typing import Any, Self

import torch
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from plumbline.operators.base.batches import call_in_batches, isolate
from plumbline.operators.base.errors import ModelError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import Generation, Request
from plumbline.operators.models.engines.conversation import (
    Conversation,
    Reply,
    ThinkingMode,
    decode_reply,
    find_thinking,
    make_generation,
    reply_to_requests,
)
from plumbline.operators.models.engines.reply_schemas import SchemaEnforcer, SchemaGrammars
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedModel
from plumbline.operators.models.processing import load_chat_tokenizer, load_pretrained

N_SPARE_TOKENS = 4
"""Number of additional tokens that are searched for a stop string, because some tokens decode to nothing. One token per
byte of the string is searched in any case.
"""


def find_reply_ends(network: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end a reply according to the generation settings of the checkpoint and the tokenizer."""
    named = network.generation_config.eos_token_id
    listed = named if isinstance(named, list) else [named]
    return sorted({int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None})


class CausalLM(LoadedModel):
    """A decoder-only language model, which serves the `generate` call.

    A reply depends only on its own request: greedy replies (temperature 0) are batched, and each sampled reply is
    generated alone, with a random generator seeded by the request. A request's `schema` is enforced.
    """

    architecture = "AutoModelForCausalLM"
    thinking: ThinkingMode | None = None

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.end_ids = frozenset(find_reply_ends(self.model, self.tokenizer))
        if not self.end_ids:
            raise ModelError(
                f"{self.model.name_or_path}: no end-of-reply token was found; set eos_token_id in its "
                "generation_config.json"
            )
        self.model.generation_config = GenerationConfig()  # else its penalties would apply to every call
        pad_id = self.tokenizer.pad_token_id
        self.pad_id = pad_id if pad_id is not None else min(self.end_ids)
        self.context: int | None = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        self._lock = Lock()

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        loaded.thinking = find_thinking(model.config, loaded.tokenizer)
        return loaded

    @classmethod
    def load_network(cls, model: ResolvedModel[Any]) -> Any:
        return load_pretrained(cls.architecture, model, attn_implementation="sdpa")

    @classmethod
    def load_tokenizer(cls, model: ResolvedModel[Any]) -> Any:
        return load_chat_tokenizer(model)

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return the reply to each request, or an error; threads that call this method at the same time take turns."""
        with self._lock:
            return reply_to_requests(
                self.tokenizer, requests, context=self.context, answer=self._generate_replies, thinking=self.thinking
            )

    def _generate_replies(self, conversations: Sequence[Conversation]) -> list[Reply]:
        greedy = [conversation for conversation in conversations if conversation.request.temperature == 0]
        lengths = [len(conversation.ids) for conversation in greedy]
        answer = partial(isolate, self._generate_batch, size=self.pair_batch)
        replies = iter(call_in_batches(answer, greedy, lengths, size=self.pair_batch))
        return [
            next(replies) if conversation.request.temperature == 0 else isolate(self._generate_batch, [conversation])[0]
            for conversation in conversations
        ]

    @torch.inference_mode()
    def _generate_batch(self, prompts: Sequence[Conversation]) -> list[Generation]:
        ids, mask = pad_left([prompt.ids for prompt in prompts], self.pad_id)
        width = ids.shape[1]
        requests = [prompt.request for prompt in prompts]
        ending = ReplyStoppingCriteria(requests, self.end_ids, partial(decode_reply, self.tokenizer), start=width)
        processors: list[LogitsProcessor] = [GumbelNoise(requests[0])] if requests[0].temperature != 0 else []
        schemas = [request.schema for request in requests]
        if any(schemas):
            processors.append(SchemaEnforcer(self._grammars, schemas, start=width))
        output = self.model.generate(
            input_ids=ids.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            generation_config=GenerationConfig(
                max_new_tokens=max(request.max_tokens for request in requests),
                do_sample=False,  # GumbelNoise has already made the likeliest token a sample
                eos_token_id=sorted(self.end_ids),
                pad_token_id=self.pad_id,
            ),
            logits_processor=processors,
            stopping_criteria=[ending],
        )
        replies = []
        for prompt, row, length in zip(prompts, output[:, width:].tolist(), ending.lengths, strict=True):
            usage = Usage(calls=1, prompt_tokens=len(prompt.ids), new_tokens=length)
            reply = make_generation(self.tokenizer, prompt.request, row[:length], ends=self.end_ids, usage=usage)
            replies.append(reply)
        return replies

    @cached_property
    def _grammars(self) -> SchemaGrammars:
        width = self.model.get_output_embeddings().weight.shape[0]
        return SchemaGrammars(self.tokenizer, end_ids=sorted(self.end_ids), width=width)


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of tokens padded on the left, (n, tokens), and the mask, which is 0 for padding."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


class ReplyStoppingCriteria(StoppingCriteria):  # type: ignore[misc]
    """Stopping criterion that ends each row of a batch independently, and records the length of each reply."""

    def __init__(
        self,
        requests: Sequence[Request],
        end_ids: frozenset[int],
        decode: Callable[[Sequence[int]], str],
        *,
        start: int,
    ) -> None:
        """Prepare the search for stop strings; `start` is the number of tokens before every reply."""
        self.requests = requests
        self.end_ids = end_ids
        self.decode = decode
        self.start = start
        self.lengths = [request.max_tokens for request in requests]
        self.windows = [max((len(stop.encode()) for stop in r.stop), default=0) + N_SPARE_TOKENS for r in requests]
        self.done = [False] * len(requests)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return a boolean tensor (n,): True for each row of `input_ids` (n, length) that is complete."""
        for row, ids in enumerate(input_ids[:, self.start :].tolist()):
            if not self.done[row] and self._has_ended(row, ids):
                self.done[row], self.lengths[row] = True, len(ids)
        return torch.tensor(self.done, device=input_ids.device)

    def _has_ended(self, row: int, ids: list[int]) -> bool:
        request = self.requests[row]
        if ids[-1] in self.end_ids or ids[-1] in request.ends or len(ids) >= request.max_tokens:
            return True
        if not any(request.stop):
            return False
        recent = self.decode(ids[-self.windows[row] :])
        return any(stop in recent for stop in request.stop if stop)


class GumbelNoise(LogitsProcessor):  # type: ignore[misc]
    """Noise that turns greedy decoding into sampling: argmax(logits / temperature + noise) samples from the softmax."""

    def __init__(self, request: Request) -> None:
        self.temperature = request.temperature
        self.generator = torch.Generator().manual_seed(request.seed)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return `scores` (n, vocabulary), the logits, divided by the temperature, plus noise; float32."""
        # drawn on the CPU, so that a seed has the same effect on every device
        noise = torch.empty(scores.shape, dtype=torch.float32).exponential_(generator=self.generator)
        return scores.float() / self.temperature - noise.log().to(scores.device)
