"""One reward of several metrics: each in its unit, clipped and weighted, and then joined."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator

from plumbline.operators.base.bounds import BoundsChecked
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import names
from plumbline.operators.metrics.metric import Metric, direction
from plumbline.operators.rewards.values import TIE, Codes, Floats, within_prompt_noise

REWARD = "reward"
"""What a combination is called beside the metrics that it is made of."""
LARGEST_WEIGHT = 1e6
LARGEST_PRODUCT = 1e300

Unit = Literal["score", "z_score", "noise"]
Join = Literal["sum", "min", "product"]
Clip = tuple[float, float]
"""The lowest and the highest value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination(BoundsChecked):
    """What a reward is made of. Every part is turned so that higher is better, before anything else is done with it."""

    section: ClassVar[str] = "reward."
    weights: Mapping[str, float]
    """By metric, above 0 and at most LARGEST_WEIGHT: what the parts are multiplied by, and for `product` exponents."""
    unit: Unit = "score"
    """`score`: the metric's own; `z_score`: (score - mean) / standard deviation over the images of a baseline;
    `noise`: (score - mean) / the baseline's pooled standard deviation within a prompt."""
    join: Join = "sum"
    clip_parts: Clip | None = None
    """Bounds of each part in its unit, before its weight."""
    clip: Clip | None = None
    """Bounds of the result."""

    def __post_init__(self) -> None:
        if not self.weights:
            raise ConfigError("reward: expected at least one metric, got none; for example reward={vqascore: 1}")
        for metric, weight in self.weights.items():
            if not 0 < weight <= LARGEST_WEIGHT:
                raise ConfigError(
                    f"reward.weights.{metric}: expected a weight above 0 and at most {LARGEST_WEIGHT:g}, got "
                    f"{weight:g}; leave out what shall not count, and give no sign: the direction of a metric is known"
                )
        for key, bounds in (("clip_parts", self.clip_parts), ("clip", self.clip)):
            if bounds is not None and not bounds[0] < bounds[1]:
                raise ConfigError(f"reward.{key}: expected [LOW, HIGH], the low one first, got {list(bounds)}")
        if self.join == "product":
            self._check_product()

    def _check_product(self) -> None:
        low, high = self.clip_parts or (-1.0, 0.0)
        if low < 0:
            raise ConfigError(
                "reward.join=product: expected clip_parts=[LOW, HIGH] with LOW of 0 or more, because two negative "
                "parts would make a good reward"
            )
        if sum(self.weights.values()) * math.log(max(high, 1.0)) > math.log(LARGEST_PRODUCT):
            raise ConfigError(
                f"reward.join=product: expected no product above {LARGEST_PRODUCT:g}, got parts up to {high:g} with "
                f"exponents of {sum(self.weights.values()):g} together; lower the weights"
            )

    @property
    def alone(self) -> str | None:
        """The metric whose own score the reward is, turned so that higher is better; None for anything else."""
        (metric, *others) = self.weights
        plain = self.unit == "score" and self.clip_parts is None and self.clip is None
        return metric if plain and not others and self.weights[metric] == 1 else None

    @property
    def name(self) -> str:
        """What the reward is called: as its metric, or REWARD."""
        return self.alone or REWARD

    def check_parts(self, metrics: Mapping[str, Metric]) -> None:
        """Raises ConfigError for a part that is none of the metrics, or by which no image is better than another."""
        for metric in self.weights:
            if metric not in metrics:
                raise ConfigError(f"reward: expected one of {', '.join(metrics)}, got {metric!r}")
            if self.alone is None and not metrics[metric].ranks:
                raise ConfigError(
                    f"reward: by {metric} no image is better than another; leave it out of the reward, or watch it"
                )
        if self.alone is None and REWARD in metrics:
            raise ConfigError(f"metrics.{REWARD}: a combined reward has this name; call the metric something else")


def equal_parts(metrics: Sequence[str]) -> Combination:
    """The sum of metrics in units of their noise; of one metric its own score."""
    return Combination(weights=dict.fromkeys(metrics, 1.0), unit="noise" if len(metrics) > 1 else "score")


