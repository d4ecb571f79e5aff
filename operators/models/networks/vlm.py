"""Decoder-only chat models that see images, built on transformers.

They serve the calls `likelihood`, `reply` and `generate_from_images`.

Follows appendix C of the VQAScore paper, for models such as LLaVA and Qwen-VL. An image's tokens, and the tokens before
them, are read once for all questions about the image.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TypeVar

import torch
from PIL import Image
from transformers import RepetitionPenaltyLogitsProcessor

from plumbline.operators.base.batches import BatchSize, call_in_batches, isolate
from plumbline.operators.base.errors import RowError, UnprocessableRowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import MAX_ANSWER_TOKENS, Generation, ImageRequest, Message, Question, Request
from plumbline.operators.models.engines.conversation import (
    Conversation,
    Reply,
    ThinkingMode,
    decode_reply,
    find_context_error,
    make_generation,
    reply_to_valid_requests,
)
from plumbline.operators.models.engines.reply_schemas import SchemaEnforcer, SchemaGrammars
from plumbline.operators.models.networks import prefixes
from plumbline.operators.models.networks.causal_lm import GumbelNoise, ReplyStoppingCriteria
from plumbline.operators.models.networks.image_prompts import ImagePromptBuilder, Pixels
from plumbline.operators.models.networks.image_reader import ImageReader
from plumbline.operators.models.networks.prefixes import Prefix, Tail

Result = TypeVar("Result")

TOO_LONG_MESSAGE = (
    "the image and the question take {} tokens, beyond the model's context of {}; "
    "shorten the prompt, use smaller images, or a model with a longer context"
)
POSITIONS_AT_ONCE = 256
"""Number of positions whose probabilities over the vocabulary are computed together."""


class ChatVlm:
    """A vision-language model that answers questions about images in a chat.

    Each of the `image_batch` image prefixes, and each of the `pair_batch` copies of a prefix with a question, needs
    memory for its keys and values. In bfloat16, this is 70 MB for Qwen2.5-VL-7B with 1,200 tokens per image, and 320 MB
    for LLaVA-1.5-7B.
    """

    side_by_side = False

    def __init__(
        self,
        reader: ImageReader,
        prompts: ImagePromptBuilder,
        *,
        ends: Sequence[int],
        pair_batch: int,
        penalty: float = 1.0,
        thinking: ThinkingMode | None = None,
    ) -> None:
        """Set up the model to answer `pair_batch` questions at once, with replies that end at any token in `ends`.

        Choice tokens that occurred before get the repetition `penalty` of Keskar et al. 2019 (1 for none). `thinking`
        is None if the model must reply at once.
        """
        self.reader = reader
        self.prompts = prompts
        self.ends = frozenset(ends)
        self.pair_batch = BatchSize(pair_batch)
        self.penalize = None if penalty == 1 else RepetitionPenaltyLogitsProcessor(penalty)
        self.thinking = thinking
        self.usage = Usage()
        self.device = reader.device
        self.context = reader.context

    def preprocess(self, image: Image.Image) -> Pixels:
        """Return the image, padded if configured, as prepared by the checkpoint's own processor."""
        return self.prompts.preprocess(image)

    def preprocess_several(self, images: Sequence[Image.Image]) -> Pixels:
        return self.prompts.preprocess(*images)

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> Pixels:
        return self.prompts.preprocess_video(frames, seconds)

    def encode(self, pixels: Sequence[Pixels]) -> Sequence[Prefix]:
        return self.reader.encode(pixels)

    def likelihood(self, features: Sequence[Prefix], questions: Sequence[Question]) -> list[list[list[float]]]:
        """Return, for each question, full-vocabulary log-probabilities of each choice's tokens and end token."""
        tails = [self._tokenize_question(features, question, question.choices) for question in questions]
        if not self.reader.recurrent:
            return self._score_tails(tails, prefixes.MAX_PACKED_TOKENS)
        # other choices and questions would change a recurrent state, so each choice is read alone
        choices = iter(self._score_tails([tail._replace(choices=[one]) for tail in tails for one in tail.choices], 0))
        return [[logprobs for _ in tail.choices for logprobs in next(choices)] for tail in tails]

    def _score_tails(self, tails: Sequence[Tail], max_packed: int) -> list[list[list[float]]]:
        """Return the log-probabilities of each tail's choices. At most `max_packed` tokens share a copy of a prefix."""
        packed = prefixes.pack_questions(tails, max_packed)
        packs = [[tails[index] for index in pack] for pack in packed]
        sizes = [(pack[0].prefix.tokens, sum(len(tail.ids) for tail in pack)) for pack in packs]
        by_tail: dict[int, list[list[float]]] = {}
        for pack, logprobs in zip(
            packed, call_in_batches(self._score_packs, packs, sizes, size=self.pair_batch), strict=True
        ):
            by_tail.update(zip(pack, logprobs, strict=True))
        return [by_tail[index] for index in range(len(tails))]

    def reply(self, features: Sequence[Prefix], questions: Sequence[Question]) -> list[str]:
        request = Request((), max_tokens=MAX_ANSWER_TOKENS)
        tails = [self._tokenize_question(features, question, ()) for question in questions]
        replies = self._run_in_batches(
            self._generate_replies, [Conversation(request, tail.prompt, tail.prefix) for tail in tails]
        )
        for reply in replies:
            self.usage = self.usage.plus(reply.usage_with_cut)
        return [reply.text.strip() for reply in replies]

    def generate_from_images(self, features: Sequence[Prefix], requests: Sequence[ImageRequest]) -> list[Reply]:
        """Return the reply to each conversation, or an error; a reply depends only on its own request."""
        conversations: list[Conversation | RowError] = []
        for image, request in requests:
            prefix = features[image]
            try:
                ids = prefix.unread + self.prompts.tokenize_after_image(request.messages_with_system, prefix.closing)
            except UnprocessableRowError as refused:
                conversations.append(refused.error)
                continue
            error = find_context_error(prefix.tokens + len(ids), request, self.context, self.thinking)
            conversations.append(Conversation(request, ids, prefix) if error is None else error)
        answer = partial(self._run_in_batches, partial(isolate, self._generate_replies, size=self.pair_batch))
        return reply_to_valid_requests(conversations, answer, self.thinking)

    def _tokenize_question(self, features: Sequence[Prefix], question: Question, choices: Sequence[str]) -> Tail:
        prefix, messages = features[question.image], [Message("user", question.text)]
        prompt = prefix.unread + self.prompts.tokenize_after_image(messages, prefix.closing)
        tail = Tail(prefix, prompt, [self.prompts.tokenize_choice(question.text, choice) for choice in choices])
        if self.context is not None and tail.tokens > self.context:
            raise UnprocessableRowError(RowError("prompt_too_long", TOO_LONG_MESSAGE.format(tail.tokens, self.context)))
        return tail

    def _score_packs(self, packs: Sequence[Sequence[Tail]]) -> list[list[list[list[float]]]]:
        """Return the log-probabilities of the choices' tokens, nested by pack, question and choice.

        The questions of a pack are read together, each with its choices, without attending to each other.
        """
        states = self.reader.read(packs).states
        targets = []  # row and column of the state that predicts each token, and the token
        previous = []
        for row, pack in enumerate(packs):
            for start, tail in prefixes.iterate_starts(pack):
                self.usage = self.usage.plus(_count_usage(tail.prefix, len(tail.prompt)))
                for index, token, before in prefixes.iterate_predictions(tail):
                    targets.append((row, start + index, token))
                    previous.append(before)
        rows, columns, tokens = torch.tensor(targets, device=self.device).reshape(-1, 3).unbind(1)
        logprobs: list[float] = []
        for first in range(0, len(targets), POSITIONS_AT_ONCE):
            some = slice(first, first + POSITIONS_AT_ONCE)
            logits = self.reader.compute_logits(states[rows[some], columns[some]]).float()
            if self.penalize is not None:
                ids = (torch.tensor([before], device=self.device) for before in previous[some])
                logits = torch.cat([self.penalize(before, row[None]) for before, row in zip(ids, logits, strict=True)])
            logprobs += logits.log_softmax(-1).gather(1, tokens[some, None])[:, 0].tolist()
        numbers = iter(logprobs)
        return [[[[next(numbers) for _ in choice] for choice in tail.choices] for tail in pack] for pack in packs]

    def _run_in_batches(
        self, generate: Callable[[Sequence[Conversation]], Sequence[Result]], conversations: Sequence[Conversation]
    ) -> list[Result]:
        sizes = [(one.image.tokens, len(one.ids)) for one in conversations]
        return call_in_batches(generate, conversations, sizes, size=self.pair_batch)

    def _generate_replies(self, conversations: Sequence[Conversation]) -> list[Generation]:
        generations = []
        for conversation, ids in zip(conversations, self._decode_tokens(conversations), strict=True):
            usage = _count_usage(conversation.image, len(conversation.ids), new_tokens=len(ids))
            reply = make_generation(self.prompts.tokenizer, conversation.request, ids, ends=self.ends, usage=usage)
            generations.append(reply)
        return generations

    def _decode_tokens(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        requests = [conversation.request for conversation in conversations]
        tails = self.reader.split_prefixes([Tail(one.image, one.ids, []) for one in conversations])
        schemas = [request.schema for request in requests]
        enforcement = SchemaEnforcer(self._grammars, schemas, start=0) if any(schemas) else None
        reading = self.reader.read([[tail] for tail in tails])
        lengths = torch.tensor([len(tail.prompt) for tail in tails], device=self.device)
        last = reading.states[torch.arange(len(tails), device=self.device), lengths - 1]
        ending = ReplyStoppingCriteria(requests, self.ends, partial(decode_reply, self.prompts.tokenizer), start=0)
        noises = [GumbelNoise(request) if request.temperature != 0 else None for request in requests]
        written = torch.empty((len(tails), 0), dtype=torch.long, device=self.device)
        while True:
            logits = self.reader.compute_logits(last)
            if enforcement is not None:
                logits = enforcement(written, logits)
            chosen = logits.argmax(-1, keepdim=True)
            for row, noise in enumerate(noises):
                if noise is not None:
                    chosen[row] = noise(chosen[row : row + 1], logits[row : row + 1]).argmax(-1)
            written = torch.cat([written, chosen], dim=1)
            if ending(written, None).all():
                return [ids[:length] for ids, length in zip(written.tolist(), ending.lengths, strict=True)]
            reading = self.reader.read_next(reading, written[:, -1:], tails, lengths[:, None] + written.shape[1] - 1)
            last = reading.states[:, 0]

    @cached_property
    def _grammars(self) -> SchemaGrammars:
        return SchemaGrammars(self.prompts.tokenizer, end_ids=sorted(self.ends), width=self.reader.vocabulary)


def _count_usage(prefix: Prefix, prompt_tokens: int, *, new_tokens: int = 0) -> Usage:
    """Return the usage of a call. A prefix is computed in the first call that uses it, and cached in later calls."""
    cached = prefix.tokens if prefix.read else 0
    prefix.read = True
    return Usage(1, prefix.tokens + prompt_tokens, cached, new_tokens)
