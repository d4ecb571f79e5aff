"""Configuration of a nightly run: a sweep of one or several benchmarks, and the comparison and report that follow."""

from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from plumbline.operators.base.bounds import BoundsChecked, NotNegative, Seconds, at_least
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.cells.lease import LEASE_TIMEOUT
from plumbline.pipelines.maintenance.gc_config import KeepRuns
from plumbline.pipelines.plans.sweep_config import SuiteConfig, SweepConfig
from plumbline.pipelines.report.comparable_runs import check_checkpoints

MIN_LEASE = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NightConfig(BoundsChecked):
    """How a night waits, ends and tells."""

    section: ClassVar[str] = "nightly."
    compare: str = "previous"
    """The run that it is compared with: `previous`, the last that can be, or a run's id, or that of a suite, which has
    the run of each benchmark."""
    smallest_change: NotNegative = 0.0
    """A mean that moved by less is no regression, however sure that is."""
    gate: str | None = None
    """A file of rules that the run must pass, as jobs.gate has them (plugins/gates/README.md); it decides in place of
    the regressions whether the night ends well, and exit code 7 says that it failed."""
    wait: NotNegative = 0.0
    """Seconds to wait for another night in the same store; then the exit code is 4."""
    lease: Annotated[float, at_least(MIN_LEASE, " seconds")] = LEASE_TIMEOUT
    """Seconds without a sign of life after which a night is taken for dead."""
    deadline: Seconds | None = None
    """Seconds after which the night ends, with exit code 6; null for no such bound."""
    webhook: str | None = field(default=None, repr=False)
    """An address that is sent the outcome as JSON, or ${oc.env:NAME}; never printed, for it may be all that is needed
    to write there."""
    checkpoints: str | None = None
    """How the page of trends knows checkpoints by their names, as `jobs.trends` has it; null is as that has it."""
    keep_runs: KeepRuns = field(default_factory=KeepRuns)
    """Which runs of its benchmark a night leaves standing, beside its own and the one that this is compared with
    (docs/keeping.md)."""
    json: bool = False
    """Print the outcome as JSON on standard output, and all else on standard error."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.webhook is not None and not _is_address(self.webhook):
            raise ConfigError("nightly.webhook: expected an http:// or https:// address, got none; correct it")
        if self.checkpoints is not None:
            check_checkpoints("nightly.checkpoints", self.checkpoints)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class NightlyConfig(SweepConfig):
    """A sweep that runs every night."""

    nightly: NightConfig = field(default_factory=NightConfig)

    def sweep(self) -> SweepConfig:
        """Return the configuration of the sweep alone, so that cells and runs equal those of an ordinary sweep."""
        return SweepConfig(**{each.name: getattr(self, each.name) for each in fields(SweepConfig)})


@dataclass(frozen=True, kw_only=True, slots=True)
class NightlySuiteConfig(SuiteConfig):
    """Several benchmarks that are swept together every night."""

    nightly: NightConfig = field(default_factory=NightConfig)
