"""A run judged by the rules of a gate: what each rule found of each generator and skill, and what the gate says."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.base.sentences import names, number, p_text, plural, signed
from plumbline.operators.gates.rules import EACH, Gate, Rule
from plumbline.operators.metrics.metric import ScoreRange, direction
from plumbline.operators.results.comparison import average_prompts
from plumbline.operators.results.run_scores import Hashes, RunScores
from plumbline.operators.results.summary import OVERALL, Skills
from plumbline.operators.statistics.margins import MAX_PROMPTS, MarginTest, margin_test, prompts_needed, smallest_shown
from plumbline.operators.statistics.ordering import CHANCE, holm

Floats = NDArray[np.float64]
Outcome = Literal["passed", "failed", "cannot tell"]
NO_VALUES: Floats = np.zeros(0)
WORST_FIRST: Sequence[Outcome] = ("failed", "cannot tell", "passed")


class Check(NamedTuple):
    """What one rule found of one generator at one skill."""

    rule: str
    asked: str
    """The rule in words."""
    generator: str
    metric: str
    """Empty where a rule looks at all of them."""
    skill: str
    outcome: Outcome
    fails: bool
    """Whether the gate fails by it."""
    found: str
    """What was found, in words."""
    value: float | None = None
    """A mean, a difference (the candidate's less the other's) or a share; None where there is none."""
    low: float | None = None
    """The ends of the interval that both one-sided tests have; None of a rule that is not tested."""
    high: float | None = None
    p_value: float | None = None
    """One-sided, small where the rule holds; not corrected."""
    prompts: int | None = None
    smallest: float | None = None
    """Distance between the bound and a true mean that as many such prompts show with 80% power."""
    needed: int | None = None
    """Number of such prompts that pass the rule with 80% power; None if the mean is beyond the bound."""


class GateResult(NamedTuple):
    """What a gate says of a run."""

    source: str
    """Where its rules are written."""
    alpha: float
    run_id: str
    benchmark: str
    against: str | None
    """What the run is compared with: a run's id or a generator."""
    passed: bool
    rules: Mapping[str, str]
    """The rules in words, by name."""
    checks: Sequence[Check]

    @property
    def failing(self) -> list[Check]:
        """By which the gate fails."""
        return [check for check in self.checks if check.fails]

    @property
    def worst_first(self) -> list[Check]:
        """Those by which it fails before the others."""
        return sorted(self.checks, key=lambda check: (not check.fails, WORST_FIRST.index(check.outcome)))

    def summary(self) -> str:
        """In a line."""
        if self.passed:
            return f"the gate passed: {plural(len(self.rules), 'rule')}, {plural(len(self.checks), 'check')}"
        rules = list(dict.fromkeys(check.rule for check in self.failing))
        return f"the gate failed by {names(rules)}: {plural(len(self.failing), 'check')} of {len(self.checks)}"

    def to_json(self) -> dict[str, Any]:
        """As it is written and sent."""
        return {"summary": self.summary(), **self._asdict(), "checks": [check._asdict() for check in self.checks]}


class Summarised(NamedTuple):
    """What a summary says of a generator by a metric at a skill."""

    mean: float
    n: int
    rows: int


class Other(NamedTuple):
    """What a candidate is compared with."""

    generator: str
    scores: RunScores
    same_images: Callable[[], Hashes]
    """Returns the prompts, ascending, whose images are the candidate's images byte for byte."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A finished run, with the data that the rules of a gate need."""

    summary: Mapping[tuple[str, str, str], Summarised]
    """Summaries by generator, metric and skill."""
    scores: Callable[[], RunScores]
    """Reads the scores, which only tested rules need."""
    skills: Callable[[], Skills]
    falling: frozenset[str]
    unranked: frozenset[str]
    """Metrics that say nothing of better or worse."""
    ranges: Mapping[str, ScoreRange]
    """The least and the greatest score of each metric that states them."""
    candidates: Sequence[str]
    """The generators that are judged if a rule names none."""
    other: str
    """The other side of rules without a baseline, in words; empty if they compare with nothing."""
    find_other: Callable[[Rule, str], Other | str]
    """Returns the other side of a rule for a generator, or why the two cannot be compared."""

    @property
    def generators(self) -> list[str]:
        """Generators in the summary's order."""
        return list(dict.fromkeys(generator for generator, _, _ in self.summary))

    @property
    def metrics(self) -> list[str]:
        """Metrics in the summary's order."""
        return list(dict.fromkeys(metric for _, metric, _ in self.summary))

    @property
    def skill_names(self) -> list[str]:
        """Without `overall`."""
        return sorted({skill for _, _, skill in self.summary} - {OVERALL})


