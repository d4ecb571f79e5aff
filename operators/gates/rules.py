"""The rules of a gate: what each asks of a run, and how that reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from plumbline.operators.base.bounds import AboveZero, Bound, Checked, NotNegative, SomeShare
from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.base.sentences import names
from plumbline.operators.results.summary import OVERALL

EACH = "each"
"""In place of a skill: every one, each by itself."""
BOUNDS = ("at_least", "at_most", "no_worse_by", "better_by", "coverage")
COMPARING = ("no_worse_by", "better_by")
"""Those that want something to compare with."""

Alpha = Annotated[float, Bound("a probability above 0 and below 0.5", lambda value: 0 < value < 0.5)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(Checked):
    """One rule of a gate, with exactly one bound: at_least, at_most, no_worse_by, better_by or coverage."""

    metric: str | None = None
    """The metric that it looks at; only `coverage` does without, over all metrics."""
    benchmark: str | None = None
    """The benchmark whose runs it judges; null is every one."""
    skill: str = OVERALL
    """`overall`, a skill, or `each`, which is every skill by itself."""
    candidate: str | None = None
    """The generator that it judges; null is the command's `candidate`, or every generator."""
    baseline: str | None = None
    """The generator of the same run that the candidate is compared with; null is what the command compares with."""
    at_least: float | None = None
    """The mean is this or more."""
    at_most: float | None = None
    """The mean is this or less."""
    surely: bool = False
    """Of `at_least` and `at_most`: the interval's end must be there too, and not the mean alone."""
    no_worse_by: AboveZero | None = None
    """The mean over common prompts is worse than the other's by less than this: non-inferiority by a margin."""
    better_by: NotNegative | None = None
    """It is better than the other's by more than this."""
    coverage: SomeShare | None = None
    """The share of rows with a score is this or more."""
    cannot_tell: Literal["fails", "passes"] = "fails"
    """What becomes of the gate where the prompts do not suffice to tell."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        given = [name for name in BOUNDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                f"expected exactly one of {', '.join(BOUNDS)}, got {names(given) if given else 'none'}; "
                f"{'write a rule for each' if given else 'add one'}"
            )
        if self.metric is None and self.coverage is None:
            raise ConfigError(f"metric: {given[0]} wants one; add metric: NAME")
        if self.surely and not self.is_floor:
            raise ConfigError(f"surely: belongs to at_least and at_most, got it beside {given[0]}; remove it")
        if self.baseline is not None and not self.compares:
            raise ConfigError(f"baseline: belongs to {' and '.join(COMPARING)}, got it beside {given[0]}; remove it")

    @property
    def kind(self) -> str:
        """Which bound it has."""
        return next(name for name in BOUNDS if getattr(self, name) is not None)

    @property
    def bound(self) -> float:
        """As it is written."""
        return float(getattr(self, self.kind))

    @property
    def compares(self) -> bool:
        """Whether it wants something to compare with."""
        return self.kind in COMPARING

    @property
    def is_floor(self) -> bool:
        """Whether it bounds a mean, from below or above."""
        return self.kind in ("at_least", "at_most")

    @property
    def is_tested(self) -> bool:
        """Whether it asks what the prompts can tell, and not only what a summary says."""
        return self.compares or self.surely

    def words(self, other: str = "") -> str:
        """What it asks; `other` is what the command compares with."""
        at = {OVERALL: "", EACH: " at each skill"}.get(self.skill, f" at {self.skill}")
        by = f" by {self.metric}" if self.metric else ""
        whose = f"{self.candidate}: " if self.candidate else ""
        said = {
            "at_least": f"mean of {self.metric}{at} {'surely ' * self.surely}at least {self.bound:g}",
            "at_most": f"mean of {self.metric}{at} {'surely ' * self.surely}at most {self.bound:g}",
            "no_worse_by": f"{self.metric}{at} no worse by {self.bound:g} than {self.baseline or other}",
            "better_by": f"{self.metric}{at} better by more than {self.bound:g} than {self.baseline or other}",
            "coverage": f"a score{by}{at} for at least {self.bound:.4g} of the rows",
        }[self.kind]
        either = "" if self.cannot_tell == "fails" or not self.is_tested else " (passes where prompts cannot tell)"
        return f"{whose}{said}{either}"


class Gate(NamedTuple):
    """The rules that a run must pass, all of them."""

    source: str
    """Where they are written."""
    alpha: float
    """One-sided: the probability that the gate passes a run that breaks one of its tested rules."""
    rules: Mapping[str, Rule]
    """By name."""

    def of(self, benchmark: str) -> "Gate":
        """The rules that judge runs of a benchmark, which may be none."""
        return self._replace(
            rules={name: rule for name, rule in self.rules.items() if rule.benchmark in (None, benchmark)}
        )

    def check(self, metrics: Mapping[str, Sequence[str]]) -> None:
        """Raises ConfigError, naming the file and the rule, for one of a benchmark that is none of these, or of a
        metric that its benchmark lacks, or any where it names none. `metrics` are by benchmark.
        """
        for name, rule in self.rules.items():
            at = f"{self.source}: rule {name}"
            if rule.benchmark is not None:
                check_known(f"{at}: benchmark", rule.benchmark, metrics)
            for benchmark in [rule.benchmark] if rule.benchmark is not None else metrics:
                if rule.metric is not None and rule.metric not in metrics[benchmark]:
                    raise ConfigError(
                        f"{at}: metric: {benchmark} is scored by {names(metrics[benchmark])}, not by {rule.metric!r}; "
                        "correct it, or name the benchmark that the rule is for (benchmark: NAME)"
                    )
