"""Rules of a gate: the conditions that a run must meet, and their descriptions in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from plumbline.operators.base.bounds import Bound, BoundsChecked, NonNegative, NonZeroShare, PositiveFloat
from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.base.sentences import format_names
from plumbline.operators.results.summary import OVERALL

EACH_SKILL = "each"
"""Value of `skill` that applies a rule to every skill separately."""
BOUND_NAMES = ("at_least", "at_most", "no_worse_by", "better_by", "coverage")
COMPARING_BOUND_NAMES = ("no_worse_by", "better_by")
"""Bounds that need another run or generator to compare with."""

Alpha = Annotated[float, Bound("a probability above 0 and below 0.5", lambda value: 0 < value < 0.5)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(BoundsChecked):
    """One rule of a gate, with exactly one bound: at_least, at_most, no_worse_by, better_by or coverage."""

    metric: str | None = None
    """The metric; a `coverage` rule without one covers all metrics."""
    benchmark: str | None = None
    """The benchmark whose runs the rule judges; null means every benchmark."""
    skill: str = OVERALL
    """`overall`, a skill, or `each` for every skill separately."""
    candidate: str | None = None
    """The generator that the rule judges; null means the command's `candidate`, or every generator if it is not set."""
    baseline: str | None = None
    """Generator of the same run to compare with; null means the run or generator that the command specifies."""
    at_least: float | None = None
    """Minimum of the mean."""
    at_most: float | None = None
    """Maximum of the mean."""
    surely: bool = False
    """For `at_least` and `at_most`: require that the whole interval meets the bound, not only the mean."""
    no_worse_by: PositiveFloat | None = None
    """Non-inferiority margin: the mean over shared prompts is worse than the other side's by less than this."""
    better_by: NonNegative | None = None
    """Superiority margin: the mean over shared prompts is better than the other side's by more than this."""
    coverage: NonZeroShare | None = None
    """Minimum fraction of rows that have a score."""
    cannot_tell: Literal["fails", "passes"] = "fails"
    """Result if there are too few prompts to decide: `fails` or `passes`."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        given = [name for name in BOUND_NAMES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                f"expected exactly one of {', '.join(BOUND_NAMES)}, got {format_names(given) if given else 'none'}; "
                f"{'write a rule for each' if given else 'add one'}"
            )
        if self.metric is None and self.coverage is None:
            raise ConfigError(f"metric: {given[0]} needs a metric; add metric: NAME")
        if self.surely and not self.bounds_mean:
            raise ConfigError(f"surely: only allowed with at_least and at_most, got {given[0]}; remove it")
        if self.baseline is not None and not self.needs_other_side:
            raise ConfigError(
                f"baseline: only allowed with {' and '.join(COMPARING_BOUND_NAMES)}, got {given[0]}; remove it"
            )

    @property
    def kind(self) -> str:
        """Name of the rule's bound."""
        return next(name for name in BOUND_NAMES if getattr(self, name) is not None)

    @property
    def bound(self) -> float:
        """Value of the rule's bound."""
        return float(getattr(self, self.kind))

    @property
    def needs_other_side(self) -> bool:
        """True if the rule needs another run or generator to compare with."""
        return self.kind in COMPARING_BOUND_NAMES

    @property
    def bounds_mean(self) -> bool:
        """True if the rule sets a lower or upper bound on a mean."""
        return self.kind in ("at_least", "at_most")

    @property
    def is_tested(self) -> bool:
        """True if the rule is a statistical test, False if it only looks up a value in the summary."""
        return self.needs_other_side or self.surely

    def describe(self, other: str = "") -> str:
        """Describe the rule in words; `other` is the run or generator that the run is compared with."""
        at = {OVERALL: "", EACH_SKILL: " at each skill"}.get(self.skill, f" at {self.skill}")
        by = f" by {self.metric}" if self.metric else ""
        candidate = f"{self.candidate}: " if self.candidate else ""
        condition = {
            "at_least": f"mean of {self.metric}{at} {'surely ' * self.surely}at least {self.bound:g}",
            "at_most": f"mean of {self.metric}{at} {'surely ' * self.surely}at most {self.bound:g}",
            "no_worse_by": f"{self.metric}{at} worse by less than {self.bound:g} than {self.baseline or other}",
            "better_by": f"{self.metric}{at} better by more than {self.bound:g} than {self.baseline or other}",
            "coverage": f"a score{by}{at} for at least {self.bound:.4g} of the rows",
        }[self.kind]
        either = (
            ""
            if self.cannot_tell == "fails" or not self.is_tested
            else " (passes if there are too few prompts to decide)"
        )
        return f"{candidate}{condition}{either}"


class Gate(NamedTuple):
    """A set of rules; a run passes if it passes every rule."""

    source: str
    """Name of the file with the rules."""
    alpha: float
    """One-sided level: the maximum probability that the gate passes a run that breaks one of its tested rules."""
    rules: Mapping[str, Rule]
    """Rules by name."""

    def select_benchmark(self, benchmark: str) -> "Gate":
        """Return the gate with only the rules that apply to a benchmark; it may have no rules."""
        return self._replace(
            rules={name: rule for name, rule in self.rules.items() if rule.benchmark in (None, benchmark)}
        )

    def check(self, metrics: Mapping[str, Sequence[str]]) -> None:
        """Raise ConfigError if a rule names an unknown benchmark, or a metric that its benchmark does not have.

        A rule without a benchmark applies to all of them. `metrics` contains the metrics of each benchmark.
        """
        for name, rule in self.rules.items():
            at = f"{self.source}: rule {name}"
            if rule.benchmark is not None:
                check_known(f"{at}: benchmark", rule.benchmark, metrics)
            for benchmark in [rule.benchmark] if rule.benchmark is not None else metrics:
                if rule.metric is not None and rule.metric not in metrics[benchmark]:
                    raise ConfigError(
                        f"{at}: metric: {benchmark} is scored by {format_names(metrics[benchmark])}, not by "
                        f"{rule.metric!r}; "
                        "correct it, or set the benchmark that the rule applies to (benchmark: NAME)"
                    )
