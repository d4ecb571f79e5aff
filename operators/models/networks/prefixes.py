"""Prefixes that all questions on an image share, and the layout of questions side by side after a copy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

MAX_PACKED_TOKENS = 512
"""Maximum tokens of the questions on an image that are read side by side after one copy of its prefix."""


class KeysAndValues(NamedTuple):
    """Memory of an attention layer: keys and values of the tokens it has read."""

    keys: torch.Tensor
    """(heads, tokens, head width)."""
    values: torch.Tensor

    @staticmethod
    def to_cache_layer(memories: Sequence["KeysAndValues"], width: int) -> DynamicLayer:
        """Return a cache layer with a copy of each, padded on the left to `width` tokens."""
        layer = DynamicLayer()
        layer.update(
            torch.stack([_pad_left(memory.keys, width) for memory in memories]),
            torch.stack([_pad_left(memory.values, width) for memory in memories]),
        )
        return layer


class LayerState(NamedTuple):
    """Memory of a layer of linear attention: a sum over all tokens it has read, of constant size."""

    convolved: torch.Tensor
    """The last tokens before the layer, (channels, tokens)."""
    recurrent: torch.Tensor
    """(heads, key width, value width)."""

    @staticmethod
    def to_cache_layer(memories: Sequence["LayerState"], width: int) -> LinearAttentionLayer:
        """Return a cache layer with a copy of each; states have no padding."""
        layer = LinearAttentionLayer()
        layer.update_conv_state(torch.stack([memory.convolved for memory in memories]))
        layer.update_recurrent_state(torch.stack([memory.recurrent for memory in memories]))
        return layer


Memory = KeysAndValues | LayerState


def layer_memory(layer: Any, row: int, tokens: int) -> Memory:
    """Return a cache layer's memory of the last `tokens` of one row of its batch."""
    if isinstance(layer, LinearAttentionLayer):
        return LayerState(layer.conv_states[0][row], layer.recurrent_states[0][row])
    return KeysAndValues(layer.keys[row, :, -tokens:], layer.values[row, :, -tokens:])


@dataclass(kw_only=True, slots=True)
class Prefix:
    """The beginning that every question on an image shares, up to the last image token, after the model has read it."""

    ids: list[int]
    """Its tokens."""
    layers: list[Memory]
    next_position: int
    """Position of the first token after the prefix; at most the number of tokens, as images are 2D."""
    closing: str
    """Text that the processor writes between the image's last token and the text after it."""
    unread: list[int] = field(default_factory=list)
    """Tokens of the prefix that are read again with every question."""
    read: bool = False
    """True once a question has continued from it."""

    @property
    def tokens(self) -> int:
        return len(self.ids) if self.layers else 0


class Tail(NamedTuple):
    """One question's tokens after its image's prefix: the rest of the prompt, then each choice by itself."""

    prefix: Prefix
    prompt: list[int]
    choices: list[list[int]]
    """Tokens of each choice, end of turn included; the last one is predicted but not read."""

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *(token for choice in self.choices for token in choice[:-1])]

    @property
    def tokens(self) -> int:
        """Number of tokens that it takes of the model's context."""
        return self.prefix.tokens + len(self.ids)


class CopiedPrefixes(NamedTuple):
    """Copies of prefixes as one batch, padded on the left."""

    cache: DynamicCache
    real: torch.Tensor
    """(n, tokens): True for tokens, False for padding."""
    places: torch.Tensor
    """(n, tokens): number of tokens before each in its prefix."""


def copy_prefixes(prefixes: Sequence[Prefix], device: torch.device) -> CopiedPrefixes:
    """Copy the layers' memory of each prefix to a cache, which a model may extend."""
    width = max(prefix.tokens for prefix in prefixes)
    cache = DynamicCache()
    cache.layers = [
        type(layer[0]).to_cache_layer(layer, width)
        for layer in zip(*(prefix.layers for prefix in prefixes), strict=True)
    ]
    padding = torch.tensor([[width - prefix.tokens] for prefix in prefixes], device=device)
    places = torch.arange(width, device=device) - padding
    return CopiedPrefixes(cache, places >= 0, places)


def _pad_left(states: torch.Tensor, width: int) -> torch.Tensor:
    """Pad states (heads, tokens, head width) to (heads, `width`, head width)."""
    return pad(states, (0, 0, width - states.shape[1], 0))


def pack_questions(tails: Sequence[Tail], most: int) -> list[list[int]]:
    """Return the indices of questions that share a copy of their image's prefix, up to `most` tokens each."""
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


def tail_starts(pack: Sequence[Tail]) -> Iterator[tuple[int, Tail]]:
    """Yield each tail with the index of its first token in its row."""
    start = 0
    for tail in pack:
        yield start, tail
        start += len(tail.ids)


def _blocks(tail: Tail) -> Iterator[range]:
    """Yield the indices of each choice's tokens among the tail's."""
    first = len(tail.prompt)
    for choice in tail.choices:
        yield range(first, first + len(choice) - 1)
        first += len(choice) - 1


def visible_tokens(pack: Sequence[Tail], width: int, *, two_way: bool = False) -> torch.Tensor:
    """Return which tokens each token attends to, (width, width): those before it in its own question and choice.

    `two_way` lets the tokens of a prompt see those after them as well.
    """
    seen = torch.eye(width, dtype=torch.bool)
    for start, tail in tail_starts(pack):
        own = seen[start : start + len(tail.ids), start : start + len(tail.ids)]
        own |= torch.ones_like(own).tril()
        own[: len(tail.prompt), : len(tail.prompt)] |= two_way
        for block in _blocks(tail):
            own[block.start : block.stop, len(tail.prompt) : block.start] = False
    return seen


def position_offsets(pack: Sequence[Tail], width: int) -> torch.Tensor:
    """Return positions (width,) from the prefix's end; every choice begins right after its prompt."""
    places = torch.zeros(width, dtype=torch.long)
    for start, tail in tail_starts(pack):
        places[start : start + len(tail.ids)] = torch.arange(len(tail.ids))
        for block in _blocks(tail):
            places[start + block.start : start + block.stop] = torch.arange(len(block)) + len(tail.prompt)
    return places


def iterate_predictions(tail: Tail) -> Iterator[tuple[int, int]]:
    """Yield for every token of every choice the index of the token that predicts it, and the token."""
    for choice, block in zip(tail.choices, _blocks(tail), strict=True):
        yield from zip([len(tail.prompt) - 1, *block], choice, strict=True)


def previous_tokens(tail: Tail) -> Iterator[list[int]]:
    """Yield the conversation's tokens before each token of `iterate_predictions`."""
    for choice in tail.choices:
        yield from ([*tail.prefix.ids, *tail.prompt, *choice[:place]] for place in range(len(choice)))
