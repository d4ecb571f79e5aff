"""Checks a run against a gate: one check per rule, generator and skill, and the result of the gate as a whole."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.base.sentences import (
    format_names,
    format_number,
    format_p_value,
    format_quantity,
    format_signed,
)
from plumbline.operators.metrics.metric import ScoreRange, get_direction
from plumbline.operators.results.comparison import average_prompts
from plumbline.operators.results.run_scores import Hashes, RunScores
from plumbline.operators.results.summary import OVERALL, Skills
from plumbline.operators.statistics.ordering import DEFAULT_POWER, holm
from plumbline.plugins.gates.margins import (
    MAX_PROMPTS,
    MarginTest,
    count_needed_prompts,
    find_smallest_difference,
    run_margin_test,
)
from plumbline.plugins.gates.rules import EACH_SKILL, Gate, Rule

Floats = NDArray[np.float64]
Outcome = Literal["passed", "failed", "cannot tell"]
NO_VALUES: Floats = np.zeros(0)
EVEN_SHARE = 0.5
"""Share of comparisons won by each of two equally good generators."""
OUTCOMES_WORST_FIRST: Sequence[Outcome] = ("failed", "cannot tell", "passed")


class Check(NamedTuple):
    """Result of one rule for one generator on one skill."""

    rule: str
    asked: str
    """Description of the rule in words."""
    generator: str
    metric: str
    """Name of the metric; empty if the rule applies to all metrics together."""
    skill: str
    outcome: Outcome
    fails: bool
    """True if the gate fails because of this check."""
    found: str
    """Description of the finding in words."""
    value: float | None = None
    """A mean, a difference (candidate - other) or a fraction; None if it is undefined."""
    low: float | None = None
    """Lower end of the interval that corresponds to the two one-sided tests; None if the rule is not tested."""
    high: float | None = None
    p_value: float | None = None
    """One-sided p-value, not corrected for multiple tests; small if the rule holds."""
    prompts: int | None = None
    smallest: float | None = None
    """Smallest distance of the true mean from the bound that this number of similar prompts detects with 80% power."""
    needed: int | None = None
    """Number of similar prompts that pass the rule with 80% power; None if the mean is beyond the bound."""


class GateResult(NamedTuple):
    """Result of checking a run against a gate."""

    source: str
    """Name of the file with the rules."""
    alpha: float
    run_id: str
    benchmark: str
    against: str | None
    """Id of the run, or name of the generator, that the run is compared with."""
    passed: bool
    rules: Mapping[str, str]
    """Descriptions of the rules, by name."""
    checks: Sequence[Check]

    @property
    def failing_checks(self) -> list[Check]:
        """Checks that cause the gate to fail."""
        return [check for check in self.checks if check.fails]

    @property
    def checks_worst_first(self) -> list[Check]:
        """All checks: first those that fail the gate, then the others, each group with its worst outcomes first."""
        return sorted(self.checks, key=lambda check: (not check.fails, OUTCOMES_WORST_FIRST.index(check.outcome)))

    def describe(self) -> str:
        """Return the result as a line of text."""
        if self.passed:
            passed = format_quantity(len(self.checks), "check")
            return f"the gate passed: {format_quantity(len(self.rules), 'rule')}, {passed}"
        rules = list(dict.fromkeys(check.rule for check in self.failing_checks))
        failing = format_quantity(len(self.failing_checks), "check")
        return f"the gate failed by {format_names(rules)}: {failing} of {len(self.checks)}"

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values for files and webhooks."""
        return {"summary": self.describe(), **self._asdict(), "checks": [check._asdict() for check in self.checks]}


class SummaryRow(NamedTuple):
    """A run's summary for one generator, metric and skill."""

    mean: float
    n: int
    """Number of rows with a score."""
    rows: int


