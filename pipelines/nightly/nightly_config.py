"""Configuration of a nightly run: a sweep of one or more benchmarks, followed by a comparison and a report."""

from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from plumbline.operators.base.bounds import BoundsChecked, NonNegative, Seconds, at_least
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.extensions import require_extra
from plumbline.pipelines.maintenance.gc_config import RetentionRules
from plumbline.pipelines.plans.sweep_config import SuiteConfig, SweepConfig
from plumbline.pipelines.report.comparable_runs import check_checkpoints
from plumbline.pipelines.store.lease import LEASE_TIMEOUT

MIN_LEASE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NightConfig(BoundsChecked):
    """Options of a nightly run: comparison, gate, waiting, deadline and webhook."""

    section: ClassVar[str] = "nightly."
    compare: str = "previous"
    """The run to compare with: `previous` (the last comparable run), a run's id, or a suite's id (its run of each
    benchmark).
    """
    smallest_change: NonNegative = 0.0
    """Changes of a mean that are smaller than this are not reported as regressions, even if they are significant."""
    gate: str | None = None
    """File with rules that the run must pass (plugins/gates/README.md). The rules decide, instead of regressions,
    whether the nightly run succeeds; exit code 7 means that a rule failed.
    """
    wait: NonNegative = 0.0
    """Seconds to wait for another nightly run in the same store before ending with exit code 4."""
    lease: Annotated[float, at_least(MIN_LEASE_SECONDS, " seconds")] = LEASE_TIMEOUT
    """Seconds without a heartbeat after which another nightly run may take over."""
    deadline: Seconds | None = None
    """Seconds after which the nightly run ends with exit code 6; null sets no limit."""
    webhook: str | None = field(default=None, repr=False)
    """URL that receives the outcome as JSON, or ${oc.env:NAME}. It is never printed, because anyone who knows the URL
    may be able to post to it.
    """
    checkpoints: str | None = None
    """Regular expression for the step in a checkpoint's name, for the trends page; null uses the default of
    `jobs.trends`.
    """
    keep_runs: RetentionRules = field(default_factory=RetentionRules)
    """Runs of the benchmark to keep, in addition to the nightly run itself and the run that it is compared with
    (docs/keeping.md).
    """
    json: bool = False
    """Print the outcome as JSON to standard output, and everything else to standard error."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.webhook is not None:
            try:
                parts = urlsplit(self.webhook)
                is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
            except ValueError:
                is_address = False
            if not is_address:
                raise ConfigError("nightly.webhook: expected an http:// or https:// URL; set it to one, or to null")
            require_extra("api", "nightly.webhook")
        if self.checkpoints is not None:
            check_checkpoints("nightly.checkpoints", self.checkpoints)


@dataclass(frozen=True, kw_only=True, slots=True)
class NightlyConfig(SweepConfig):
    """A sweep that runs every night."""

    nightly: NightConfig = field(default_factory=NightConfig)

    def make_sweep(self) -> SweepConfig:
        """Return the configuration without the nightly options; its cells and runs equal those of an ordinary sweep."""
        return SweepConfig(**{each.name: getattr(self, each.name) for each in fields(SweepConfig)})


@dataclass(frozen=True, kw_only=True, slots=True)
class NightlySuiteConfig(SuiteConfig):
    """Several benchmarks that are swept together every night."""

    nightly: NightConfig = field(default_factory=NightConfig)