def check_rules(gate: Gate, judged: Judged) -> None:
    """Raises ConfigError, naming the file and the rule, for one that asks for what the run does not have."""
    for name, rule in gate.rules.items():
        at = f"{gate.source}: rule {name}"
        for key, value, known in (
            ("metric", rule.metric, judged.metrics),
            ("candidate", rule.candidate, judged.generators),
            ("baseline", rule.baseline, judged.generators),
            ("skill", rule.skill, [OVERALL, EACH, *judged.skill_names]),
        ):
            if value is not None:
                check_known(f"{at}: {key}", value, known)
        if rule.skill == EACH and not judged.skill_names:
            raise ConfigError(f"{at}: skill: each wants prompts with skills, and these have none; remove it")
        if rule.compares and rule.metric in judged.unranked:
            raise ConfigError(
                f"{at}: {rule.kind}: by {rule.metric} nothing is better or worse; write at_least or at_most"
            )
        if rule.compares and not (rule.baseline or judged.other):
            raise ConfigError(
                f"{at}: {rule.kind}: there is nothing to compare with; name a run (against=RUN), or a generator of "
                "this one (baseline=NAME)"
            )
        if rule.baseline is not None and rule.baseline == rule.candidate:
            raise ConfigError(f"{at}: baseline: is the candidate itself, {rule.baseline!r}; name another generator")
        if not rule.candidate and not {*judged.candidates} - {rule.baseline}:
            raise ConfigError(f"{at}: the run has no generator but the baseline; name another baseline")


class _Question(NamedTuple):
    """One rule asked of one generator at one skill."""

    name: str
    rule: Rule
    generator: str
    skill: str

    def check(self, asked: str, outcome: Outcome, found: str, **numbers: Any) -> Check:
        """With what was found."""
        fails = outcome == "failed" or (outcome == "cannot tell" and self.rule.cannot_tell == "fails")
        return Check(
            self.name, asked, self.generator, self.rule.metric or "", self.skill, outcome, fails, found, **numbers
        )


class _Limits(NamedTuple):
    """The least and the greatest value that a prompt can have."""

    worst: float
    best: float
    assumed: str = ""
    """The assumption behind the limits, in words; empty if the metric states its range."""


class _Tested(NamedTuple):
    """The test of a question for which larger values are better, or why it could not be tested."""

    test: MarginTest | None
    bound: float = 0.0
    sign: int = 1
    """-1 if the values were negated."""
    values: Floats = NO_VALUES
    limits: _Limits = _Limits(0.0, 0.0)
    same_images: bool = False
    """True if the two sides of a comparison have the same images, and equal scores."""
    edited: int = 0
    """Prompts that are not compared, because their texts differ between the two runs."""
    problem: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """The interval in the metric's own direction."""
        assert self.test is not None
        low, high = sorted((self.sign * self.test.low, self.sign * self.test.high))
        return low, high


def judge(gate: Gate, judged: Judged, *, run_id: str, benchmark: str, against: str | None) -> GateResult:
    """What the gate says of the run.

    It passes where every rule does, so that each is tested at the full level: a run that breaks any of them passes by
    that one with a probability of `alpha` at most, and so does the gate (Berger 1982, the intersection-union test).
    That a rule failed is said of some among many, and corrected (Holm 1979) for all that are tested.
    """
    questions = list(_questions(gate, judged))
    asked = {name: rule.words(judged.other) for name, rule in gate.rules.items()}
    tested = dict(_tests([question for question in questions if question.rule.is_tested], judged, gate.alpha))
    tests = {question: of_it.test for question, of_it in tested.items() if of_it.test is not None}
    p_failed = dict(zip(tests, holm([test.p_below for test in tests.values()]), strict=True))
    checks = [
        _conclude(question, asked[question.name], tested[question], gate.alpha, p_failed.get(question, math.nan))
        if question.rule.is_tested
        else _look_up(question, asked[question.name], judged)
        for question in questions
    ]
    passed = not any(check.fails for check in checks)
    return GateResult(gate.source, gate.alpha, run_id, benchmark, against, passed, asked, checks)


