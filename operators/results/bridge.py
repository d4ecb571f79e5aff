"""Bridges between two versions of a metric: whether, how and how accurately old scores convert to the new scale."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.base.sentences import format_number
from plumbline.operators.results.metric_recipes import Recipe, list_differing_paths
from plumbline.operators.results.summary import OVERALL
from plumbline.operators.statistics.bootstrap import Interval

Floats = NDArray[np.float64]


class Line(NamedTuple):
    """A linear conversion of scores: new score = intercept + slope x old score."""

    intercept: float
    slope: float

    def __call__(self, scores: Floats) -> Floats:
        return self.intercept + self.slope * scores


class Curve(NamedTuple):
    """A monotone conversion of scores: linear between its knots, and constant beyond the first and last knot."""

    old: list[float]
    new: list[float]

    def __call__(self, scores: Floats) -> Floats:
        return np.asarray(np.interp(scores, self.old, self.new))


UNCHANGED_LINE = Line(0.0, 1.0)
MapKind = Literal["unchanged", "linear", "monotone"]
LineKind = Literal["unchanged", "linear", "equated"]
Verdict = Literal["one scale", "joined", "different"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricVersion:
    """One version of a metric: its recipe, and the run that used it (None for a sweep that did not write a run)."""

    metric: str
    run_id: str | None
    recipe: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bridge:
    """A comparison of two versions of a metric on the same images.

    Its verdict says whether the versions share a scale (`one scale`), can be converted into each other (`joined`), or
    measure different things (`different`).
    """

    bridge_id: str
    benchmark: str
    old: MetricVersion
    new: MetricVersion
    generators: Sequence[str]
    prompts: int
    images: int
    verdict: Verdict
    kind: MapKind
    """Kind of the map from old to new scores that was chosen: none (`unchanged`), a line, or a monotone curve."""
    misses: Mapping[MapKind, float]
    """Root mean square error of each kind of map on held-out images, whose prompts were not used to fit it."""
    explained: float
    """Fraction of the new scores' variance that the chosen map explains on held-out images."""
    curve: Curve | None
    """The chosen map, if it is a curve."""
    line_kind: LineKind
    line: Line
    """Line that maps mean old scores. Unlike a curve, a line maps the mean of scores to the mean of the mapped scores.
    """
    means_explained: float | None
    """Fraction of the variance of the generators' new means that is explained by lines fitted to the other generators;
    None for fewer than five generators.
    """
    wanted: float
    """Required fraction of explained variance: if `explained` and `means_explained` are both smaller, the two versions
    measure different things.
    """
    margins: Mapping[str, float]
    """Error bounds (95%) by skill for the mapped mean of a new generator, estimated from each generator's distance to
    the line fitted to the other generators. Skills with fewer than two generators are missing.
    """
    images_spearman: float
    images_interval: Interval
    generators_kendall: float | None
    clear: Mapping[str, int]
    """Number of pairs of generators that differ clearly according to the `old` version, the `new` one, and `both`."""
    turned: Sequence[str]
    """Pairs that differ clearly according to both versions, but in opposite directions."""
    clear_misses: int
    """Number of means that are clearly off the map: the rows in groups.parquet that are marked as clear."""

    @property
    def joins(self) -> bool:
        """Return True if old means, once converted by `line`, can be compared with new means."""
        return self.verdict != "different" and OVERALL in self.margins

    def get_margin(self, skill: str) -> float | None:
        """Return the error bound for converted old means at a skill; None if they cannot be compared with new ones."""
        return self.margins.get(skill) if self.joins else None


def find_bridge(bridges: Iterable[Bridge], before: Recipe, after: Recipe) -> Bridge | None:
    """Return the first of the bridges whose old and new versions have these recipes; None if there is none."""
    return next(
        (
            bridge
            for bridge in bridges
            if not list_differing_paths(bridge.old.recipe, before)
            and not list_differing_paths(bridge.new.recipe, after)
        ),
        None,
    )


def describe_use(bridge: Bridge) -> str:
    """Return the end of a sentence: whether scores of the two versions are compared, and how, or why they are not."""
    margin = bridge.get_margin(OVERALL)
    if margin is not None:
        off = f"off by at most ±{format_number(margin)}"
        return f"and its earlier scores are compared by bridge {bridge.bridge_id}, as {format_equation(bridge)}, {off}"
    differs = "finds that the two versions measure different things"
    why = differs if bridge.verdict == "different" else "has no margin for a single generator"
    return f"so its scores are not compared, and bridge {bridge.bridge_id} {why}"


def format_equation(bridge: Bridge) -> str:
    """Format the linear map as text, such as `0.9 × old + 0.1`."""
    sign = "−" if bridge.line.intercept < 0 else "+"
    return f"{format_number(bridge.line.slope)} × old {sign} {format_number(abs(bridge.line.intercept))}"
