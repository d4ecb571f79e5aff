"""A run judged by the rules of a gate: what each rule found of each generator and skill, and what the gate says."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.comparison import mean_of_each
from plumbline.operators.errors import ConfigError, check_known
from plumbline.operators.gates.rules import EACH, Gate, Rule
from plumbline.operators.metrics.metric import direction
from plumbline.operators.run_scores import Hashes, RunScores
from plumbline.operators.sentences import names, number, p_text, plural, signed
from plumbline.operators.statistics.margins import MOST_PROMPTS, MarginTest, margin_test, prompts_needed, smallest_seen
from plumbline.operators.statistics.ordering import CHANCE, holm
from plumbline.operators.summary import OVERALL, Skills

Floats = NDArray[np.float64]
Outcome = Literal["passed", "failed", "cannot tell"]
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
    """How far beyond its bound the true mean must be for so many prompts to show it with 80% power."""
    needed: int | None = None
    """About how many prompts show with 80% power what the rule asks, where that can be said."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A finished run as the rules of a gate look at it."""

    summary: Mapping[tuple[str, str, str], Summarised]
    """By generator, metric and skill."""
    scores: Callable[[], RunScores]
    """Reads the scores, which only tested rules need."""
    skills: Callable[[], Skills]
    falling: frozenset[str]
    unranked: frozenset[str]
    """The metrics by which nothing is better or worse."""
    candidates: Sequence[str]
    """The generators that are judged where a rule names none."""
    other: str
    """What rules without a baseline compare with, in words; empty where with nothing."""
    find_other: Callable[[Rule, str], Other | str]
    """What a rule compares a generator with, or why that cannot be done."""

    @property
    def generators(self) -> list[str]:
        """In the summary's order."""
        return list(dict.fromkeys(generator for generator, _, _ in self.summary))

    @property
    def metrics(self) -> list[str]:
        """Likewise."""
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


class _Tested(NamedTuple):
    """The test of a question whose larger values are the better ones, or why there is none."""

    test: MarginTest | None
    bound: float = 0.0
    sign: int = 1
    """-1 where the values were turned round."""
    unchanged: bool = False
    """Whether the two sides of a comparison have the same scores."""
    problem: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """The interval as the metric gives it."""
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
    """Their tests; questions of one metric and generator one after the other, so that its scores are read once."""

    @lru_cache(maxsize=1)
    def values_of(metric: str, generator: str, other: Other | None) -> tuple[Hashes, Floats]:
        """By prompt its mean score, or how much it is above the other's."""
        prompts = judged.scores().prompts
        if other is not None:
            prompts = judged.scores().shared_prompts(other.scores).prompts
        values = mean_of_each(prompts, judged.scores().of(metric, generator))
        return prompts, values - (
            0.0 if other is None else mean_of_each(prompts, other.scores.of(metric, other.generator))
        )

    def of_question(question: _Question) -> _Tested:
        rule, scores, metric = question.rule, judged.scores(), str(question.rule.metric)
        if question.generator not in scores.generators:
            return _Tested(None, problem="no rows")
        low, high = scores.spans.get(metric, (0.0, 0.0))
        if not rule.compares:
            sign = -1 if rule.kind == "at_most" else 1
            worst, best = sorted((sign * low, sign * high))
            prompts, values = values_of(metric, question.generator, None)
            bound = sign * rule.bound
        else:
            other = judged.find_other(rule, question.generator)
            if isinstance(other, str):
                return _Tested(None, problem=other)
            sign = direction(metric, judged.falling)
            low_other, high_other = other.scores.spans.get(metric, (low, high))
            best = max(high, high_other) - min(low, low_other)
            worst = -best
            prompts, values = values_of(metric, question.generator, other)
            bound = rule.bound if rule.kind == "better_by" else -rule.bound
        values = sign * values[_having(question.skill, prompts, judged) & np.isfinite(values)]
        if not len(values):
            return _Tested(None, problem="no prompt has a score on both sides" if rule.compares else "no score")
        test = margin_test(values, bound, alpha, worst, best)
        return _Tested(test, bound, sign, unchanged=rule.compares and not values.any())

    by_scores = sorted(questions, key=lambda question: (str(question.rule.metric), question.generator))
    return ((question, of_question(question)) for question in by_scores)


def _having(skill: str, prompts: Hashes, judged: Judged) -> NDArray[np.bool_]:
    """Which of the prompts have the skill."""
    if skill == OVERALL:
        return np.ones(len(prompts), np.bool_)
    return next(has_it for name, has_it in judged.skills().each(prompts) if name == skill)


def _conclude(question: _Question, asked: str, tested: _Tested, alpha: float, p_failed: float) -> Check:
    """What a test says; `p_failed` is that the rule is broken, corrected for all tests."""
    rule, test = question.rule, tested.test
    if test is None:
        return question.check(asked, "cannot tell", tested.problem)
    shown = signed if rule.compares else number
    low, high = tested.ends
    holds = test.p_above <= alpha or (tested.unchanged and rule.kind == "no_worse_by")
    outcome: Outcome = "passed" if holds else "failed" if p_failed <= alpha else "cannot tell"
    value, prompts = tested.sign * test.mean, plural(test.n, "prompt")
    interval = f"{1 - 2 * alpha:.0%} interval {shown(low)} to {shown(high)}"
    sure = f"broken with p {p_text(p_failed)} (Holm)" if outcome == "failed" else f"p {p_text(test.p_above)}"
    found = f"{shown(value)} ({interval}) on {prompts}, {sure}"
    smallest = smallest_seen(test.n, alpha) * test.spread if test.n > 1 else None
    needed = _needed(rule, tested.bound, test, alpha) if outcome == "cannot tell" else None
    if tested.unchanged:
        found = f"the same on {'all ' * (test.n > 1)}{prompts}"
    elif outcome == "cannot tell":
        found = f"{found}; {_power(rule, test, smallest, needed)}"
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


def _needed(rule: Rule, bound: float, test: MarginTest, alpha: float) -> int | None:
    """About how many prompts, more than there were, show with 80% power what the rule asks: of two that are equally
    good that neither is worse, and else what the mean seems to be; None where that would not do.
    """
    effect = (rule.bound if rule.kind == "no_worse_by" else test.mean - bound) / test.spread if test.spread else 0.0
    needed = prompts_needed(effect, alpha) if effect > 0 else MOST_PROMPTS
    return max(needed, test.n + 1) if needed < MOST_PROMPTS else None


def _power(rule: Rule, test: MarginTest, smallest: float | None, needed: int | None) -> str:
    """What so many prompts could have shown, and how many could show what the rule asks."""
    prompts = plural(test.n, "prompt")
    if not smallest:
        return f"too few: {prompts}"
    can, about = {
        "no_worse_by": (f"a margin of {number(smallest)} of two that are equally good", f"for {rule.bound:g}"),
        "better_by": (f"a gain of {number(rule.bound + smallest)}", "for the gain as it seems"),
        "at_least": (f"a mean of {number(rule.bound + smallest)}", "for the mean as it seems"),
        "at_most": (f"a mean of {number(rule.bound - smallest)}", "for the mean as it seems"),
    }[rule.kind]
    more = f"{about} it takes about {needed:,}" if needed else "what was seen is on the wrong side of the bound"
    return f"{prompts} can show {can} ({CHANCE:.0%} power); {more}"
