"""Configuration of garbage collection: the runs to keep, and the cells to remove."""

from dataclasses import dataclass, field
from typing import ClassVar

from plumbline.operators.base.bounds import BoundsChecked, Natural, NotNegative
from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.storage import StorageConfig

PRUNABLE = tuple(stage.name for stage in STAGES.values() if stage.over == "images" and stage.name != "scores")
"""Stages whose cells are not needed once the scores are committed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepRuns(BoundsChecked):
    """Which runs of each benchmark stay; where nothing is set all do. The newest run and damaged ones always stay."""

    section: ClassVar[str] = "keep_runs."
    last: Natural = 0
    """The newest runs, this many."""
    daily: Natural = 0
    """The last run of each of so many days that have one; days are UTC's."""
    weekly: Natural = 0
    """The last run of each of so many weeks that have one."""
    monthly: Natural = 0
    """The last run of each of so many months that have one."""
    named: tuple[str, ...] = ()
    """Run ids that stay besides."""

    @property
    def all(self) -> bool:
        """True if all runs are kept."""
        return not (self.last or self.daily or self.weekly or self.monthly)


@dataclass(frozen=True, kw_only=True, slots=True)
class GcConfig(BoundsChecked):
    """What may be removed from a store."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    delete: bool = False
    """Remove what is listed."""
    keep_runs: KeepRuns = field(default_factory=KeepRuns)
    grace_days: NotNegative = 7.0
    """Nothing that was written in the last days is removed, but for runs and for stages to prune."""
    stages: tuple[str, ...] | None = None
    """Only cells of these stages are looked at; null for those of all."""
    prune: tuple[str, ...] = ()
    """Stages, as [answers], whose cells go although runs that stay refer to them, where the scores that stand on them
    are there."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        for key, chosen, known in (("stages", self.stages or (), tuple(STAGES)), ("prune", self.prune, PRUNABLE)):
            for name in chosen:
                if name not in known:
                    expected = f"expected some of {', '.join(known)}, got {name!r}"
                    raise ConfigError(f"{key}: {expected}; {suggest(name, known)}")
