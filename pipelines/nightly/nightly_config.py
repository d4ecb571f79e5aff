"""Configuration of a nightly run: a sweep of one or several benchmarks, and the comparison and report that follow."""

from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from plumbline.operators.base.bounds import BoundsChecked, NotNegative, Seconds, at_least
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.maintenance.gc_config import KeepRuns
from plumbline.pipelines.plans.sweep_config import SuiteConfig, SweepConfig
from plumbline.pipelines.report.comparable_runs import check_checkpoints
from plumbline.pipelines.store.lease import LEASE_TIMEOUT

MIN_LEASE = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NightConfig(BoundsChecked):
    """Options of a night: comparison, gate, waiting, deadline and webhook."""

    section: ClassVar[str] = "nightly."
    compare: str = "previous"
    """The run to compare with: `previous` (the last comparable run), a run's id, or a suite's id, for its run of each
    benchmark."""
    smallest_change: NotNegative = 0.0
    """Smaller changes of a mean are not reported as regressions, even if they are significant."""
    gate: str | None = None
    """File with rules that the run must pass (plugins/gates/README.md). They decide instead of regressions whether the
    night succeeds; exit code 7 means that a rule failed."""
    wait: NotNegative = 0.0
    """Seconds to wait for another night in the same store before ending with exit code 4."""
    lease: Annotated[float, at_least(MIN_LEASE, " seconds")] = LEASE_TIMEOUT
    """Seconds without a heartbeat after which another night may take over."""
    deadline: Seconds | None = None
    """Seconds after which the night ends with exit code 6; null sets no limit."""
    webhook: str | None = field(default=None, repr=False)
    """Address that receives the outcome as JSON, or ${oc.env:NAME}. It is never printed, because anyone who knows the
    address may be able to write to it."""
    checkpoints: str | None = None
    """Expression for the step in a checkpoint's name, for the page of trends; null uses the default of `jobs.trends`.
    """
    keep_runs: KeepRuns = field(default_factory=KeepRuns)
    """Runs of the benchmark that the night keeps besides its own run and the run that it is compared with
    (docs/keeping.md)."""
    json: bool = False
    """Print the outcome as JSON on standard output, and everything else on standard error."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.webhook is not None:
            try:
                parts = urlsplit(self.webhook)
                is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
            except ValueError:
                is_address = False
            if not is_address:
                raise ConfigError("nightly.webhook: expected an http:// or https:// address; correct it")
        if self.checkpoints is not None:
            check_checkpoints("nightly.checkpoints", self.checkpoints)


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
