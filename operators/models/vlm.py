"""Decoder-only vision-language chat models through transformers: the `likelihood` call.

VQAScore paper, appendix C, for models in the form of LLaVA-1.5 and Qwen-VL. An image's tokens, and what stands before
them, are run once; every question on the image continues from their keys and values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch.nn.functional import pad
from transformers import DynamicCache

from operators.errors import HopelessRow, ModelError, RowError
from operators.models.calls import Question, Usage
from operators.models.conversation import choice_ids, image_question_ids, image_question_text
from operators.models.encoders import in_batches
from operators.models.families.vlm import CLASS_TOKENS
from operators.models.processing import padded_square

TOO_LONG = (
    "the image and the question take {} tokens, beyond the model's context of {}; "
    "shorten the prompt, use smaller images, or a model with a longer context"
)
SECOND_IMAGE = "the question has {!r} in it, which to this model is a second image; change the prompt's text"
LONGEST_REPLY = 32
"""Tokens of an answer in the model's own words."""
CACHED_CHOICES = 4096
PACKED_TOKENS = 512
"""The questions on an image are read side by side after one copy of its prefix, up to so many tokens of them."""
HEAD_ROWS = 256
"""Positions whose probabilities over the vocabulary are computed together."""


class Pixels(NamedTuple):
    """One image as its processor leaves it, on the CPU."""

    inputs: Mapping[str, torch.Tensor]
    """What the model's vision half takes, such as pixel_values and image_grid_thw."""
    tokens: int
    """How many tokens of the prompt the image takes."""


@dataclass(kw_only=True, slots=True)
class Prefix:
    """What every question on an image shares: all up to the last image token, run through the model."""

    keys: list[torch.Tensor]
    """By layer, (heads, tokens, head width), on the device."""
    values: list[torch.Tensor]
    next_position: int
    """Of the first token after the prefix; with two-dimensional image positions less than the number of tokens."""
    read: bool = False
    """Whether a question has continued from it yet."""

    @property
    def tokens(self) -> int:
        return int(self.keys[0].shape[1])


class Tail(NamedTuple):
    """One question's tokens after its image's prefix: the rest of the prompt, then every choice, each continuing it."""

    prefix: Prefix
    prompt: list[int]
    choices: list[list[int]]
    """End of turn included; the last token of each is predicted but not read."""

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *(token for choice in self.choices for token in choice[:-1])]