class OtherSide(NamedTuple):
    """The run and generator that a candidate is compared with, and their scores."""

    generator: str
    scores: RunScores
    same_images: Callable[[], Hashes]
    """Function that returns the prompts, in ascending order, for which both sides have byte-identical images."""
    outcomes: Callable[[], tuple[Hashes, Floats]] | None = None
    """Function that returns the prompts with the share of comparisons that the candidate won against the other side;
    None if the metric scores each image by itself.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedRun:
    """A finished run, with the data that a gate's rules need."""

    summary: Mapping[tuple[str, str, str], SummaryRow]
    """Summaries by generator, metric and skill."""
    scores: Callable[[], RunScores]
    """Function that reads the scores, which are needed only for tested rules."""
    skills: Callable[[], Skills]
    lower_is_better: frozenset[str]
    unranked: frozenset[str]
    """Metrics that do not rank generators: a higher score is neither better nor worse."""
    ranges: Mapping[str, ScoreRange]
    """Lowest and highest possible score, for each metric that declares them."""
    candidates: Sequence[str]
    """Generators to judge if a rule names no candidate."""
    other: str
    """Description of the run or generator to compare with, for rules without a baseline; empty if there is none."""
    find_other: Callable[[Rule, str], OtherSide | str]
    """Function that returns the scores to compare a generator with under a rule, or the reason why there are none."""

    @property
    def generators(self) -> list[str]:
        """Generators in the order of the summary."""
        return list(dict.fromkeys(generator for generator, _, _ in self.summary))

    @property
    def metrics(self) -> list[str]:
        """Metrics in the order of the summary."""
        return list(dict.fromkeys(metric for _, metric, _ in self.summary))

    @property
    def skill_names(self) -> list[str]:
        """Skills in alphabetical order, without `overall`."""
        return sorted({skill for _, _, skill in self.summary} - {OVERALL})


def check_rules(gate: Gate, judged: JudgedRun) -> None:
    """Raise ConfigError, naming the file and the rule, if a rule cannot be applied to the run."""
    for name, rule in gate.rules.items():
        at = f"{gate.source}: rule {name}"
        for key, value, known in (
            ("metric", rule.metric, judged.metrics),
            ("candidate", rule.candidate, judged.generators),
            ("baseline", rule.baseline, judged.generators),
            ("skill", rule.skill, [OVERALL, EACH_SKILL, *judged.skill_names]),
        ):
            if value is not None:
                check_known(f"{at}: {key}", value, known)
        if rule.skill == EACH_SKILL and not judged.skill_names:
            raise ConfigError(
                f"{at}: 'skill: each' requires prompts with skills, but this run's prompts have none; remove it"
            )
        if rule.needs_other_side and rule.metric in judged.unranked:
            raise ConfigError(
                f"{at}: {rule.kind}: higher scores of {rule.metric} are neither better nor worse; use at_least or "
                "at_most"
            )
        if rule.needs_other_side and not (rule.baseline or judged.other):
            raise ConfigError(
                f"{at}: {rule.kind}: there is nothing to compare with; name another run (against=RUN), or a "
                "generator of the same run (baseline=NAME)"
            )
        if rule.baseline is not None and rule.baseline == rule.candidate:
            raise ConfigError(f"{at}: baseline: {rule.baseline!r} is the candidate itself; name another generator")
        if not rule.candidate and not {*judged.candidates} - {rule.baseline}:
            raise ConfigError(f"{at}: the run has no generator except the baseline; name another baseline")


class _Question(NamedTuple):
    name: str
    rule: Rule
    generator: str
    skill: str

    def check(self, asked: str, outcome: Outcome, found: str, **numbers: Any) -> Check:
        """Return a check with this outcome and finding."""
        fails = outcome == "failed" or (outcome == "cannot tell" and self.rule.cannot_tell == "fails")
        return Check(
            self.name, asked, self.generator, self.rule.metric or "", self.skill, outcome, fails, found, **numbers
        )


class _ValueLimits(NamedTuple):
    """The lowest and highest value (a mean score, or a difference of two) that a single prompt can have."""

    worst: float
    best: float
    assumed: str = ""
    """Description of the assumption behind the limits; empty if the metric declares its range."""


