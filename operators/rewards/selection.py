"""Selects examples (pairs, rankings, best-of-n) from a prompt's images, by margin, agreement, limits and balance."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from plumbline.operators.base.bounds import BoundsChecked, NonNegative, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.rewards.values import MAX_TIE_FRACTION, Codes, Floats

ExampleUnit = Literal["pair", "ranking", "best", "image"]
Stratum = Literal["winner", "loser", "skills"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionConfig(BoundsChecked):
    """Options that determine which comparisons are clear enough, and how many examples are selected."""

    section: ClassVar[str] = "selection."
    margin: NonNegative = 0.5
    """Minimum difference between the rewards of the better and the worse image; ties are never selected."""
    margin_unit: Literal["absolute", "noise"] = "noise"
    """Unit of `margin`: `absolute` is the reward's own unit; `noise` is the rewards' pooled standard deviation within a
    prompt.
    """
    agree: tuple[str, ...] = ()
    """Metrics in the run that must all prefer the better image, by any margin. A judge that compares two images must
    have preferred it in its comparison of these two.
    """
    per_prompt: Positive | None = None
    """Maximum number of pairs per prompt, or of images in a ranking."""
    pick: Literal["widest", "hash"] = "widest"
    """Rule for choosing among too many pairs of a prompt: by the `widest` margin, or pseudo-randomly by `hash`."""
    max_examples: Positive | None = None
    """Maximum number of examples in each split of the export; null selects all."""
    balance: tuple[Stratum, ...] = ()
    """Groups over which `max_examples` are spread evenly: by the winner's or loser's generator, and by the prompt's
    skills.
    """

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.balance and self.max_examples is None:
            raise ConfigError("selection.balance: requires max_examples, which is spread over the groups; got null")


class Candidates(NamedTuple):
    """The images of a run, from which examples are selected. Arrays have one element per image."""

    rewards: Floats
    """Rewards; nan if missing."""
    prompts: Codes
    noise: float
    """Standard deviation of the rewards within a prompt (`measure_noise`)."""
    agreeing: Sequence[Callable[[int, int], bool]]
    """Functions of two images, one for each metric that must agree; True if the metric prefers the first."""
    ids: Callable[[int], str]
    """Function that returns the unique name of an image, given its index."""
    generator: Callable[[int], str]
    """Function that returns the generator of an image, given its index."""
    skills: Callable[[int], str]
    """Function that returns the skills of a prompt, given the prompt's index."""


class Example(NamedTuple):
    prompt: int
    images: tuple[int, ...]
    """Indices of the images, best first."""


def select_examples(unit: ExampleUnit, candidates: Candidates, config: SelectionConfig) -> Iterator[Example]:
    """Yield the examples to export, prompt by prompt; `unit` selects pairs, rankings, best images or all images."""
    order = np.argsort(candidates.prompts, kind="stable")
    starts = np.flatnonzero(np.diff(candidates.prompts[order], prepend=-1))
    comparison = RewardComparison(candidates, config)
    for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
        images = order[first:last]
        prompt = int(candidates.prompts[images[0]])
        if unit == "image":
            yield from (Example(prompt, (int(image),)) for image in images)
            continue
        scored = [int(image) for image in images if not np.isnan(candidates.rewards[image])]
        ranked = sorted(scored, key=lambda image: -candidates.rewards[image])
        if unit == "pair":
            yield from (Example(prompt, pair) for pair in _select_pairs(ranked, comparison, config))
            continue
        if unit == "ranking":
            ranked = _select_ranking(ranked, comparison, config)
        # The first of a ranking is better than the last, because each image is better than the next.
        if len(ranked) > 1 and comparison.is_better(ranked[0], ranked[-1]):
            yield Example(prompt, tuple(ranked))


