"""Prefixes that all questions on an image share, and the layout of questions side by side after a copy of a prefix."""

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


class LayerState(NamedTuple):
    """Memory of a layer of linear attention: a sum over all tokens it has read, of constant size."""

    convolved: torch.Tensor
    """The last tokens before the layer, (channels, tokens)."""
    recurrent: torch.Tensor
    """(heads, key width, value width)."""


def copy_memory(layer: Any, row: int, tokens: int) -> KeysAndValues | LayerState:
    """Return a cache layer's memory of the last `tokens` of one row of its batch."""
    if isinstance(layer, LinearAttentionLayer):
        return LayerState(layer.conv_states[0][row], layer.recurrent_states[0][row])
    return KeysAndValues(layer.keys[row, :, -tokens:], layer.values[row, :, -tokens:])


@dataclass(kw_only=True, slots=True)
class Prefix:
    """The beginning that every question on an image shares, up to the last image token, after the model has read it."""

    ids: list[int]
    """Its tokens."""
    layers: list[KeysAndValues | LayerState]
    next_position: int
    """Position of the first token after the prefix; at most the number of tokens, as images are 2D."""
    closing: str
    """Text that the processor writes between the image's last token and the text after it."""
    unread: list[int] = field(default_factory=list)
    """Tokens of the prefix that are read again with every question."""
    read: bool = False
    """True once a question has continued from the prefix."""

    @property
    def tokens(self) -> int:
        return len(self.ids) if self.layers else 0


class Tail(NamedTuple):
    """One question's tokens after its image's prefix: the rest of the prompt, then each choice by itself."""

    prefix: Prefix
    prompt: list[int]
    choices: list[list[int]]
    """Tokens of each choice, end of turn included; the last token is predicted but not read."""

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *(token for choice in self.choices for token in choice[:-1])]

    @property
    def tokens(self) -> int:
        """Number of tokens in the model's context."""
        return self.prefix.tokens + len(self.ids)


class CopiedPrefixes(NamedTuple):
    """Copies of prefixes as one batch, padded on the left."""

    cache: DynamicCache
    real: torch.Tensor
    """(n, tokens): True for tokens, False for padding."""
    indices: torch.Tensor
    """(n, tokens): index of each token in its prefix."""


def copy_prefixes(prefixes: Sequence[Prefix], device: torch.device) -> CopiedPrefixes:
    """Copy the layers' memory of each prefix to a cache, which a model may extend."""
    width = max(prefix.tokens for prefix in prefixes)

    def stack(states: Sequence[torch.Tensor]) -> torch.Tensor:
        """Pad states (heads, tokens, head width) on the left to `width` tokens, and stack them."""
        return torch.stack([pad(state, (0, 0, width - state.shape[1], 0)) for state in states])

    cache = DynamicCache()
    for memories in zip(*(prefix.layers for prefix in prefixes), strict=True):
        first, second = zip(*memories, strict=True)
        if isinstance(memories[0], LayerState):  # states have no padding
            layer = LinearAttentionLayer()
            layer.update_conv_state(torch.stack(first))
            layer.update_recurrent_state(torch.stack(second))
        else:
            layer = DynamicLayer()
            layer.update(stack(first), stack(second))
        cache.layers.append(layer)
    padding = torch.tensor([[width - prefix.tokens] for prefix in prefixes], device=device)
    indices = torch.arange(width, device=device) - padding
    return CopiedPrefixes(cache, indices >= 0, indices)


def pack_questions(tails: Sequence[Tail], max_tokens: int) -> list[list[int]]:
    """Return the indices of questions that share a copy of their image's prefix, at most `max_tokens` together."""
    packs: list[list[int]] = []
    open_packs: dict[int, tuple[list[int], int]] = {}
    for index, tail in enumerate(tails):
        pack, tokens = open_packs.get(id(tail.prefix), ([], max_tokens))
        if tokens + len(tail.ids) > max_tokens:
            pack, tokens = [], 0
            packs.append(pack)
        pack.append(index)
        open_packs[id(tail.prefix)] = pack, tokens + len(tail.ids)
    return packs


def iterate_starts(pack: Sequence[Tail]) -> Iterator[tuple[int, Tail]]:
    """Yield each tail with the index of its first token in its row."""
    start = 0
    for tail in pack:
        yield start, tail
        start += len(tail.ids)


def _choice_ranges(tail: Tail) -> Iterator[range]:
    """Yield the indices of each choice's tokens among the tail's."""
    first = len(tail.prompt)
    for choice in tail.choices:
        yield range(first, first + len(choice) - 1)
        first += len(choice) - 1


def find_visible_tokens(pack: Sequence[Tail], width: int, *, two_way: bool = False) -> torch.Tensor:
    """Return which tokens each token attends to, (width, width): those before it in its own question and choice.

    `two_way` lets the tokens of a prompt see those after them as well.
    """
    seen = torch.eye(width, dtype=torch.bool)
    for start, tail in iterate_starts(pack):
        own = seen[start : start + len(tail.ids), start : start + len(tail.ids)]
        own |= torch.ones_like(own).tril()
        own[: len(tail.prompt), : len(tail.prompt)] |= two_way
        for choice in _choice_ranges(tail):
            own[choice.start : choice.stop, len(tail.prompt) : choice.start] = False
    return seen


def find_position_offsets(pack: Sequence[Tail], width: int) -> torch.Tensor:
    """Return positions (width,) from the prefix's end; every choice begins right after its prompt."""
    offsets = torch.zeros(width, dtype=torch.long)
    for start, tail in iterate_starts(pack):
        offsets[start : start + len(tail.ids)] = torch.arange(len(tail.ids))
        for choice in _choice_ranges(tail):
            offsets[start + choice.start : start + choice.stop] = torch.arange(len(choice)) + len(tail.prompt)
    return offsets


def iterate_predictions(tail: Tail) -> Iterator[tuple[int, int, list[int]]]:
    """Yield for every token of every choice the index of the token that predicts it, the token, and all before it."""
    for choice, indices in zip(tail.choices, _choice_ranges(tail), strict=True):
        for number, predicting in enumerate([len(tail.prompt) - 1, *indices]):
            yield predicting, choice[number], [*tail.prefix.ids, *tail.prompt, *choice[:number]]
