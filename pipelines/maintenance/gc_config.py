"""Configuration of garbage collection: which runs to keep, and which cells to remove."""

from dataclasses import dataclass, field
from typing import ClassVar

from plumbline.operators.base.bounds import BoundsChecked, Natural, NonNegative
from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.storage import StorageConfig

PRUNABLE_STAGES = tuple(
    stage.name for stage in STAGES.values() if stage.row_kind == "images" and stage.name != "scores"
)
"""Stages over images, except the scores; their cells are not needed any more once the scores are committed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionRules(BoundsChecked):
    """Runs of each benchmark to keep; all if no option is set. The newest run and damaged runs are always kept."""

    section: ClassVar[str] = "keep_runs."
    last: Natural = 0
    """Number of newest runs to keep."""
    daily: Natural = 0
    """Number of latest days (UTC) with runs; the last run of each is kept."""
    weekly: Natural = 0
    """Number of latest weeks with runs; the last run of each is kept."""
    monthly: Natural = 0
    """Number of latest months with runs; the last run of each is kept."""
    named: tuple[str, ...] = ()
    """Ids of other runs to keep."""

    @property
    def all(self) -> bool:
        """True if all runs are kept."""
        return not (self.last or self.daily or self.weekly or self.monthly)


@dataclass(frozen=True, kw_only=True, slots=True)
class GcConfig(BoundsChecked):
    store: str = "store"
    """Folder or cloud prefix of the store."""
    delete: bool = False
    """Remove the files; otherwise they are only listed."""
    keep_runs: RetentionRules = field(default_factory=RetentionRules)
    grace_days: NonNegative = 7.0
    """Files written within this number of days are kept, except files of runs and of pruned stages."""
    stages: tuple[str, ...] | None = None
    """Stages whose cells are examined; null means all."""
    prune: tuple[str, ...] = ()
    """Stages, such as [answers], whose cells are removed even if kept runs refer to them, as long as the scores
    computed from them exist.
    """
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        for key, chosen, known in (
            ("stages", self.stages or (), tuple(STAGES)),
            ("prune", self.prune, PRUNABLE_STAGES),
        ):
            for name in chosen:
                if name not in known:
                    expected = f"expected one or more of {', '.join(known)}, got {name!r}"
                    raise ConfigError(f"{key}: {expected}; {suggest(name, known)}")