def _read(written: Any) -> Any:
    """An expression as a command line has it, in full: a metric's name, weights by name, or all of it."""
    if isinstance(written, str):
        return {"weights": {written: 1.0}}
    if isinstance(written, Mapping):
        return written if isinstance(written.get("weights"), Mapping) else {"weights": written}
    if written is None or isinstance(written, Combination):
        return written
    raise ConfigError(
        f"reward: expected a metric's name or weights by name, as {{vqascore: 1, hpsv3: 0.5}}, got {written!r}"
    )


AnyReward = Annotated[Combination | None, BeforeValidator(_read)]
"""A combination as a configuration holds it: NAME, {NAME: WEIGHT, ...} or {weights: {NAME: WEIGHT, ...}, unit: ...}."""


class Scale(NamedTuple):
    """The unit of a metric: a score is (score - mean) / spread of them."""

    mean: float = 0.0
    spread: float = 1.0


class Reward:
    """The function from an image's scores to its reward, which is better the higher it is.

    It takes one image at a time, in the same order of operations everywhere, so that a service and an export of a run
    give the same number to the last digit.
    """

    def __init__(self, config: Combination, falling: frozenset[str], scales: Mapping[str, Scale]) -> None:
        """`scales` are those of the unit, by metric; of the unit `score` none."""
        self.config, self.scales = config, scales
        self.parts = tuple(sorted(config.weights))
        self._turned = [
            (direction(name, falling), scales.get(name, Scale()), config.weights[name]) for name in self.parts
        ]

    def __call__(self, scores: Sequence[float]) -> float:
        """The reward by the scores of `parts`, in their order."""
        return _clipped(_JOINS[self.config.join](self._units(scores)), self.config.clip)

    def of_all(self, scores: Mapping[str, Floats]) -> Floats:
        """The reward of every image; nan where it lacks the score of a part."""
        rows = zip(*(scores[name].tolist() for name in self.parts), strict=True)
        return np.array([math.nan if any(map(math.isnan, row)) else self(row) for row in rows], np.float64)

    def described(self) -> dict[str, Any]:
        """All that decides it but for the metrics' own recipes."""
        return asdict(self.config) | {"scales": {name: scale._asdict() for name, scale in self.scales.items()}}

    def _units(self, scores: Sequence[float]) -> Iterator[tuple[float, float]]:
        """Of each part its value, higher being better, and its weight."""
        for score, (sign, scale, weight) in zip(scores, self._turned, strict=True):
            yield _clipped(sign * ((score - scale.mean) / scale.spread), self.config.clip_parts), weight


def _clipped(value: float, bounds: Clip | None) -> float:
    return value if bounds is None else min(max(value, bounds[0]), bounds[1])


_JOINS: Mapping[str, Callable[[Iterator[tuple[float, float]]], float]] = {
    "sum": lambda parts: sum(weight * value for value, weight in parts),
    "min": lambda parts: min(weight * value for value, weight in parts),
    "product": lambda parts: math.prod(value**weight for value, weight in parts),
}


def scales_of(scores: Mapping[str, Floats], prompts: Codes, unit: Unit, where: str) -> dict[str, Scale]:
    """The scales of metrics by the images of a baseline that all of them scored; empty for the unit `score`.

    `where` says in messages whose images they are. Neither their order nor the numbers of their prompts change a digit.
    Raises ConfigError where the images do not differ.
    """
    if unit == "score":
        return {}
    whole = ~np.isnan(np.stack(list(scores.values()))).any(axis=0)
    scales = {name: _scale(values[whole], prompts[whole], unit) for name, values in scores.items()}
    flat = [name for name, scale in scales.items() if not scale.spread > 0]
    if flat:
        images = "images of a prompt" if unit == "noise" else "images"
        other = " or unit: z_score, which asks for no two images of a prompt" if unit == "noise" else ""
        raise ConfigError(
            f"reward.unit={unit}: {where} has no two {images} that differ by {names(flat)}; take another baseline, "
            f"unit: score{other}"
        )
    return scales


def _scale(values: Floats, prompts: Codes, unit: Unit) -> Scale:
    if not len(values):
        return Scale(spread=0.0)
    order = np.argsort(values)  # in which the sums within a prompt add up
    values, prompts = values[order], prompts[order]
    mean = math.fsum(values) / len(values)
    if unit == "noise":
        return Scale(mean, within_prompt_noise(values, prompts))
    spread = math.sqrt(math.fsum((values - mean) ** 2) / len(values))
    return Scale(mean, spread if spread > TIE * float(np.max(np.abs(values))) else 0.0)