class RewardComparison:
    """Decides which of two images is clearly better, by the margin between their rewards and by other metrics."""

    def __init__(self, candidates: Candidates, config: SelectionConfig) -> None:
        self.candidates = candidates
        unit = candidates.noise if config.margin_unit == "noise" else 1.0
        self.margin = config.margin * unit
        self.tie = MAX_TIE_FRACTION * candidates.noise if candidates.noise else np.inf

    def is_better(self, winner: int, loser: int) -> bool:
        """Return True if the winner's reward is higher by at least the margin, and all metrics in `agree` prefer it."""
        gap = self.subtract_rewards(winner, loser)
        agreeing = all(prefers(winner, loser) for prefers in self.candidates.agreeing)
        return bool(gap > self.tie and gap >= self.margin and agreeing)

    def subtract_rewards(self, winner: int, loser: int) -> float:
        """Return the winner's reward minus the loser's reward."""
        return float(self.candidates.rewards[winner] - self.candidates.rewards[loser])

    def hash_images(self, images: Sequence[int]) -> bytes:
        """Return a hash of the images' names, by which images are sorted pseudo-randomly."""
        return hashlib.sha256("\0".join(map(self.candidates.ids, images)).encode(errors="replace")).digest()


def _select_pairs(
    ranked: Sequence[int], comparison: RewardComparison, config: SelectionConfig
) -> list[tuple[int, int]]:
    pairs = [pair for pair in combinations(ranked, 2) if comparison.is_better(*pair)]
    if config.per_prompt is None or len(pairs) <= config.per_prompt:
        return pairs
    key = comparison.hash_images if config.pick == "hash" else lambda pair: -comparison.subtract_rewards(*pair)
    return sorted(pairs, key=key)[: config.per_prompt]


def _select_ranking(ranked: Sequence[int], comparison: RewardComparison, config: SelectionConfig) -> list[int]:
    """Return a ranking in which each image is clearly better than the next.

    If it has more than `per_prompt` images, evenly spaced ones are kept.
    """
    chain = list(ranked[:1])
    for image in ranked[1:]:
        if comparison.is_better(chain[-1], image):
            chain.append(image)
    if config.per_prompt is not None and len(chain) > config.per_prompt:
        chain = [chain[index] for index in np.linspace(0, len(chain) - 1, config.per_prompt).round().astype(int)]
    return chain


def spread_examples(examples: Sequence[Example], candidates: Candidates, config: SelectionConfig) -> list[Example]:
    """Return at most `max_examples` examples in their original order, spread evenly over the `balance` groups."""
    if config.max_examples is None or len(examples) <= config.max_examples:
        return list(examples)
    comparison = RewardComparison(candidates, config)
    names: Mapping[Stratum, Callable[[Example], str]] = {
        "winner": lambda example: candidates.generator(example.images[0]),
        "loser": lambda example: candidates.generator(example.images[-1]),
        "skills": lambda example: candidates.skills(example.prompt),
    }
    strata: dict[tuple[str, ...], list[int]] = {}
    for number, example in enumerate(examples):
        strata.setdefault(tuple(names[name](example) for name in config.balance), []).append(number)
    quotas = compute_even_quotas([len(numbers) for numbers in strata.values()], config.max_examples)
    selected: list[int] = []
    for numbers, quota in zip(strata.values(), quotas, strict=True):
        selected += sorted(numbers, key=lambda number: comparison.hash_images(examples[number].images))[:quota]
    return [examples[number] for number in sorted(selected)]


def compute_even_quotas(sizes: Sequence[int], total: int) -> list[int]:
    """Return how many items to take from each of several groups of these sizes, as evenly as possible.

    The quotas add up to `total`, or to the total number of items if that is smaller.
    """
    quotas = [0] * len(sizes)
    left = min(total, sum(sizes))
    by_size = sorted(range(len(sizes)), key=lambda stratum: sizes[stratum])
    for done, stratum in enumerate(by_size):
        quotas[stratum] = min(sizes[stratum], left // (len(sizes) - done))
        left -= quotas[stratum]
    return quotas


TRAIN, HELD_OUT = "train", "test"
SPLIT_RULE = (
    "test if the first 8 bytes of SHA-256 of the prompt's text, in lower case and with single spaces, divided by 2^64, "
    "are below held_out"
)


def choose_split(text: str, held_out: float) -> str:
    """Return the prompt's split: `test` for a fraction `held_out` of all prompts, otherwise `train`."""
    normal = " ".join(text.lower().split())
    fraction = int.from_bytes(hashlib.sha256(normal.encode(errors="replace")).digest()[:8], "big") / 2**64
    return HELD_OUT if fraction < held_out else TRAIN
