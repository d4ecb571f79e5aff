"""Rewards that combine several metrics: scores are converted to a common unit, clipped, weighted and combined."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator

from plumbline.operators.base.bounds import BoundsChecked
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import format_names
from plumbline.operators.metrics.metric import Metric, get_direction
from plumbline.operators.rewards.values import MAX_TIE_FRACTION, Codes, Floats, measure_noise

REWARD_NAME = "reward"
"""Name that a combined reward has in lists of metrics."""
MAX_WEIGHT = 1e6
MAX_PRODUCT = 1e300

Unit = Literal["score", "z_score", "noise"]
CombinationRule = Literal["sum", "min", "product"]
ClipBounds = tuple[float, float]
"""Lower and upper bound of a value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardConfig(BoundsChecked):
    """Options of a reward that combines metrics. If lower scores are better for a metric, they are negated first."""

    section: ClassVar[str] = "reward."
    weights: Mapping[str, float]
    """Factors of the metrics (exponents for `product`), greater than 0 and at most MAX_WEIGHT."""
    unit: Unit = "score"
    """`score`: the metric's own unit; `z_score`: (score - mean) / standard deviation over the images of a baseline;
    `noise`: (score - mean) / the baseline's pooled standard deviation within a prompt.
    """
    join: CombinationRule = "sum"
    clip_parts: ClipBounds | None = None
    """Bounds for each metric's value, applied after conversion to the unit and before weighting."""
    clip: ClipBounds | None = None
    """Bounds for the reward."""

    def __post_init__(self) -> None:
        if not self.weights:
            raise ConfigError("reward: expected at least one metric, got none; for example reward={vqascore: 1}")
        for metric, weight in self.weights.items():
            if not 0 < weight <= MAX_WEIGHT:
                raise ConfigError(
                    f"reward.weights.{metric}: expected a weight above 0 and at most {MAX_WEIGHT:g}, got {weight:g}; "
                    "leave out metrics that should not count. Metrics for which lower is better need no negative weight"
                )
        for key, bounds in (("clip_parts", self.clip_parts), ("clip", self.clip)):
            if bounds is not None and not bounds[0] < bounds[1]:
                raise ConfigError(f"reward.{key}: expected [LOW, HIGH] with LOW below HIGH, got {list(bounds)}")
        if self.join != "product":
            return
        low, high = self.clip_parts or (-1.0, 0.0)
        if low < 0:
            raise ConfigError(
                "reward.join=product: expected clip_parts=[LOW, HIGH] with LOW at least 0, because the product of "
                "two negative values would be positive"
            )
        if sum(self.weights.values()) * math.log(max(high, 1.0)) > math.log(MAX_PRODUCT):
            raise ConfigError(
                f"reward.join=product: expected no product above {MAX_PRODUCT:g}, got values up to {high:g} with "
                f"exponents that sum to {sum(self.weights.values()):g}; lower the weights"
            )

    @property
    def single_metric(self) -> str | None:
        """The metric if the reward is only its score (negated if lower is better); None for any other reward."""
        (metric, *others) = self.weights
        plain = self.unit == "score" and self.clip_parts is None and self.clip is None
        return metric if plain and not others and self.weights[metric] == 1 else None

    @property
    def name(self) -> str:
        return self.single_metric or REWARD_NAME

    def check_parts(self, metrics: Mapping[str, Metric]) -> None:
        """Raise ConfigError if a part is not one of the given metrics, or is a metric that does not rank images."""
        for metric in self.weights:
            if metric not in metrics:
                raise ConfigError(f"reward: expected one of {', '.join(metrics)}, got {metric!r}")
            if self.single_metric is None and not metrics[metric].ranks:
                raise ConfigError(f"reward: {metric} does not rank images; leave it out of the reward")
        if self.single_metric is None and REWARD_NAME in metrics:
            raise ConfigError(f"metrics.{REWARD_NAME}: this is the name of the combined reward; rename the metric")


def _expand_reward(expression: Any) -> Any:
    if isinstance(expression, str):
        return {"weights": {expression: 1.0}}
    if isinstance(expression, Mapping):
        return expression if isinstance(expression.get("weights"), Mapping) else {"weights": expression}
    if expression is None or isinstance(expression, RewardConfig):
        return expression
    raise ConfigError(
        f"reward: expected a metric's name or weights by name, such as {{vqascore: 1, hpsv3: 0.5}}, got {expression!r}"
    )


