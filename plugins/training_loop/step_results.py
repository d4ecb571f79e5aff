"""Results of a step: the means of its scores, and its comparisons with the previous and the best earlier step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa

from plumbline.operators.base.sentences import describe_interval, format_number, format_quantity, format_signed
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.results.comparison import SIGNIFICANCE_LEVEL, Duel, compare_generators, read_prompt_means
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.results.summary import OVERALL, Skills, tally_tables
from plumbline.operators.statistics.ordering import compute_min_pairs

Verdict = Literal["better", "worse", "no clear difference", "too few prompts", "no shared scores"]
"""How a step compares with an earlier one. `too few prompts` means that not even the clearest difference would be
significant.
"""


class StepComparison(NamedTuple):
    """Comparison of a step with an earlier step under one metric, for the prompts that have scores at both steps."""

    step: int
    """The earlier step."""
    verdict: Verdict
    difference: float | None
    """Mean of this step minus mean of the earlier step; None if no prompt has scores at both steps."""
    low: float | None
    """Lower end of the difference's 95% interval; None if too few prompts differ."""
    high: float | None
    p_value: float | None
    """P-value of the signed-rank test, corrected for two tests if the step is compared with two earlier steps."""
    n: int
    """Number of prompts that have scores at both steps."""

    def __str__(self) -> str:
        words = {"better": "better than", "worse": "worse than", "no clear difference": "no clear difference from"}
        known = "" if self.difference is None else f" ({format_signed(self.difference)})"
        return f"{words.get(self.verdict, f'{self.verdict} for a comparison with')} step {self.step}{known}"


class MetricResult(NamedTuple):
    """A step's mean score under one metric, and its comparisons with earlier steps."""

    metric: str
    mean: float | None
    """Mean score; None if no image has a score."""
    low: float | None
    """Lower end of the mean's 95% interval; None if too few prompts differ."""
    high: float | None
    n: int
    """Number of images with a score."""
    n_null: int
    """Number of images without a score."""
    failure: str
    """Reason why an image has no score, taken from the first such image; empty if all images have scores."""
    previous: StepComparison | None
    """Comparison with the previous step; None for the first step, and for metrics that do not rank images."""
    best: StepComparison | None
    """Comparison with the earlier step that has the best mean."""

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Parse a result from its JSON values; raise TypeError or KeyError if fields are missing or unknown."""
        compared = {name: values[name] and StepComparison(**values[name]) for name in ("previous", "best")}
        return cls(**{**values, **compared})

    def to_json(self) -> dict[str, Any]:
        """Return the result as values that can be written as JSON."""
        compared = {"previous": self.previous and self.previous._asdict(), "best": self.best and self.best._asdict()}
        return {**self._asdict(), **compared}

    def __str__(self) -> str:
        parts = [f"{self.metric} {format_number(self.mean)} ({describe_interval(self.low, self.high)})"]
        parts += [] if self.previous is None else [str(self.previous)]
        parts += [] if self.best is None or self.best == self.previous else [f"{self.best}, the best so far"]
        if self.n_null:
            parts.append(f"{format_quantity(self.n_null, 'image')} without a score: {self.failure}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results of one step, by metric: `result["vqascore"].mean`."""

    step: int
    metrics: tuple[MetricResult, ...]
    folder: str
    """Folder with the step's scores and its worst images."""

    def __getitem__(self, metric: str) -> MetricResult:
        """Return the result of a metric; raise KeyError for an unknown metric."""
        return {result.metric: result for result in self.metrics}[metric]

    def __str__(self) -> str:
        return "\n".join(f"step {self.step}: {result}" for result in self.metrics)


def format_step_name(step: int) -> str:
    """Return the name of a step's folder. Comparisons use the same name for the step's generator."""
    return f"{step:08d}"


def summarize_step(
    step: int,
    scores: pa.Table,
    earlier: Mapping[int, pa.Table],
    best: Mapping[str, int],
    metrics: Mapping[str, Metric],
) -> tuple[MetricResult, ...]:
    """Return a step's results by metric.

    Args:
        step: The step.
        scores: The step's scores (schema SCORES); the generator is the step's name.
        earlier: Scores of the earlier steps to compare with, which must include the previous step and the best steps.
        best: The earlier step with the best mean, by metric.
        metrics: The metrics by name.
    """
    skills = Skills(())
    summary = {row["metric"]: row for row in tally_tables([scores], skills)[0].make_summary().to_pylist()}
    lower_is_better = frozenset(name for name, metric in metrics.items() if metric.prefers_lower)
    previous = max(earlier, default=None)
    results = []
    for name, metric in metrics.items():
        compared: dict[str, StepComparison | None] = {"previous": None, "best": None}
        if previous is not None and metric.ranks:
            wanted = {"previous": previous, "best": best.get(name, previous)}
            tables = [scores, *(earlier[other] for other in sorted({*wanted.values()}))]
            duels = _compare_steps(step, name, pa.concat_tables(tables), lower_is_better)
            compared = {which: _make_comparison(step, other, duels) for which, other in wanted.items()}
        row = summary[name]
        results.append(
            MetricResult(
                metric=name,
                mean=row["mean"],
                low=row["low"],
                high=row["high"],
                n=row["n"],
                n_null=row["n_null"],
                failure=_find_failure(scores, name),
                **compared,
            )
        )
    return tuple(results)


def _compare_steps(step: int, metric: str, scores: pa.Table, lower_is_better: frozenset[str]) -> dict[str, Duel]:
    """Compare a step with every other step in the table, using the statistical test of a run's report.

    Returns the comparisons, keyed by the name of the other step.
    """
    name = format_step_name(step)
    means = read_prompt_means(RunScores([scores.select]), metric)
    if name not in means.generators:
        return {}
    duels = compare_generators(metric, means, Skills(()), lower_is_better, baseline=name)
    turned = [duel if duel.generator_a == name else duel.swap() for duel in duels if duel.skill == OVERALL]
    return {duel.generator_b: duel for duel in turned}


def _make_comparison(step: int, other: int, duels: Mapping[str, Duel]) -> StepComparison:
    duel = duels.get(format_step_name(other))
    if duel is None:
        return StepComparison(other, "no shared scores", None, None, None, None, 0)
    verdict: Verdict = "no clear difference"
    if duel.better is not None:
        verdict = "better" if duel.better == format_step_name(step) else "worse"
    elif duel.n < compute_min_pairs(len(duels), SIGNIFICANCE_LEVEL):
        verdict = "too few prompts"
    low, high = (None if math.isnan(end) else end for end in (duel.low, duel.high))
    return StepComparison(other, verdict, duel.difference, low, high, duel.p_holm, duel.n)


def _find_failure(scores: pa.Table, metric: str) -> str:
    errors = (
        row["error"]["message"]
        for row in scores.select(["metric", "error"]).to_pylist()
        if row["metric"] == metric and row["error"] is not None
    )
    return next(errors, "")


def find_best_steps(results: Sequence[StepResult], metrics: Mapping[str, Metric]) -> dict[str, int]:
    """Return the step with the best mean by each metric.

    Ties go to the earliest step. Metrics without any mean are omitted.
    """
    best = {}
    for name, metric in metrics.items():
        means = {result.step: result[name].mean for result in results}
        scored = {step: (-mean if metric.prefers_lower else mean) for step, mean in means.items() if mean is not None}
        if scored:
            best[name] = max(sorted(scored), key=lambda step: scored[step])
    return best
