"""Bridges between two versions of a metric: how means of old scores map to the new scale, and how surely."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.base.sentences import number
from plumbline.operators.results.metric_recipes import Recipe, differing_paths
from plumbline.operators.results.summary import OVERALL
from plumbline.operators.statistics.bootstrap import Interval

Floats = NDArray[np.float64]


class Line(NamedTuple):
    """new = intercept + slope x old."""

    intercept: float
    slope: float

    def __call__(self, scores: Floats) -> Floats:
        return self.intercept + self.slope * scores


class Curve(NamedTuple):
    """A monotone map, linear between its knots and level beyond them."""

    old: list[float]
    new: list[float]

    def __call__(self, scores: Floats) -> Floats:
        return np.asarray(np.interp(scores, self.old, self.new))


UNCHANGED = Line(0.0, 1.0)
Kind = Literal["unchanged", "linear", "monotone"]
LineKind = Literal["unchanged", "linear", "equated"]
Verdict = Literal["one scale", "joined", "different"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A metric's version, from a run or from a sweep that wrote no run."""

    metric: str
    run_id: str | None
    recipe: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bridge:
    """Comparison of two versions of a metric."""

    bridge_id: str
    benchmark: str
    old: Version
    new: Version
    generators: Sequence[str]
    prompts: int
    images: int
    verdict: Verdict
    kind: Kind
    """Kind of the chosen map."""
    misses: Mapping[Kind, float]
    """Root mean square error of each kind of map, on images of prompts that it was not fitted on."""
    explained: float
    """Share of the variance of the new scores that the chosen map explains, on images of such prompts."""
    curve: Curve | None
    """The chosen map if it is monotone."""
    line_kind: LineKind
    line: Line
    """Line that maps means of old scores. Unlike a curve, a line maps a mean of scores to the mean of mapped scores."""
    means_explained: float | None
    """Share of the variance of the generators' new means that lines through the other generators explain; None for
    fewer than five generators."""
    wanted: float
    """Required share: if both shares are smaller, the two versions measure different things."""
    margins: Mapping[str, float]
    """Error bounds (95%) by skill for the mapped mean of one more generator, estimated from each generator's distance
    to the line through the others. Skills with fewer than two generators are missing."""
    images_spearman: float
    images_interval: Interval
    generators_kendall: float | None
    clear: Mapping[str, int]
    """Number of pairs of generators with a clear difference by the `old` version, by the `new` one, and by `both`."""
    turned: Sequence[str]
    """Pairs that differ clearly by both versions, but in opposite directions."""
    clear_misses: int
    """Number of clear rows in groups.parquet."""

    @property
    def joins(self) -> bool:
        """Return True if mapped old means can be compared with new means."""
        return self.verdict != "different" and OVERALL in self.margins

    def margin_of(self, skill: str) -> float | None:
        """Return the margin at a skill; None if means are not comparable there."""
        return self.margins.get(skill) if self.joins else None


def find_bridge(bridges: Iterable[Bridge], before: Recipe, after: Recipe) -> Bridge | None:
    """Return the first bridge from one recipe to the other, if there is one."""
    return next(
        (
            bridge
            for bridge in bridges
            if not differing_paths(bridge.old.recipe, before) and not differing_paths(bridge.new.recipe, after)
        ),
        None,
    )


def describe_use(bridge: Bridge) -> str:
    """Return whether both versions are compared, and how, as the second half of a sentence."""
    margin = bridge.margin_of(OVERALL)
    if margin is not None:
        off = f"off by at most ±{number(margin)}"
        return f"and its earlier scores are compared by bridge {bridge.bridge_id}, as {formula(bridge)}, {off}"
    why = "finds that other things are measured" if bridge.verdict == "different" else "has no margin of one generator"
    return f"so its scores are not compared, and bridge {bridge.bridge_id} {why}"


def formula(bridge: Bridge) -> str:
    """Return the right side of the line's equation."""
    sign = "−" if bridge.line.intercept < 0 else "+"
    return f"{number(bridge.line.slope)} × old {sign} {number(abs(bridge.line.intercept))}"