AnyReward = Annotated[RewardConfig | None, BeforeValidator(_expand_reward)]
"""A reward as written in a configuration: NAME, {NAME: WEIGHT, ...} or {weights: {NAME: WEIGHT, ...}, unit: ...}."""


class UnitScale(NamedTuple):
    """Mean and spread of a metric's scores, which standardise a score to (score - mean) / spread."""

    mean: float = 0.0
    spread: float = 1.0


class Reward:
    """Function that computes an image's reward from its scores; higher is better.

    It handles one image at a time, always with the same order of operations, so that a service and an export of a run
    return exactly the same number.
    """

    def __init__(self, config: RewardConfig, lower_is_better: frozenset[str], scales: Mapping[str, UnitScale]) -> None:
        """Set up the reward.

        Args:
            config: The options of the reward.
            lower_is_better: Metrics for which lower scores are better.
            scales: The scale of each metric; empty for the unit `score`.
        """
        self.config, self.scales = config, scales
        self.parts = tuple(sorted(config.weights))
        self._conversions = [
            (get_direction(name, lower_is_better), scales.get(name, UnitScale()), config.weights[name])
            for name in self.parts
        ]

    def __call__(self, scores: Sequence[float]) -> float:
        """Return an image's reward, given its scores in the order of `parts`."""
        parts = (
            (_clip_value(sign * ((score - scale.mean) / scale.spread), self.config.clip_parts), weight)
            for score, (sign, scale, weight) in zip(scores, self._conversions, strict=True)
        )
        return _clip_value(_JOIN_FUNCTIONS[self.config.join](parts), self.config.clip)

    def compute_all(self, scores: Mapping[str, Floats]) -> Floats:
        """Return the reward of each image (n,); nan if a score is missing."""
        rows = zip(*(scores[name].tolist() for name in self.parts), strict=True)
        return np.array([math.nan if any(map(math.isnan, row)) else self(row) for row in rows], np.float64)

    def describe(self) -> dict[str, Any]:
        """Return the options and scales that, together with the definitions of the metrics, determine the reward."""
        return asdict(self.config) | {"scales": {name: scale._asdict() for name, scale in self.scales.items()}}


def _clip_value(value: float, bounds: ClipBounds | None) -> float:
    return value if bounds is None else min(max(value, bounds[0]), bounds[1])


_JOIN_FUNCTIONS: Mapping[str, Callable[[Iterator[tuple[float, float]]], float]] = {
    "sum": lambda parts: sum(weight * value for value, weight in parts),
    "min": lambda parts: min(weight * value for value, weight in parts),
    "product": lambda parts: math.prod(value**weight for value, weight in parts),
}


def compute_scales(scores: Mapping[str, Floats], prompts: Codes, unit: Unit, where: str) -> dict[str, UnitScale]:
    """Return the scale of each metric over the baseline images that have all scores; empty for the unit `score`.

    The result does not depend on the order of the images or the numbering of the prompts. `where` describes the images
    in messages. Raises ConfigError if all images have the same score.
    """
    if unit == "score":
        return {}
    complete = ~np.isnan(np.stack(list(scores.values()))).any(axis=0)
    scales = {}
    for name, every in scores.items():
        values, codes = every[complete], prompts[complete]
        if not len(values):
            scales[name] = UnitScale(spread=0.0)
            continue
        order = np.argsort(values)  # sums within a prompt must not depend on the order of the images
        values, codes = values[order], codes[order]
        mean = math.fsum(values) / len(values)
        if unit == "noise":
            spread = measure_noise(values, codes)
        else:
            spread = math.sqrt(math.fsum((values - mean) ** 2) / len(values))
            if spread <= MAX_TIE_FRACTION * float(np.max(np.abs(values))):
                spread = 0.0  # rounding errors of equal values
        scales[name] = UnitScale(mean, spread)
    constant = [name for name, scale in scales.items() if not scale.spread > 0]
    if constant:
        images = "images of a prompt" if unit == "noise" else "images"
        other = ", or unit: z_score, which does not need two images of a prompt" if unit == "noise" else ""
        raise ConfigError(
            f"reward.unit={unit}: expected two {images} with different scores by {format_names(constant)} in {where}, "
            f"found none; use another baseline, or unit: score{other}"
        )
    return scales