def _questions(gate: Gate, judged: Judged) -> Iterator[_Question]:
    """Every rule of every generator and skill that it is about."""
    for name, rule in gate.rules.items():
        skills = judged.skill_names if rule.skill == EACH else [rule.skill]
        for generator in [rule.candidate] if rule.candidate else judged.candidates:
            if generator != rule.baseline:
                yield from (_Question(name, rule, generator, skill) for skill in skills)


def _look_up(question: _Question, asked: str, judged: Judged) -> Check:
    """A rule on a mean or a coverage as the run's summary has it."""
    rule = question.rule
    found = [
        of_metric
        for (generator, metric, skill), of_metric in judged.summary.items()
        if (generator, skill) == (question.generator, question.skill) and rule.metric in (None, metric)
    ]
    n, rows = sum(of_metric.n for of_metric in found), sum(of_metric.rows for of_metric in found)
    if not rows or (rule.is_floor and not n):
        return question.check(asked, "cannot tell", "no image has a score" if rows else "no rows")
    value = found[0].mean if rule.is_floor else n / rows
    holds = value <= rule.bound if rule.kind == "at_most" else value >= rule.bound
    said = f"{number(value)} on {plural(n, 'image')}" if rule.is_floor else f"{value:.2%}: {n:,} of {rows:,} rows"
    return question.check(asked, "passed" if holds else "failed", said, value=value)


def _tests(questions: Sequence[_Question], judged: Judged, alpha: float) -> Iterator[tuple[_Question, _Tested]]:
    """Test the questions, sorted by metric and generator, so that the scores of each pair are read once."""

    @lru_cache(maxsize=1)
    def values_of(metric: str, generator: str, other: Other | None) -> tuple[Hashes, Floats]:
        """Return the prompts with their mean scores, or with the differences from the other side's mean scores."""
        prompts = judged.scores().prompts
        if other is not None:
            prompts = judged.scores().shared_prompts(other.scores).prompts
        values = average_prompts(prompts, judged.scores().select_rows(metric, generator))
        return prompts, values - (
            0.0 if other is None else average_prompts(prompts, other.scores.select_rows(metric, other.generator))
        )

    def of_question(question: _Question) -> _Tested:
        rule, scores, metric = question.rule, judged.scores(), str(question.rule.metric)
        if question.generator not in scores.generators:
            return _Tested(None, problem="no rows")
        other = judged.find_other(rule, question.generator) if rule.compares else None
        if isinstance(other, str):
            return _Tested(None, problem=other)
        prompts, values = values_of(metric, question.generator, other)
        chosen = _having(question.skill, prompts, judged) & np.isfinite(values)
        if not chosen.any():
            return _Tested(None, problem="no score" if other is None else "no prompt has a score on both sides")
        if other is None:
            sign, bound = (-1, -rule.bound) if rule.kind == "at_most" else (1, rule.bound)
        else:
            sign = direction(metric, judged.falling)
            bound = rule.bound if rule.kind == "better_by" else -rule.bound
        values, limits = sign * values[chosen], _find_limits(metric, sign, other, judged)
        same = other is not None and not values.any() and bool(np.isin(prompts[chosen], other.same_images()).all())
        if limits.worst == limits.best and not same:
            return _Tested(
                None,
                problem=f"all scores are equal, and {metric} states no range, so nothing tells how far one could fall",
            )
        test = margin_test(values, bound, alpha, limits.worst, limits.best)
        edited = 0 if other is None else scores.shared_prompts(other.scores).edited
        return _Tested(test, bound, sign, values, limits, same, edited)

    by_scores = sorted(questions, key=lambda question: (str(question.rule.metric), question.generator))
    return ((question, of_question(question)) for question in by_scores)


