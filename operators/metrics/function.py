"""A metric that is a user's own function of an image and its prompt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.metric import Evidence, Metric, ScoreRange

Better = Literal["higher", "lower", "neither"]
"""The better of two scores."""
Function = TypeVar("Function", bound=Callable[..., Any])
DECLARATION = "__plumbline_metric__"
"""The attribute of a function that contains its Declaration."""


class Declaration(NamedTuple):
    """The range and the direction of a function's scores, and how it is called."""

    score_range: ScoreRange | None = None
    better: Better = "higher"
    batches: bool = False


def metric(
    *, score_range: tuple[float, float] | None = None, better: Better = "higher", batches: bool = False
) -> Callable[[Function], Function]:
    """Declare range and direction of a function's scores. Undecorated functions have the defaults (docs/plugins.md).

    Args:
        score_range: The lowest and the highest score. A score outside is an error of its row, and gates count on it.
        better: The better one of two scores: "higher", "lower" or "neither".
        batches: True if the function takes a list of images and a list of their prompts, and returns as many scores.

    Raises:
        ConfigError: A value is none of these.
    """
    if better not in get_args(Better):
        raise ConfigError(f"metric: expected better to be one of {', '.join(get_args(Better))}, got {better!r}")
    declared = Declaration(_read_range(score_range), better, bool(batches))

    def declare(function: Function) -> Function:
        setattr(function, DECLARATION, declared)
        return function

    return declare


def _read_range(given: Any) -> ScoreRange | None:
    if given is None:
        return None
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        low = high = 0.0
    if not low < high:
        raise ConfigError(f"metric: expected score_range to be two numbers, the lower one first, got {given!r}")
    return low, high


@dataclass(frozen=True)
class Code:
    """The code of a function as records store it: its digest and its declaration, and nothing that could be run.

    Only `UserCode` (operators/metrics/user_code.py) can be run. No text and no file of a configuration becomes one.
    """

    digest: str
    """SHA-256 of the file's text, 16 hexadecimal digits."""
    score_range: ScoreRange | None = None
    better: Better = "higher"
    batches: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionConfig(Metric):
    """A metric that calls a function."""

    kind: Literal["function"] = "function"
    story: ClassVar[str] = "is computed by a function of the user's own"
    chain: ClassVar[tuple[str, ...]] = ("function_values", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ()
    function: str
    """FILE.py:NAME or PACKAGE.MODULE:NAME; records keep the name alone."""
    about: str = ""
    """Description for newcomers, in the report; the first line of the function's docstring by default."""
    code: Code
    """The code of the function that is named; no configuration sets it."""

    @property
    def ranks(self) -> bool:
        return self.code.better != "neither"

    @property
    def prefers_lower(self) -> bool:
        return self.code.better == "lower"

    @property
    def score_range(self) -> ScoreRange | None:
        return self.code.score_range

    def computing(self) -> Mapping[str, Any]:
        """Return all options that decide the function's values."""
        return {"function": self.function, "code": self.code.digest, "score_range": self.code.score_range}

    def scoring(self) -> dict[str, Any]:
        """Return nothing: the score is the function's value."""
        return {}

    def score(self, evidence: Evidence) -> Scored:
        return Scored(evidence.row["value"])
