"""Prefixes shared by all questions about an image, and how questions are arranged after one copy of a prefix."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

MAX_PACKED_TOKENS = 512
"""Maximum number of question tokens that are read together after one copy of an image's prefix."""


class KeysAndValues(NamedTuple):
    """Cache of an attention layer: keys and values of the tokens that it has read."""

    keys: torch.Tensor
    """Keys, (heads, tokens, head width)."""
    values: torch.Tensor


class LayerState(NamedTuple):
    """State of a linear-attention layer: a constant-size sum over all tokens read so far."""

    convolved: torch.Tensor
    """Inputs of the layer for the last few tokens, (channels, tokens)."""
    recurrent: torch.Tensor
    """The sum over all tokens read so far, (heads, key width, value width)."""


def copy_memory(layer: Any, row: int, tokens: int) -> KeysAndValues | LayerState:
    """Return what one row of a cache layer remembers: keys and values, or the state of a linear-attention layer.

    Keys and values are those of the row's last `tokens` tokens. A state covers all tokens.
    """
    if isinstance(layer, LinearAttentionLayer):
        return LayerState(layer.conv_states[0][row], layer.recurrent_states[0][row])
    return KeysAndValues(layer.keys[row, :, -tokens:], layer.values[row, :, -tokens:])


@dataclass(kw_only=True, slots=True)
class Prefix:
    """The start of every prompt about an image, up to the last image token, after the model has read it."""

    ids: list[int]
    """Tokens of the prefix."""
    layers: list[KeysAndValues | LayerState]
    next_position: int
    """Position of the first token after the prefix; at most the number of tokens, because image positions are 2D."""
    closing: str
    """Text that the processor inserts between the last token of the image and the text that follows it."""
    unread: list[int] = field(default_factory=list)
    """Tokens of the prefix that the model reads again with each question."""
    read: bool = False
    """True once a question has continued from the prefix."""

    @property
    def tokens(self) -> int:
        return len(self.ids) if self.layers else 0


class Tail(NamedTuple):
    """The tokens of one question that follow its image's prefix: the rest of the prompt, then each choice."""

    prefix: Prefix
    prompt: list[int]
    choices: list[list[int]]
    """Tokens of each choice, including the end of the turn; the last token is predicted but not read."""

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *(token for choice in self.choices for token in choice[:-1])]

    @property
    def tokens(self) -> int:
        """Number of tokens in the model's context, including the image's prefix."""
        return self.prefix.tokens + len(self.ids)


class CopiedPrefixes(NamedTuple):
    """A batch whose rows continue from copies of image prefixes, padded on the left to equal length."""

    cache: DynamicCache
    real: torch.Tensor
    """Mask (n, tokens): True for tokens, False for padding."""
    indices: torch.Tensor
    """Index of each token in its prefix, (n, tokens)."""


def copy_prefixes(prefixes: Sequence[Prefix], device: torch.device) -> CopiedPrefixes:
    """Return a cache with copies of the prefixes, one per row, to which a model may add further tokens."""
    width = max(prefix.tokens for prefix in prefixes)

    def pad_and_stack(states: Sequence[torch.Tensor]) -> torch.Tensor:
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
            layer.update(pad_and_stack(first), pad_and_stack(second))
        cache.layers.append(layer)
    padding = torch.tensor([[width - prefix.tokens] for prefix in prefixes], device=device)
    indices = torch.arange(width, device=device) - padding
    return CopiedPrefixes(cache, indices >= 0, indices)


def pack_questions(tails: Sequence[Tail], max_tokens: int) -> list[list[int]]:
    """Return groups of questions, as lists of indices, that share a copy of their image's prefix.

    A group has at most `max_tokens` tokens, unless a single question has more.
    """
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
    """Yield (start, tail) for each tail; `start` is the index of its first token in the row."""
    start = 0
    for tail in pack:
        yield start, tail
        start += len(tail.ids)


def _iterate_choice_ranges(tail: Tail) -> Iterator[range]:
    first = len(tail.prompt)
    for choice in tail.choices:
        yield range(first, first + len(choice) - 1)
        first += len(choice) - 1


def find_visible_tokens(pack: Sequence[Tail], width: int, *, two_way: bool = False) -> torch.Tensor:
    """Return the mask (width, width) in which each token sees earlier tokens of its prompt and choice.

    If `two_way`, the tokens of a prompt also see later tokens of the prompt.
    """
    seen = torch.eye(width, dtype=torch.bool)
    for start, tail in iterate_starts(pack):
        own = seen[start : start + len(tail.ids), start : start + len(tail.ids)]
        own |= torch.ones_like(own).tril()
        own[: len(tail.prompt), : len(tail.prompt)] |= two_way
        for choice in _iterate_choice_ranges(tail):
            own[choice.start : choice.stop, len(tail.prompt) : choice.start] = False
    return seen


def find_position_offsets(pack: Sequence[Tail], width: int) -> torch.Tensor:
    """Return each token's position (width,) relative to the end of the prefix; choices start right after the prompt."""
    offsets = torch.zeros(width, dtype=torch.long)
    for start, tail in iterate_starts(pack):
        offsets[start : start + len(tail.ids)] = torch.arange(len(tail.ids))
        for choice in _iterate_choice_ranges(tail):
            offsets[start + choice.start : start + choice.stop] = torch.arange(len(choice)) + len(tail.prompt)
    return offsets


def iterate_predictions(tail: Tail) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (index of the predicting token, predicted token, all earlier tokens) for each token of each choice."""
    for choice, indices in zip(tail.choices, _iterate_choice_ranges(tail), strict=True):
        for number, predicting in enumerate([len(tail.prompt) - 1, *indices]):
            yield predicting, choice[number], [*tail.prefix.ids, *tail.prompt, *choice[:number]]