def _find_limits(metric: str, sign: int, other: Other | None, judged: Judged) -> _Limits:
    """Return the limits of a prompt's value: those of the range that the metric states, or of all scores there are."""
    scores = [judged.scores(), *([] if other is None else [other.scores])]
    seen = [of_side.spans[metric] for of_side in scores if metric in of_side.spans]
    low, high = min(low for low, _ in seen), max(high for _, high in seen)
    assumed = ""
    if metric in judged.ranges:
        low, high = min(low, judged.ranges[metric][0]), max(high, judged.ranges[metric][1])
    else:
        assumed = f"{metric} states no range: taken to be from {number(low)} to {number(high)}, as all scores here"
    if other is not None:
        return _Limits(low - high, high - low, assumed)
    return _Limits(min(sign * low, sign * high), max(sign * low, sign * high), assumed)


def _having(skill: str, prompts: Hashes, judged: Judged) -> NDArray[np.bool_]:
    """Which of the prompts have the skill."""
    if skill == OVERALL:
        return np.ones(len(prompts), np.bool_)
    return next(has_it for name, has_it in judged.skills().each(prompts) if name == skill)


def _conclude(question: _Question, asked: str, tested: _Tested, alpha: float, p_failed: float) -> Check:
    """Return the check of a tested question; `p_failed` is the p-value of a broken rule, corrected for all tests."""
    rule, test = question.rule, tested.test
    if test is None:
        return question.check(asked, "cannot tell", tested.problem)
    shown = signed if rule.compares else number
    low, high = tested.ends
    outcome: Outcome = "passed" if test.p_above <= alpha else "failed" if p_failed <= alpha else "cannot tell"
    value, prompts = tested.sign * test.mean, plural(test.n, "prompt")
    interval = f"{1 - 2 * alpha:.0%} interval {shown(low)} to {shown(high)}"
    sure = f"broken with p {p_text(p_failed)} (Holm)" if outcome == "failed" else f"p {p_text(test.p_above)}"
    parts = [f"{shown(value)} ({interval}) on {prompts}, {sure}"]
    smallest, needed = smallest_shown(test), None
    if tested.same_images:
        outcome = "passed" if rule.kind == "no_worse_by" else "failed"
        parts = [f"the same images on {'all ' * (test.n > 1)}{prompts}"]
    elif outcome == "cannot tell":
        needed = _needed(rule, tested, alpha)
        parts.append(_power(rule, tested, smallest, needed))
        if rule.compares and not tested.values.any():
            parts.append("equal scores do not prove equal images")
    if tested.limits.assumed and not tested.same_images:
        parts.append(tested.limits.assumed)
    if tested.edited:
        parts.append(f"left out: {plural(tested.edited, 'prompt')} with edited texts")
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


def _needed(rule: Rule, tested: _Tested, alpha: float) -> int | None:
    """Return the number of prompts like those here that pass the rule with 80% power; None if none would.

    Their mean is the observed one. A candidate that need be no worse is taken to be no better either.
    """
    assert tested.test is not None
    mean = min(tested.test.mean, 0.0) if rule.kind == "no_worse_by" else tested.test.mean
    return prompts_needed(tested.values, tested.bound, alpha, tested.limits.worst, mean)


def _power(rule: Rule, tested: _Tested, smallest: float, needed: int | None) -> str:
    """Return in words the power of these prompts, and the number of prompts that the rule takes."""
    assert tested.test is not None
    can = {
        "no_worse_by": f"a margin of {number(smallest)}",
        "better_by": f"a gain of {number(rule.bound + smallest)}",
        "at_least": f"a mean of {number(rule.bound + smallest)}",
        "at_most": f"a mean of {number(rule.bound - smallest)}",
    }[rule.kind]
    if tested.test.mean <= tested.bound:
        more = "what was seen is on the wrong side of the bound"
    else:
        more = f"it takes about {needed:,} such prompts" if needed else f"it takes more than {MAX_PROMPTS:,} of them"
    return f"{plural(tested.test.n, 'such prompt')} can show {can} ({CHANCE:.0%} power); {more}"
