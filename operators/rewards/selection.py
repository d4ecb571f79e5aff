"""Which images of a prompt make an example: pairs, rankings and best-of-n, by margin, agreement, caps and balance."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from plumbline.operators.base.bounds import BoundsChecked, NotNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.rewards.values import TIE, Codes, Floats

Unit = Literal["pair", "ranking", "best", "image"]
Stratum = Literal["winner", "loser", "skills"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionConfig(BoundsChecked):
    """Which comparisons are sure enough, and how many are taken."""

    section: ClassVar[str] = "selection."
    margin: NotNegative = 0.5
    """By how much the better image's reward must be above the worse one's; ties are never taken."""
    margin_unit: Literal["absolute", "noise"] = "noise"
    """`absolute`: in the reward's own scale; `noise`: in units of its pooled standard deviation within a prompt."""
    agree: tuple[str, ...] = ()
    """Metrics of the run that must each put the better image first, whatever their own margin."""
    per_prompt: Positive | None = None
    """Most pairs of a prompt, or most images of a ranking."""
    pick: Literal["widest", "hash"] = "widest"
    """Which pairs of a prompt are taken where there are more: those of the `widest` margin, or any, by a `hash`."""
    max_examples: Positive | None = None
    """Most examples of a split of the export; null takes all."""
    balance: tuple[Stratum, ...] = ()
    """Over what `max_examples` are spread as evenly as there are any: the generator of the winner, or of the loser, and
    the prompt's skills."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.balance and self.max_examples is None:
            raise ConfigError("selection.balance: expected max_examples beside it, which it spreads; got null")


class Candidates(NamedTuple):
    """The images of a run, one number each, as a selection sees them."""

    rewards: Floats
    """nan where there is none."""
    prompts: Codes
    noise: float
    """Of the rewards, within a prompt."""
    agreeing: Sequence[Floats]
    """The scores, higher being better, of the metrics that must agree."""
    ids: Callable[[int], str]
    """A name of an image that no other has."""
    generator: Callable[[int], str]
    skills: Callable[[int], str]
    """Of a prompt."""


class Example(NamedTuple):
    """One example: images of a prompt, the best first."""

    prompt: int
    images: tuple[int, ...]


def select(unit: Unit, candidates: Candidates, config: SelectionConfig) -> Iterator[Example]:
    """The examples in the order of the prompts; raises ConfigError where the noise is wanted and there is none."""
    order = np.argsort(candidates.prompts, kind="stable")
    starts = np.flatnonzero(np.diff(candidates.prompts[order], prepend=-1))
    better = Better(candidates, config)
    for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
        images = order[first:last]
        prompt = int(candidates.prompts[images[0]])
        if unit == "image":
            yield from (Example(prompt, (int(image),)) for image in images)
        else:
            scored = [int(image) for image in images if not np.isnan(candidates.rewards[image])]
            ranked = sorted(scored, key=lambda image: -candidates.rewards[image])
            yield from (Example(prompt, images) for images in _UNITS[unit](ranked, better, config))


class Better:
    """Whether one image is surely better than another."""

    def __init__(self, candidates: Candidates, config: SelectionConfig) -> None:
        self.candidates = candidates
        unit = candidates.noise if config.margin_unit == "noise" else 1.0
        self.margin = config.margin * unit
        self.tie = TIE * candidates.noise if candidates.noise else np.inf

    def __call__(self, winner: int, loser: int) -> bool:
        gap = self.gap(winner, loser)
        agreeing = all(scores[winner] > scores[loser] for scores in self.candidates.agreeing)
        return bool(gap > self.tie and gap >= self.margin and agreeing)

    def gap(self, winner: int, loser: int) -> float:
        """By how much the reward of one is above that of the other."""
        return float(self.candidates.rewards[winner] - self.candidates.rewards[loser])

    def place(self, images: Sequence[int]) -> bytes:
        """A place in an order that has nothing to do with scores, and is the same every time."""
        return hashlib.sha256("\0".join(map(self.candidates.ids, images)).encode(errors="replace")).digest()


def _pairs(ranked: Sequence[int], better: Better, config: SelectionConfig) -> Iterator[tuple[int, ...]]:
    pairs = [
        (winner, loser) for place, winner in enumerate(ranked) for loser in ranked[place + 1 :] if better(winner, loser)
    ]
    if config.per_prompt is None or len(pairs) <= config.per_prompt:
        yield from pairs
    elif config.pick == "widest":
        yield from sorted(pairs, key=lambda pair: -better.gap(*pair))[: config.per_prompt]
    else:
        yield from sorted(pairs, key=better.place)[: config.per_prompt]


def _rankings(ranked: Sequence[int], better: Better, config: SelectionConfig) -> Iterator[tuple[int, ...]]:
    """The images from the best down, each surely better than the next that is kept, as many as wanted evenly chosen."""
    chain = list(ranked[:1])
    for image in ranked[1:]:
        if better(chain[-1], image):
            chain.append(image)
    if config.per_prompt is not None and len(chain) > config.per_prompt:
        chain = [chain[place] for place in np.linspace(0, len(chain) - 1, config.per_prompt).round().astype(int)]
    if len(chain) > 1:
        yield tuple(chain)


def _best(ranked: Sequence[int], better: Better, config: SelectionConfig) -> Iterator[tuple[int, ...]]:
    """All images, of which the best is surely better than the worst: there is a choice."""
    if len(ranked) > 1 and better(ranked[0], ranked[-1]):
        yield tuple(ranked)


_UNITS: Mapping[str, Callable[[Sequence[int], Better, SelectionConfig], Iterator[tuple[int, ...]]]] = {
    "pair": _pairs,
    "ranking": _rankings,
    "best": _best,
}


def spread(examples: Sequence[Example], candidates: Candidates, config: SelectionConfig) -> list[Example]:
    """At most `max_examples`, as evenly over the strata of `balance` as there are any, in their order."""
    if config.max_examples is None or len(examples) <= config.max_examples:
        return list(examples)
    better = Better(candidates, config)
    strata: dict[tuple[str, ...], list[int]] = {}
    for number, example in enumerate(examples):
        strata.setdefault(_stratum(example, candidates, config.balance), []).append(number)
    quotas = even_quotas([len(numbers) for numbers in strata.values()], config.max_examples)
    taken: list[int] = []
    for numbers, quota in zip(strata.values(), quotas, strict=True):
        taken += sorted(numbers, key=lambda number: better.place(examples[number].images))[:quota]
    return [examples[number] for number in sorted(taken)]


def _stratum(example: Example, candidates: Candidates, balance: Sequence[Stratum]) -> tuple[str, ...]:
    names = {
        "winner": lambda: candidates.generator(example.images[0]),
        "loser": lambda: candidates.generator(example.images[-1]),
        "skills": lambda: candidates.skills(example.prompt),
    }
    return tuple(names[name]() for name in balance)


def even_quotas(sizes: Sequence[int], total: int) -> list[int]:
    """How many to take of strata of these sizes, `total` together: all of the small, the others alike but for 1."""
    quotas = [0] * len(sizes)
    left = min(total, sum(sizes))
    by_size = sorted(range(len(sizes)), key=lambda stratum: sizes[stratum])
    for done, stratum in enumerate(by_size):
        quotas[stratum] = min(sizes[stratum], left // (len(sizes) - done))
        left -= quotas[stratum]
    return quotas


TRAIN, HELD_OUT = "train", "test"
RULE = (
    "test where the first 8 bytes of SHA-256 of the prompt's text in lower case, its runs of spaces made one, divided \
by 2^64 are below held_out"
)


def split_of(text: str, held_out: float) -> str:
    """`test` for this share of prompts, `train` for the others; the same in every run, whatever else the export has."""
    normal = " ".join(text.lower().split())
    place = int.from_bytes(hashlib.sha256(normal.encode(errors="replace")).digest()[:8], "big") / 2**64
    return HELD_OUT if place < held_out else TRAIN