class _TestResult(NamedTuple):
    """Result of testing a rule for one generator and skill, or the reason why the rule was not tested.

    Values are negated if necessary, so that larger values always favour the candidate.
    """

    test: MarginTest | None
    bound: float = 0.0
    sign: int = 1
    """-1 if the values were negated."""
    values: Floats = NO_VALUES
    limits: _ValueLimits = _ValueLimits(0.0, 0.0)
    same_images: bool = False
    """True if both sides of a comparison have the same images and equal scores."""
    edited: int = 0
    """Number of prompts that are not compared, because their texts differ between the two runs."""
    problem: str = ""

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end of the interval on the scale of the metric, whether or not the values were negated."""
        assert self.test is not None
        low, high = sorted((self.sign * self.test.low, self.sign * self.test.high))
        return low, high


def judge_by_rules(gate: Gate, judged: JudgedRun, *, run_id: str, benchmark: str, against: str | None) -> GateResult:
    """Check the run against every rule of the gate.

    The gate passes only if all rules pass. Each rule can therefore be tested at the full level `alpha`: a run that
    breaks a rule still passes the gate with a probability of at most `alpha` (Berger 1982, the intersection-union
    test). A rule is reported as failed only if its p-value is significant after Holm's correction (1979) over all
    tested rules.

    Args:
        gate: The rules.
        judged: The run's data.
        run_id: The run's id, to be included in the result.
        benchmark: The name of the run's benchmark, to be included in the result.
        against: The run or generator that the run is compared with, to be included in the result.
    """
    questions = list(_list_questions(gate, judged))
    asked = {name: rule.describe(judged.other) for name, rule in gate.rules.items()}
    tested = dict(_run_tests([question for question in questions if question.rule.is_tested], judged, gate.alpha))
    tests = {question: result.test for question, result in tested.items() if result.test is not None}
    p_failed = dict(zip(tests, holm([test.p_below for test in tests.values()]), strict=True))
    checks = [
        _make_check(question, asked[question.name], tested[question], gate.alpha, p_failed.get(question, math.nan))
        if question.rule.is_tested
        else _look_up_value(question, asked[question.name], judged)
        for question in questions
    ]
    passed = not any(check.fails for check in checks)
    return GateResult(gate.source, gate.alpha, run_id, benchmark, against, passed, asked, checks)


def _list_questions(gate: Gate, judged: JudgedRun) -> Iterator[_Question]:
    """Yield a question for each rule, generator and skill, if the rule applies to the generator and the skill."""
    for name, rule in gate.rules.items():
        skills = judged.skill_names if rule.skill == EACH_SKILL else [rule.skill]
        for generator in [rule.candidate] if rule.candidate else judged.candidates:
            if generator != rule.baseline:
                yield from (_Question(name, rule, generator, skill) for skill in skills)


def _look_up_value(question: _Question, asked: str, judged: JudgedRun) -> Check:
    rule = question.rule
    found = [
        row
        for (generator, metric, skill), row in judged.summary.items()
        if (generator, skill) == (question.generator, question.skill) and rule.metric in (None, metric)
    ]
    n, rows = sum(row.n for row in found), sum(row.rows for row in found)
    if not rows or (rule.bounds_mean and not n):
        return question.check(asked, "cannot tell", "no image has a score" if rows else "no rows")
    value = found[0].mean if rule.bounds_mean else n / rows
    holds = value <= rule.bound if rule.kind == "at_most" else value >= rule.bound
    finding = (
        f"{format_number(value)} on {format_quantity(n, 'image')}"
        if rule.bounds_mean
        else f"{value:.2%}: {n:,} of {rows:,} rows"
    )
    return question.check(asked, "passed" if holds else "failed", finding, value=value)


def _run_tests(
    questions: Sequence[_Question], judged: JudgedRun, alpha: float
) -> Iterator[tuple[_Question, _TestResult]]:
    """Yield each question with its test result, sorted by metric and generator, so that scores are read only once."""

    @lru_cache(maxsize=1)
    def read_values(metric: str, generator: str, other: OtherSide | None) -> tuple[Hashes, Floats]:
        """Return the prompts with their mean scores, or with the differences from the other side's mean scores.

        For a metric that compares generators, the difference is the share won against the other side, minus a half.
        """
        prompts = judged.scores().prompts
        if other is not None and other.outcomes is not None:
            prompts, won = other.outcomes()
            return prompts, won - EVEN_SHARE
        if other is not None:
            prompts = judged.scores().find_shared_prompts(other.scores).prompts
        values = average_prompts(prompts, judged.scores().select_rows(metric, generator))
        return prompts, values - (
            0.0 if other is None else average_prompts(prompts, other.scores.select_rows(metric, other.generator))
        )

    def run_test(question: _Question) -> _TestResult:
        rule, scores, metric = question.rule, judged.scores(), str(question.rule.metric)
        if question.generator not in scores.generators:
            return _TestResult(None, problem="no rows")
        other = judged.find_other(rule, question.generator) if rule.needs_other_side else None
        if isinstance(other, str):
            return _TestResult(None, problem=other)
        prompts, values = read_values(metric, question.generator, other)
        chosen = np.isfinite(values)
        if question.skill != OVERALL:
            chosen &= next(mask for skill, mask in judged.skills().iterate_masks(prompts) if skill == question.skill)
        if not chosen.any():
            return _TestResult(None, problem="no score" if other is None else "no prompt has a score on both sides")
        if other is None:
            sign, bound = (-1, -rule.bound) if rule.kind == "at_most" else (1, rule.bound)
        else:
            sign = get_direction(metric, judged.lower_is_better)
            bound = rule.bound if rule.kind == "better_by" else -rule.bound
        values, limits = sign * values[chosen], _find_limits(metric, sign, other, judged)
        same = other is not None and not values.any() and bool(np.isin(prompts[chosen], other.same_images()).all())
        if limits.worst == limits.best and not same:
            return _TestResult(
                None,
                problem=f"all scores are equal, and {metric} declares no range, so possible losses are unknown",
            )
        test = run_margin_test(values, bound, alpha, limits.worst, limits.best)
        edited = 0 if other is None else scores.find_shared_prompts(other.scores).edited
        return _TestResult(test, bound, sign, values, limits, same, edited)

    by_scores = sorted(questions, key=lambda question: (str(question.rule.metric), question.generator))
    return ((question, run_test(question)) for question in by_scores)


def _find_limits(metric: str, sign: int, other: OtherSide | None, judged: JudgedRun) -> _ValueLimits:
    """Return the limits of a prompt's value, from the metric's declared range or else from all observed scores."""
    if other is not None and other.outcomes is not None:
        return _ValueLimits(-EVEN_SHARE, EVEN_SHARE)
    scores = [judged.scores(), *([] if other is None else [other.scores])]
    seen = [side.spans[metric] for side in scores if metric in side.spans]
    low, high = min(low for low, _ in seen), max(high for _, high in seen)
    assumed = ""
    if metric in judged.ranges:
        low, high = min(low, judged.ranges[metric][0]), max(high, judged.ranges[metric][1])
    else:
        assumed = (
            f"{metric} declares no range: assumed to be {format_number(low)} to {format_number(high)}, "
            "like all scores here"
        )
    if other is not None:
        return _ValueLimits(low - high, high - low, assumed)
    return _ValueLimits(min(sign * low, sign * high), max(sign * low, sign * high), assumed)


def _make_check(question: _Question, asked: str, tested: _TestResult, alpha: float, p_failed: float) -> Check:
    """Convert a test result to a check; `asked` is the rule in words.

    `p_failed` is the p-value of the opposite test, which can show that the rule is broken. It is already corrected for
    multiple testing.
    """
    rule, test = question.rule, tested.test
    if test is None:
        return question.check(asked, "cannot tell", tested.problem)
    shown = format_signed if rule.needs_other_side else format_number
    low, high = tested.interval
    outcome: Outcome = "passed" if test.p_above <= alpha else "failed" if p_failed <= alpha else "cannot tell"
    value, prompts = tested.sign * test.mean, format_quantity(test.n, "prompt")
    interval = f"{1 - 2 * alpha:.0%} interval {shown(low)} to {shown(high)}"
    sure = (
        f"violated with p {format_p_value(p_failed)} (Holm)"
        if outcome == "failed"
        else f"p {format_p_value(test.p_above)}"
    )
    parts = [f"{shown(value)} ({interval}) on {prompts}, {sure}"]
    smallest, needed = find_smallest_difference(test), None
    if tested.same_images:
        outcome = "passed" if rule.kind == "no_worse_by" else "failed"
        parts = [f"the same images on {'all ' * (test.n > 1)}{prompts}"]
    elif outcome == "cannot tell":
        # a candidate that must only be no worse is assumed to be no better either
        mean = min(test.mean, 0.0) if rule.kind == "no_worse_by" else test.mean
        needed = count_needed_prompts(tested.values, tested.bound, alpha, tested.limits.worst, mean)
        parts.append(_describe_power(rule, tested, smallest, needed))
        if rule.needs_other_side and not tested.values.any():
            parts.append("equal scores do not prove equal images")
    if tested.limits.assumed and not tested.same_images:
        parts.append(tested.limits.assumed)
    if tested.edited:
        parts.append(f"left out: {format_quantity(tested.edited, 'prompt')} with edited texts")
    found = "; ".join(parts)
    return question.check(
        asked,
        outcome,
        found,
        value=value,
        low=low,
        high=high,
        p_value=test.p_above,
        prompts=test.n,
        smallest=smallest,
        needed=needed,
    )


def _describe_power(rule: Rule, tested: _TestResult, smallest: float, needed: int | None) -> str:
    assert tested.test is not None
    can = {
        "no_worse_by": f"a margin of {format_number(smallest)}",
        "better_by": f"a gain of {format_number(rule.bound + smallest)}",
        "at_least": f"a mean of {format_number(rule.bound + smallest)}",
        "at_most": f"a mean of {format_number(rule.bound - smallest)}",
    }[rule.kind]
    if tested.test.mean <= tested.bound:
        more = "the observed mean is on the wrong side of the bound"
    else:
        more = f"it takes about {needed:,} such prompts" if needed else f"it takes more than {MAX_PROMPTS:,} of them"
    return f"{format_quantity(tested.test.n, 'such prompt')} can show {can} ({DEFAULT_POWER:.0%} power); {more}"
