"""What all questions on an image share, and how they are read side by side after one copy of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

PACKED_TOKENS = 512
"""The questions on an image are read side by side after one copy of its prefix, up to so many tokens of them."""


@dataclass(kw_only=True, slots=True)
class Prefix:
    """What every question on an image shares: all up to the last image token, run through the model."""

    ids: list[int]
    """Its tokens."""
    keys: list[torch.Tensor]
    """By layer, (heads, tokens, head width), on the device."""
    values: list[torch.Tensor]
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
        return int(self.keys[0].shape[1]) if self.keys else 0


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


class Copied(NamedTuple):
    """Copies of prefixes side by side, padded on the left."""

    cache: DynamicCache
    real: torch.Tensor
    """(n, tokens): where they are not padding."""
    places: torch.Tensor
    """(n, tokens): how many tokens of its prefix stand before each."""


def copied(prefixes: Sequence[Prefix], device: torch.device) -> Copied:
    """A copy of the keys and values of each prefix, which a model may write behind."""
    width = max(prefix.tokens for prefix in prefixes)
    layers = [
        (
            torch.stack([_pad_left(prefix.keys[layer], width) for prefix in prefixes]),
            torch.stack([_pad_left(prefix.values[layer], width) for prefix in prefixes]),
        )
        for layer in range(len(prefixes[0].keys))
    ]
    padding = torch.tensor([[width - prefix.tokens] for prefix in prefixes], device=device)
    places = torch.arange(width, device=device) - padding
    return Copied(DynamicCache(layers), places >= 0, places)


def _pad_left(states: torch.Tensor, width: int) -> torch.Tensor:
    """States (heads, tokens, head width) as (heads, `width`, head width)."""
    return pad(states, (0, 0, width - states.shape[1], 0))


def packed(tails: Sequence[Tail]) -> list[list[int]]:
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