class VlmLikelihood:
    """The `likelihood` call served by a LLaVA-1.5- or Qwen-VL-shaped checkpoint.

    Takes memory for the keys and values of `image_batch` prefixes and of `pair_batch` copies with their questions:
    70 MB each for a Qwen2.5-VL-7B at 1,200 tokens an image, 320 MB each for a LLaVA-1.5-7B, both in bfloat16.
    """

    side_by_side = False

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        processor: Any,
        *,
        system: str | None,
        padding: tuple[int, ...] | None,
        pair_batch: int,
    ) -> None:
        """`system` is the message before every question; `padding` the colour of the square that images are put on.

        Raises ModelError where the chat template does not show the image.
        """
        self.model = model
        self.system = system
        self.padding = padding
        self.tokenizer = tokenizer
        self.processor = processor
        self.pair_batch = pair_batch
        self.usage = Usage()
        self.device = model.device
        self.image_id = int(model.config.image_token_id)
        self.context: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.before = self._before_image()
        self._choice = lru_cache(maxsize=CACHED_CHOICES)(self._choice_ids)

    def preprocess(self, image: Image.Image) -> Pixels:
        """The image as the checkpoint's own processor resizes and normalises it, after the padding."""
        inputs = dict(self.processor(images=padded_square(image, self.padding), return_tensors="pt"))
        return Pixels(inputs, self._image_tokens(inputs))

    def _image_tokens(self, inputs: Mapping[str, torch.Tensor]) -> int:
        if "image_grid_thw" in inputs:
            return int(inputs["image_grid_thw"][0].prod()) // int(self.processor.merge_size) ** 2
        height, width = inputs["pixel_values"].shape[-2:]
        tower = self.model.config.vision_config
        patches = (height // tower.patch_size) * (width // tower.patch_size)
        dropped = int(self.model.config.vision_feature_select_strategy == "default")
        return int(patches) + CLASS_TOKENS[tower.model_type] - dropped

    @torch.inference_mode()
    def encode(self, pixels: Sequence[Pixels]) -> Sequence[Prefix]:
        """Each image's prefix run through the model; images that take equally many tokens run together."""
        order = sorted(range(len(pixels)), key=lambda index: _shape(pixels[index]))
        prefixes: dict[int, Prefix] = {}
        for _, group in groupby(order, key=lambda index: _shape(pixels[index])):
            batch = list(group)
            prefixes.update(zip(batch, self._encode_batch([pixels[index] for index in batch]), strict=True))
        return [prefixes[index] for index in range(len(pixels))]

    def _encode_batch(self, pixels: Sequence[Pixels]) -> list[Prefix]:
        """Prefixes of images of one shape."""
        row = torch.tensor([*self.before, *[self.image_id] * pixels[0].tokens], device=self.device)
        ids = row.expand(len(pixels), -1)
        inputs = {
            name: torch.cat([image.inputs[name] for image in pixels]).to(self.device) for name in pixels[0].inputs
        }
        inputs["pixel_values"] = inputs["pixel_values"].to(self.model.dtype)
        positions = self._prefix_positions(ids, inputs.get("image_grid_thw"))
        cache = DynamicCache()
        self.model.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **inputs,
        )
        following = int(positions.max()) + 1
        return [
            Prefix(
                keys=[layer.keys[index] for layer in cache.layers],
                values=[layer.values[index] for layer in cache.layers],
                next_position=following,
            )
            for index in range(len(pixels))
        ]

    def _prefix_positions(self, ids: torch.Tensor, grid: torch.Tensor | None) -> torch.Tensor:
        """Positions of the prefix, (n, tokens), or (3, n, tokens) where an image's are time, row and column."""
        if grid is None:
            return torch.arange(ids.shape[1], device=self.device).expand_as(ids)
        kinds = (ids == self.image_id).int()
        positions: torch.Tensor = self.model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grid)[0]
        return positions

    def likelihood(self, features: Sequence[Prefix], questions: Sequence[Question]) -> list[list[list[float]]]:
        """Full-vocabulary log-probabilities of every choice's tokens and of the end of the turn, by question."""
        tails = [self._tail(features, question) for question in questions]
        places = _pack(tails)
        packs = [[tails[index] for index in pack] for pack in places]
        sizes = [(pack[0].prefix.tokens, sum(len(tail.ids) for tail in pack)) for pack in packs]
        answers = in_batches(self._answer, packs, sizes, size=self.pair_batch)
        by_question = {
            index: answer
            for pack, answered in zip(places, answers, strict=True)
            for index, answer in zip(pack, answered, strict=True)
        }
        return [by_question[index] for index in range(len(questions))]

    def reply(self, features: Sequence[Prefix], questions: Sequence[Question]) -> list[str]:
        """The model's own answer to every question, by greedy decoding, in the order of `questions`."""
        tails = [self._tail(features, question, choices=False) for question in questions]
        sizes = [(tail.prefix.tokens, len(tail.ids)) for tail in tails]
        return in_batches(self._reply, tails, sizes, size=self.pair_batch)

    def _reply(self, tails: Sequence[Tail]) -> list[str]:
        replies = self._decode([tail.prefix for tail in tails], [tail.prompt for tail in tails])
        for tail, ids in zip(tails, replies, strict=True):
            self._count(tail, new_tokens=len(ids))
        return [self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in replies]

    def _count(self, tail: Tail, *, new_tokens: int = 0) -> None:
        """A prefix counts as computed for the first question that reads it, and as cached for all others."""
        cached = tail.prefix.tokens if tail.prefix.read else 0
        tail.prefix.read = True
        self.usage = self.usage.plus(Usage(1, tail.prefix.tokens + len(tail.prompt), cached, new_tokens))

    def _before_image(self) -> list[int]:
        """The prompt's tokens before the image; no question changes them."""
        ids = image_question_ids(self.tokenizer, "", system=self.system)
        if ids.count(self.image_id) != 1:
            raise ModelError(
                f"{self.tokenizer.name_or_path}: expected the chat template to place one image token "
                f"({self.image_id}), found {ids.count(self.image_id)}; correct the checkpoint's chat template"
            )
        return ids[: ids.index(self.image_id)]

    def _tail(self, features: Sequence[Prefix], question: Question, *, choices: bool = True) -> Tail:
        ids = image_question_ids(self.tokenizer, question.text, system=self.system)
        chosen = [self._choice(question.text, choice) for choice in question.choices] if choices else []
        if ids.count(self.image_id) != 1:
            mark = self.tokenizer.convert_ids_to_tokens(self.image_id)
            raise HopelessRow(RowError("request_refused", SECOND_IMAGE.format(mark)))
        tail = Tail(features[question.image], ids[len(self.before) + 1 :], chosen)
        tokens = tail.prefix.tokens + len(tail.ids)
        if self.context is not None and tokens > self.context:
            raise HopelessRow(RowError("prompt_too_long", TOO_LONG.format(tokens, self.context)))
        return tail

    def _choice_ids(self, question: str, choice: str) -> list[int]:
        prompt = image_question_text(self.tokenizer, question, system=self.system)
        return choice_ids(self.tokenizer, prompt, choice)

    def _answer(self, packs: Sequence[Sequence[Tail]]) -> list[list[list[list[float]]]]:
        """Reads each pack's questions side by side, and the choices of each, none of which sees another."""
        prefixes = [pack[0].prefix for pack in packs]
        cache, padding = self._cache(prefixes)
        rows = [[token for tail in pack for token in tail.ids] for pack in packs]
        width = max(len(row) for row in rows)
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self.device)
        visible = torch.stack([_visible(pack, width) for pack in packs]).to(self.device)
        mask = torch.cat([padding[:, None, :].expand(-1, width, -1), visible], dim=2)
        offsets = torch.stack([_offsets(pack, width) for pack in packs]).to(self.device)
        hidden = self._run(ids, mask[:, None], offsets + self._starts(prefixes), cache)
        for tail in (tail for pack in packs for tail in pack):
            self._count(tail)
        return self._choice_logprobs(hidden, packs)

    def _choice_logprobs(self, hidden: torch.Tensor, packs: Sequence[Sequence[Tail]]) -> list[list[list[list[float]]]]:
        """Log-probabilities of the choices' tokens, from the states (n, tokens, width) that predict them."""
        places = [
            (row, start + place, token)
            for row, pack in enumerate(packs)
            for start, tail in _starting(pack)
            for place, token in _predictions(tail)
        ]
        rows, columns, tokens = torch.tensor(places, device=self.device).reshape(-1, 3).unbind(1)
        logprobs: list[float] = []
        for first in range(0, len(places), HEAD_ROWS):
            part = slice(first, first + HEAD_ROWS)
            logits = self.model.lm_head(hidden[rows[part], columns[part]]).float()
            logprobs += logits.log_softmax(-1).gather(1, tokens[part, None])[:, 0].tolist()
        numbers = iter(logprobs)
        return [[[[next(numbers) for _ in choice] for choice in tail.choices] for tail in pack] for pack in packs]

    def _decode(self, prefixes: Sequence[Prefix], prompts: Sequence[list[int]]) -> list[list[int]]:
        """The likeliest tokens after each prompt, up to the end of the turn, which is left out."""
        cache, mask = self._cache(prefixes)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        width = int(lengths.max())
        ids = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts], device=self.device)
        steps = torch.arange(width, device=self.device)
        mask = torch.cat([mask, steps < lengths[:, None]], dim=1)
        hidden = self._run(ids, mask.long(), steps + self._starts(prefixes), cache)
        last = hidden[torch.arange(len(prompts), device=self.device), lengths - 1]
        replies: list[list[int]] = []
        positions = self._starts(prefixes) + lengths[:, None]
        done = torch.zeros(len(prompts), dtype=torch.bool, device=self.device)
        for step in range(LONGEST_REPLY):
            tokens = self.model.lm_head(last).argmax(-1)
            done |= tokens == self.tokenizer.eos_token_id
            replies.append(torch.where(done, -1, tokens).tolist())
            if done.all() or step == LONGEST_REPLY - 1:
                break
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            last = self._run(tokens[:, None], mask.long(), positions + step, cache)[:, 0]
        return [[token for token in reply if token >= 0] for reply in zip(*replies, strict=True)]

    def _run(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """States (n, tokens, width) of text `ids` (n, tokens) at `positions` (n, tokens) after what is cached."""
        if mask.dtype == torch.bool:  # (n, 1, tokens, cached and new tokens): who sees whom
            least = torch.finfo(self.model.dtype).min
            mask = torch.zeros(mask.shape, dtype=self.model.dtype, device=self.device).masked_fill(~mask, least)
        hidden: torch.Tensor = self.model.model.language_model(
            inputs_embeds=self.model.get_input_embeddings()(ids),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return hidden

    def _cache(self, prefixes: Sequence[Prefix]) -> tuple[DynamicCache, torch.Tensor]:
        """A copy of the prefixes' keys and values padded on the left, and where (n, tokens) they are not padding."""
        width = max(prefix.tokens for prefix in prefixes)
        layers = [
            (
                torch.stack([_pad_left(prefix.keys[layer], width) for prefix in prefixes]),
                torch.stack([_pad_left(prefix.values[layer], width) for prefix in prefixes]),
            )
            for layer in range(len(prefixes[0].keys))
        ]
        places = torch.arange(width, device=self.device)
        unused = torch.tensor([width - prefix.tokens for prefix in prefixes], device=self.device)
        return DynamicCache(layers), places >= unused[:, None]

    def _starts(self, prefixes: Sequence[Prefix]) -> torch.Tensor:
        """The position (n, 1) at which each prefix is continued."""
        return torch.tensor([[prefix.next_position] for prefix in prefixes], device=self.device)


def _shape(pixels: Pixels) -> tuple[int, ...]:
    """What must agree for two images to run together: their tokens, and how these lie in rows and columns."""
    grid = pixels.inputs.get("image_grid_thw")
    return (pixels.tokens, *(grid[0].tolist() if grid is not None else ()))


def _pad_left(states: torch.Tensor, width: int) -> torch.Tensor:
    """States (heads, tokens, head width) as (heads, `width`, head width)."""
    return pad(states, (0, 0, width - states.shape[1], 0))


def _pack(tails: Sequence[Tail]) -> list[list[int]]:
    """Which questions share a copy of their image's prefix, in their order: as many as PACKED_TOKENS hold."""
    packs: list[list[int]] = []
    open_packs: dict[int, tuple[list[int], int]] = {}
    for index, tail in enumerate(tails):
        pack, tokens = open_packs.get(id(tail.prefix), ([], PACKED_TOKENS))
        if tokens + len(tail.ids) > PACKED_TOKENS:
            pack, tokens = [], 0
            packs.append(pack)
        pack.append(index)
        open_packs[id(tail.prefix)] = pack, tokens + len(tail.ids)
    return packs


def _starting(pack: Sequence[Tail]) -> Iterator[tuple[int, Tail]]:
    """Each tail with the place of its first token in its row."""
    start = 0
    for tail in pack:
        yield start, tail
        start += len(tail.ids)


def _blocks(tail: Tail) -> Iterator[range]:
    """Where each choice's tokens stand among the tail's."""
    first = len(tail.prompt)
    for choice in tail.choices:
        yield range(first, first + len(choice) - 1)
        first += len(choice) - 1


def _visible(pack: Sequence[Tail], width: int) -> torch.Tensor:
    """Which of `width` tokens each may attend to, (width, width): those before it of its own question and choice."""
    visible = torch.eye(width, dtype=torch.bool)
    for start, tail in _starting(pack):
        own = visible[start : start + len(tail.ids), start : start + len(tail.ids)]
        own |= torch.ones_like(own).tril()
        for block in _blocks(tail):
            own[block.start : block.stop, len(tail.prompt) : block.start] = False
    return visible


def _offsets(pack: Sequence[Tail], width: int) -> torch.Tensor:
    """Positions (width,) from the prefix's end; every question begins there, every choice right after its prompt."""
    offsets = torch.zeros(width, dtype=torch.long)
    for start, tail in _starting(pack):
        offsets[start : start + len(tail.ids)] = torch.arange(len(tail.ids))
        for block in _blocks(tail):
            offsets[start + block.start : start + block.stop] = torch.arange(len(block)) + len(tail.prompt)
    return offsets


def _predictions(tail: Tail) -> Iterator[tuple[int, int]]:
    """For every token of every choice, the place of the token that predicts it, and the token."""
    for choice, block in zip(tail.choices, _blocks(tail), strict=True):
        yield from zip([len(tail.prompt) - 1, *block], choice, strict=True)
