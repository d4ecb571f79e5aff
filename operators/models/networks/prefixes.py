"""What all questions on an image share, and how they are read side by side after one copy of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

PACKED_TOKENS = 512
"""The questions on an image are read side by side after one copy of its prefix, up to so many tokens of them."""


class KeysAndValues(NamedTuple):
    """What a layer that attends to tokens keeps of those that it has read."""

    keys: torch.Tensor
    """(heads, tokens, head width)."""
    values: torch.Tensor

    @staticmethod
    def copied(memories: Sequence["KeysAndValues"], width: int) -> DynamicLayer:
        """A layer of a cache with a copy of each, padded on the left to `width` tokens."""
        layer = DynamicLayer()
        layer.update(
            torch.stack([_pad_left(memory.keys, width) for memory in memories]),
            torch.stack([_pad_left(memory.values, width) for memory in memories]),
        )
        return layer


class LayerState(NamedTuple):
    """What a layer of linear attention keeps: a sum of all tokens that it has read, of one size however many."""

    convolved: torch.Tensor
    """The last tokens before it, (channels, tokens)."""
    recurrent: torch.Tensor
    """(heads, key width, value width)."""

    @staticmethod
    def copied(memories: Sequence["LayerState"], width: int) -> LinearAttentionLayer:
        """A layer of a cache with a copy of each, which has no padding."""
        layer = LinearAttentionLayer()
        layer.update_conv_state(torch.stack([memory.convolved for memory in memories]))
        layer.update_recurrent_state(torch.stack([memory.recurrent for memory in memories]))
        return layer


Memory = KeysAndValues | LayerState


def memory_of(layer: Any, row: int, tokens: int) -> Memory:
    """What a layer of a cache keeps of the last `tokens` of one row of its batch."""
    if isinstance(layer, LinearAttentionLayer):
        return LayerState(layer.conv_states[0][row], layer.recurrent_states[0][row])
    return KeysAndValues(layer.keys[row, :, -tokens:], layer.values[row, :, -tokens:])


@dataclass(kw_only=True, slots=True)
class Prefix:
    """What every question on an image shares: all up to the last image token, run through the model."""

    ids: list[int]
    """Its tokens."""
    layers: list[Memory]
    next_position: int
    """Of the first token after the prefix; with two-dimensional image positions less than the number of tokens."""
    closing: str
    """What the processor writes between the image's last token and the text after it."""
    unread: list[int] = field(default_factory=list)
    """Those of its tokens that are read with every question anew."""
    read: bool = False
    """Whether a question has continued from it yet."""

    @property
    def tokens(self) -> int:
        return len(self.ids) if self.layers else 0


class Tail(NamedTuple):
    """One question's tokens after its image's prefix: the rest of the prompt, then every choice, each continuing it."""

    prefix: Prefix
    prompt: list[int]
    choices: list[list[int]]
    """End of turn included; the last token of each is predicted but not read."""

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *(token for choice in self.choices for token in choice[:-1])]

    @property
    def tokens(self) -> int:
        """All that it takes of the model's context."""
        return self.prefix.tokens + len(self.ids)


class CopiedPrefixes(NamedTuple):
    """Copies of prefixes side by side, padded on the left."""

    cache: DynamicCache
    real: torch.Tensor
    """(n, tokens): where they are not padding."""
    places: torch.Tensor
    """(n, tokens): how many tokens of its prefix stand before each."""


def copied(prefixes: Sequence[Prefix], device: torch.device) -> CopiedPrefixes:
    """A copy of what the layers keep of each prefix, which a model may write behind."""
    width = max(prefix.tokens for prefix in prefixes)
    cache = DynamicCache()
    cache.layers = [
        type(layer[0]).copied(layer, width) for layer in zip(*(prefix.layers for prefix in prefixes), strict=True)
    ]
    padding = torch.tensor([[width - prefix.tokens] for prefix in prefixes], device=device)
    places = torch.arange(width, device=device) - padding
    return CopiedPrefixes(cache, places >= 0, places)


def _pad_left(states: torch.Tensor, width: int) -> torch.Tensor:
    """States (heads, tokens, head width) as (heads, `width`, head width)."""
    return pad(states, (0, 0, width - states.shape[1], 0))


def packed(tails: Sequence[Tail], most: int) -> list[list[int]]:
    """Which questions share a copy of their image's prefix, in their order: as many as `most` tokens hold."""
    packs: list[list[int]] = []
    open_packs: dict[int, tuple[list[int], int]] = {}
    for index, tail in enumerate(tails):
        pack, tokens = open_packs.get(id(tail.prefix), ([], most))
        if tokens + len(tail.ids) > most:
            pack, tokens = [], 0
            packs.append(pack)
        pack.append(index)
        open_packs[id(tail.prefix)] = pack, tokens + len(tail.ids)
    return packs


def starting(pack: Sequence[Tail]) -> Iterator[tuple[int, Tail]]:
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


def visible(pack: Sequence[Tail], width: int, *, two_way: bool = False) -> torch.Tensor:
    """Which of `width` tokens each may attend to, (width, width): those before it of its own question and choice.

    `two_way` lets the tokens of a prompt see those after them as well.
    """
    seen = torch.eye(width, dtype=torch.bool)
    for start, tail in starting(pack):
        own = seen[start : start + len(tail.ids), start : start + len(tail.ids)]
        own |= torch.ones_like(own).tril()
        own[: len(tail.prompt), : len(tail.prompt)] |= two_way
        for block in _blocks(tail):
            own[block.start : block.stop, len(tail.prompt) : block.start] = False
    return seen


def offsets(pack: Sequence[Tail], width: int) -> torch.Tensor:
    """Positions (width,) from the prefix's end; every question begins there, every choice right after its prompt."""
    places = torch.zeros(width, dtype=torch.long)
    for start, tail in starting(pack):
        places[start : start + len(tail.ids)] = torch.arange(len(tail.ids))
        for block in _blocks(tail):
            places[start + block.start : start + block.stop] = torch.arange(len(block)) + len(tail.prompt)
    return places


def predictions(tail: Tail) -> Iterator[tuple[int, int]]:
    """For every token of every choice, the place of the token that predicts it, and the token."""
    for choice, block in zip(tail.choices, _blocks(tail), strict=True):
        yield from zip([len(tail.prompt) - 1, *block], choice, strict=True)


def said_before(tail: Tail) -> Iterator[list[int]]:
    """For every token of every choice, in the order of `predictions`, all tokens of the conversation before it."""
    for choice in tail.choices:
        yield from ([*tail.prefix.ids, *tail.prompt, *choice[:place]] for place in range(len(choice)))
