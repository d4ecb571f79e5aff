"""What is kept of a store, as configured."""

from dataclasses import dataclass, field

from plumbline.operators.errors import ConfigError, suggest
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.storage import StorageConfig

PRUNABLE = tuple(stage.name for stage in STAGES.values() if stage.over == "images" and stage.name != "scores")
"""Stages whose cells no committed score needs any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepRuns:
    """Which runs of each benchmark stay; where nothing is set all do. The newest run and damaged ones always stay."""

    last: int = 0
    """The newest runs, this many."""
    daily: int = 0
    """The last run of each of so many days that have one; days are UTC's."""
    weekly: int = 0
    """The last run of each of so many weeks that have one."""
    monthly: int = 0
    """The last run of each of so many months that have one."""
    named: tuple[str, ...] = ()
    """Run ids that stay besides."""

    def __post_init__(self) -> None:
        for name in ("last", "daily", "weekly", "monthly"):
            if getattr(self, name) < 0:
                raise ConfigError(f"keep_runs.{name}: expected 0 or more, got {getattr(self, name)}")

    @property
    def all(self) -> bool:
        """Whether no run is to go."""
        return not (self.last or self.daily or self.weekly or self.monthly)


@dataclass(frozen=True, kw_only=True, slots=True)
class GcConfig:
    """What may be removed from a store."""

    store: str = "store"
    """Folder or s3:// prefix of the store."""
    delete: bool = False
    """Remove what is listed."""
    keep_runs: KeepRuns = field(default_factory=KeepRuns)
    grace_days: float = 7.0
    """Nothing that was written in the last days is removed, but for runs and for stages to prune."""
    stages: tuple[str, ...] | None = None
    """Only cells of these stages are looked at; null for those of all."""
    prune: tuple[str, ...] = ()
    """Stages, as [answers], whose cells go although runs that stay refer to them, where the scores that stand on them
    are there."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        for key, chosen, known in (("stages", self.stages or (), tuple(STAGES)), ("prune", self.prune, PRUNABLE)):
            for name in chosen:
                if name not in known:
                    expected = f"expected some of {', '.join(known)}, got {name!r}"
                    raise ConfigError(f"{key}: {expected}; {suggest(name, known)}")
        if self.grace_days < 0:
            raise ConfigError(f"grace_days: expected 0 or more, got {self.grace_days}")
