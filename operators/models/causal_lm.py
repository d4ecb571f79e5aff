"""Text generators through transformers: the `generate` call."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria

from operators.batches import isolate
from operators.errors import RowError
from operators.models.calls import Generation, Request, Usage
from operators.models.conversation import conversation_ids

TOO_LONG = (
    "the conversation takes {} tokens and its reply up to {}, together beyond the model's context of {}; "
    "shorten the prompt, lower the metric's max_tokens, or use a model with a longer context"
)
SPARE_TOKENS = 4
"""Tokens beyond a stop string's bytes that are looked at for it: some write nothing."""


class Prompt(NamedTuple):
    """A request and the tokens of its conversation."""

    request: Request
    ids: list[int]


class CausalLM:
    """The `generate` call served by a decoder-only language model.

    A reply depends on its own request alone: greedy replies are batched (temperature 0), and each sampled one is drawn
    by itself, from a generator seeded with the request's seed. A request's `schema` is not enforced.
    """

    def __init__(self, model: Any, tokenizer: Any, *, end_ids: Sequence[int], pair_batch: int) -> None:
        """`end_ids` are the tokens that end a reply; `pair_batch` requests are answered together."""
        self.model = model
        self.model.generation_config = GenerationConfig()  # its penalties would enter every call
        self.tokenizer = tokenizer
        self.end_ids = frozenset(end_ids)
        self.pair_batch = pair_batch
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(end_ids)
        self.context: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._lock = Lock()

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """The reply to each request, or why there is none; callers in other threads wait their turn."""
        prompts = [Prompt(request, conversation_ids(self.tokenizer, request.messages)) for request in requests]
        results: list[Generation | RowError | None] = [self._refuse(prompt) for prompt in prompts]
        fitting = [index for index, refused in enumerate(results) if refused is None]
        with self._lock:
            for batch in self._batches(prompts, fitting):
                answered = isolate(self._answer, [prompts[index] for index in batch])
                for index, reply in zip(batch, answered, strict=True):
                    results[index] = reply
        return [result for result in results if result is not None]

    def _refuse(self, prompt: Prompt) -> RowError | None:
        length, limit = len(prompt.ids), prompt.request.max_tokens
        if self.context is None or length + limit <= self.context:
            return None
        return RowError("prompt_too_long", TOO_LONG.format(length, limit, self.context))

    def _batches(self, prompts: Sequence[Prompt], indices: Sequence[int]) -> list[list[int]]:
        """Which requests run together: greedy ones by length, sampled ones alone."""
        greedy = [index for index in indices if prompts[index].request.temperature == 0]
        greedy.sort(key=lambda index: len(prompts[index].ids))
        batches = [greedy[first : first + self.pair_batch] for first in range(0, len(greedy), self.pair_batch)]
        return batches + [[index] for index in indices if prompts[index].request.temperature != 0]

    @torch.inference_mode()
    def _answer(self, prompts: Sequence[Prompt]) -> list[Generation]:
        """Replies to left-padded prompts that are all greedy, or to a single one."""
        width = max(len(prompt.ids) for prompt in prompts)
        ids = torch.tensor([[self.pad_id] * (width - len(prompt.ids)) + prompt.ids for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt.ids)) + [1] * len(prompt.ids) for prompt in prompts])
        ending = Ending([prompt.request for prompt in prompts], self.end_ids, self._text, start=width)
        output = self.model.generate(
            input_ids=ids.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            generation_config=self._settings(max(prompt.request.max_tokens for prompt in prompts)),
            logits_processor=self._sampling(prompts),
            stopping_criteria=[ending],
        )
        new = output[:, width:].tolist()
        return [
            self._generation(prompt, own[:length])
            for prompt, own, length in zip(prompts, new, ending.lengths, strict=True)
        ]

    def _settings(self, max_tokens: int) -> GenerationConfig:
        """Plain decoding: the likeliest token, after what `_sampling` does to the scores."""
        return GenerationConfig(
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=sorted(self.end_ids),
            pad_token_id=self.pad_id,
        )

    def _sampling(self, prompts: Sequence[Prompt]) -> list[LogitsProcessor]:
        (first, *_) = prompts
        return [GumbelNoise(first.request)] if first.request.temperature != 0 else []

    def _generation(self, prompt: Prompt, ids: Sequence[int]) -> Generation:
        """The reply up to its end token or before its first stop string."""
        ended = bool(ids) and ids[-1] in self.end_ids
        text = self._text(ids)
        stops = [place for place in (text.find(stop) for stop in prompt.request.stop if stop) if place >= 0]
        usage = Usage(calls=1, prompt_tokens=len(prompt.ids), new_tokens=len(ids))
        return Generation(text[: min(stops)] if stops else text, ended or bool(stops), usage)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class Ending(StoppingCriteria):  # type: ignore[misc]
    """Ends each row of a batch by itself, and remembers after how many tokens."""

    def __init__(
        self,
        requests: Sequence[Request],
        end_ids: frozenset[int],
        text: Callable[[Sequence[int]], str],
        *,
        start: int,
    ) -> None:
        """`start` tokens stand before every reply."""
        self.requests = requests
        self.end_ids = end_ids
        self.text = text
        self.start = start
        self.lengths = [request.max_tokens for request in requests]
        self.windows = [max((len(stop.encode()) for stop in r.stop), default=0) + SPARE_TOKENS for r in requests]
        self.done = [False] * len(requests)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Which rows (n,) of the tokens so far (n, length) are complete."""
        for row, ids in enumerate(input_ids[:, self.start :].tolist()):
            if not self.done[row] and self._ends(row, ids):
                self.done[row], self.lengths[row] = True, len(ids)
        return torch.tensor(self.done, device=input_ids.device)

    def _ends(self, row: int, ids: list[int]) -> bool:
        request = self.requests[row]
        if ids[-1] in self.end_ids or len(ids) >= request.max_tokens:
            return True
        if not any(request.stop):
            return False
        recent = self.text(ids[-self.windows[row] :])
        return any(stop in recent for stop in request.stop if stop)


class GumbelNoise(LogitsProcessor):  # type: ignore[misc]
    """Makes the likeliest token a sample: argmax(logits / temperature + Gumbel noise) is softmax sampling.

    The noise is drawn on the CPU, so that a seed means the same on every device.
    """

    def __init__(self, request: Request) -> None:
        self.temperature = request.temperature
        self.generator = torch.Generator().manual_seed(request.seed)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Noisy scores (n, vocabulary) of the logits `scores`, float32."""
        noise = torch.empty(scores.shape, dtype=torch.float32).exponential_(generator=self.generator)
        return scores.float() / self.temperature - noise.log().to(scores.device)
