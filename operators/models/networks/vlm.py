"""Decoder-only chat models that see, through transformers: `likelihood`, `reply` and `generate_from_images`.

VQAScore paper, appendix C, for models in the form of LLaVA and Qwen-VL. An image's tokens, and those before them, are
read once for all questions on it.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from PIL import Image
from transformers import RepetitionPenaltyLogitsProcessor

from plumbline.operators.base.batches import BatchSize, call_in_batches, isolate
from plumbline.operators.base.errors import HopelessRow, RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import MAX_ANSWER_TOKENS, Generation, ImageRequest, Message, Question, Request
from plumbline.operators.models.engines import conversation
from plumbline.operators.models.engines.conversation import Reply, generation, reply_text
from plumbline.operators.models.engines.thinking import Thinking
from plumbline.operators.models.networks import prefixes
from plumbline.operators.models.networks.causal_lm import Ending, GumbelNoise
from plumbline.operators.models.networks.image_prompts import ImagePrompts, Pixels
from plumbline.operators.models.networks.image_reader import ImageReader
from plumbline.operators.models.networks.prefixes import Prefix, Tail

if TYPE_CHECKING:
    from plumbline.operators.models.engines.reply_schemas import SchemaGrammars

Result = TypeVar("Result")

TOO_LONG = (
    "the image and the question take {} tokens, beyond the model's context of {}; "
    "shorten the prompt, use smaller images, or a model with a longer context"
)
HEAD_ROWS = 256
"""Number of positions whose probabilities over the vocabulary are computed together."""


class Continuation(NamedTuple):
    """A conversation that the model is to continue."""

    tail: Tail
    request: Request

    def asking(self, request: Request, ids: Sequence[int] = ()) -> "Continuation":
        return Continuation(self.tail._replace(prompt=[*self.tail.prompt, *ids]), request)


class ChatVlm:
    """Conversations about images with a network that reads them.

    Takes memory for the keys and values of `image_batch` prefixes and of `pair_batch` copies with their questions: 70
    MB each for a Qwen2.5-VL-7B at 1,200 tokens an image, 320 MB each for a LLaVA-1.5-7B, both in bfloat16.
    """

    side_by_side = False

    def __init__(
        self,
        reader: ImageReader,
        prompts: ImagePrompts,
        *,
        ends: Sequence[int],
        pair_batch: int,
        penalty: float = 1.0,
        thinking: Thinking | None = None,
    ) -> None:
        """Answer `pair_batch` questions together; each of `ends` ends a reply.

        A choice's tokens that occurred before get the `penalty` of Keskar et al. 2019 (1 for none). `thinking` is how
        the model thinks before a reply, if it may.
        """
        self.reader = reader
        self.prompts = prompts
        self.ends = frozenset(ends)
        self.pair_batch = BatchSize(pair_batch)
        self.penalised = None if penalty == 1 else RepetitionPenaltyLogitsProcessor(penalty)
        self.thinking = thinking
        self.usage = Usage()
        self.device = reader.device
        self.context = reader.context

    def preprocess(self, image: Image.Image) -> Pixels:
        """Pad the image, and cut, resize and normalise it with the checkpoint's own processor."""
        return self.prompts.preprocess(image)

    def preprocess_several(self, images: Sequence[Image.Image]) -> Pixels:
        return self.prompts.preprocess(*images)

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> Pixels:
        """Prepare the frames of one video, `seconds` apart; only for types that read videos."""
        return self.prompts.preprocess_video(frames, seconds)

    def encode(self, pixels: Sequence[Pixels]) -> Sequence[Prefix]:
        """Run each image's prefix through the model; images with equal numbers of tokens run together."""
        return self.reader.encode(pixels)

    def likelihood(self, features: Sequence[Prefix], questions: Sequence[Question]) -> list[list[list[float]]]:
        """Return full-vocabulary log-probabilities of every choice's tokens and of the end of the turn, by question."""
        tails = [self._check_context(self._question(features, question, question.choices)) for question in questions]
        if not self.reader.recurrent:
            return self._answers(tails, prefixes.MAX_PACKED_TOKENS)
        choices = iter(self._answers([tail._replace(choices=[one]) for tail in tails for one in tail.choices], 0))
        return [[logprobs for _ in tail.choices for logprobs in next(choices)] for tail in tails]

    def _answers(self, tails: Sequence[Tail], most: int) -> list[list[list[float]]]:
        """Return the log-probabilities of each tail's choices; packs have up to `most` tokens after an image."""
        places = prefixes.pack_questions(tails, most)
        packs = [[tails[index] for index in pack] for pack in places]
        sizes = [(pack[0].prefix.tokens, sum(len(tail.ids) for tail in pack)) for pack in packs]
        answers = call_in_batches(self._answer, packs, sizes, size=self.pair_batch)
        by_tail = {
            index: answer
            for pack, answered in zip(places, answers, strict=True)
            for index, answer in zip(pack, answered, strict=True)
        }
        return [by_tail[index] for index in range(len(tails))]

    def reply(self, features: Sequence[Prefix], questions: Sequence[Question]) -> list[str]:
        """Return the model's own answer to every question, by greedy decoding, in the order of `questions`."""
        request = Request((), max_tokens=MAX_ANSWER_TOKENS)
        continuations = [
            Continuation(self._check_context(self._question(features, question, ())), request) for question in questions
        ]
        replies = self._run_in_batches(self._speak, continuations)
        for reply in replies:
            self.usage = self.usage.plus(reply.took)
        return [reply.text.strip() for reply in replies]

    def generate_from_images(self, features: Sequence[Prefix], requests: Sequence[ImageRequest]) -> list[Reply]:
        """Return the reply to each conversation, or an error; a reply depends on its own request only."""
        continuations = [self._conversation(features[image], request) for image, request in requests]
        speak = partial(self._run_in_batches, partial(isolate, self._speak, size=self.pair_batch))
        fitting = [one for one in continuations if isinstance(one, Continuation)]
        spoken = iter(speak(fitting) if self.thinking is None else self.thinking.replies(fitting, speak))
        return [next(spoken) if isinstance(one, Continuation) else one for one in continuations]

    def _question(self, features: Sequence[Prefix], question: Question, choices: Sequence[str]) -> Tail:
        chosen = [self.prompts.choice(question.text, choice) for choice in choices]
        return self._tail(features[question.image], [Message("user", question.text)], chosen)

    def _tail(self, prefix: Prefix, messages: Sequence[Message], choices: list[list[int]]) -> Tail:
        """Return the tokens after the prefix; raises HopelessRow for a second image."""
        return Tail(prefix, prefix.unread + self.prompts.following(messages, prefix.closing), choices)

    def _check_context(self, tail: Tail) -> Tail:
        """Return the tail; raises HopelessRow if it exceeds the context."""
        if self.context is not None and tail.tokens > self.context:
            raise HopelessRow(RowError("prompt_too_long", TOO_LONG.format(tail.tokens, self.context)))
        return tail

    def _conversation(self, prefix: Prefix, request: Request) -> Continuation | RowError:
        try:
            tail = self._tail(prefix, request.messages_with_system, [])
        except HopelessRow as refused:
            return refused.error
        most = request.max_tokens + (0 if self.thinking is None else self.thinking.tokens)
        if self.context is not None and tail.tokens + most > self.context:
            message = conversation.TOO_LONG.format(tail.tokens, most, self.context)
            return RowError("prompt_too_long", message)
        return Continuation(tail, request)

    def _answer(self, packs: Sequence[Sequence[Tail]]) -> list[list[list[list[float]]]]:
        """Read each pack's questions side by side, with the choices of each; they do not see each other."""
        states = self.reader.read(packs).states
        for tail in (tail for pack in packs for tail in pack):
            self.usage = self.usage.plus(_tail_usage(tail))
        return self._choice_logprobs(states, packs)

    def _choice_logprobs(self, states: torch.Tensor, packs: Sequence[Sequence[Tail]]) -> list[list[list[list[float]]]]:
        """Return log-probabilities of the choices' tokens, from the states (n, tokens, width) that predict them."""
        places = [
            (row, start + place, token)
            for row, pack in enumerate(packs)
            for start, tail in prefixes.tail_starts(pack)
            for place, token in prefixes.iterate_predictions(tail)
        ]
        rows, columns, tokens = torch.tensor(places, device=self.device).reshape(-1, 3).unbind(1)
        previous = [before for pack in packs for tail in pack for before in prefixes.previous_tokens(tail)]
        logprobs: list[float] = []
        for first in range(0, len(places), HEAD_ROWS):
            part = slice(first, first + HEAD_ROWS)
            logits = self._penalise(self.reader.scores(states[rows[part], columns[part]]).float(), previous[part])
            logprobs += logits.log_softmax(-1).gather(1, tokens[part, None])[:, 0].tolist()
        numbers = iter(logprobs)
        return [[[[next(numbers) for _ in choice] for choice in tail.choices] for tail in pack] for pack in packs]

    def _penalise(self, logits: torch.Tensor, previous: Sequence[Sequence[int]]) -> torch.Tensor:
        """Apply the penalty to logits (n, vocabulary), in each row for the tokens before it."""
        if self.penalised is None:
            return logits
        ids = (torch.tensor([before], device=self.device) for before in previous)
        return torch.cat([self.penalised(before, row[None]) for before, row in zip(ids, logits, strict=True)])

    def _run_in_batches(
        self, speak: Callable[[Sequence[Continuation]], Sequence[Result]], continuations: Sequence[Continuation]
    ) -> list[Result]:
        sizes = [(one.tail.prefix.tokens, len(one.tail.prompt)) for one in continuations]
        return call_in_batches(speak, continuations, sizes, size=self.pair_batch)

    def _speak(self, continuations: Sequence[Continuation]) -> list[Generation]:
        replies = self._decode([one.tail for one in continuations], [one.request for one in continuations])
        return [
            generation(
                self.prompts.tokenizer,
                one.request,
                ids,
                ends=self.ends,
                usage=_tail_usage(one.tail, new_tokens=len(ids)),
            )
            for one, ids in zip(continuations, replies, strict=True)
        ]

    def _decode(self, tails: Sequence[Tail], requests: Sequence[Request]) -> list[list[int]]:
        """Return the tokens that continue each prompt, including the end token if there is one."""
        enforce, tails = self._enforcement(requests), self.reader.split_prefixes(tails)
        reading = self.reader.read([[tail] for tail in tails])
        lengths = torch.tensor([len(tail.prompt) for tail in tails], device=self.device)
        last = reading.states[torch.arange(len(tails), device=self.device), lengths - 1]
        ending = Ending(requests, self.ends, partial(reply_text, self.prompts.tokenizer), start=0)
        noises = [GumbelNoise(request) if request.temperature != 0 else None for request in requests]
        written = torch.empty((len(tails), 0), dtype=torch.long, device=self.device)
        while True:
            written = torch.cat([written, _choose_tokens(enforce(written, self.reader.scores(last)), noises)], dim=1)
            if ending(written, None).all():
                return [ids[:length] for ids, length in zip(written.tolist(), ending.lengths, strict=True)]
            reading = self.reader.read_on(reading, written[:, -1:], tails, lengths[:, None] + written.shape[1] - 1)
            last = reading.states[:, 0]

    def _enforcement(self, requests: Sequence[Request]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return a function of previous tokens (n, length) and scores (n, vocabulary) that masks the scores."""
        schemas = [request.schema for request in requests]
        if not any(schemas):
            return lambda written, scores: scores
        from plumbline.operators.models.engines.reply_schemas import SchemaEnforcement

        return SchemaEnforcement(self._grammars, schemas, start=0)

    @cached_property
    def _grammars(self) -> "SchemaGrammars":
        from plumbline.operators.models.engines.reply_schemas import SchemaGrammars

        return SchemaGrammars(self.prompts.tokenizer, end_ids=sorted(self.ends), width=self.reader.vocabulary)


def _tail_usage(tail: Tail, *, new_tokens: int = 0) -> Usage:
    """Return the usage of a tail. The first question that reads a prefix computes it; for others it is cached."""
    cached = tail.prefix.tokens if tail.prefix.read else 0
    tail.prefix.read = True
    return Usage(1, tail.prefix.tokens + len(tail.prompt), cached, new_tokens)


def _choose_tokens(logits: torch.Tensor, noises: Sequence[GumbelNoise | None]) -> torch.Tensor:
    """Return the next token (n, 1) of each row of `logits` (n, vocabulary): the likeliest, or one by its noise."""
    tokens = logits.argmax(-1, keepdim=True)
    for row, noise in enumerate(noises):
        if noise is not None:
            tokens[row] = noise(tokens[row : row + 1], logits[row : row + 1]).argmax(-1)
    return tokens
