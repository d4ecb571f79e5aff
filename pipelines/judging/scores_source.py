"""The scores that a job reads: those of a run in a store, or a table of one's own."""

from dataclasses import dataclass, field

from plumbline.operators.base.bounds import BoundsChecked
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.cells.runs import find_run
from plumbline.pipelines.cells.store import open_existing_store


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoresSource(BoundsChecked):
    """The run or the table whose scores a job reads."""

    store: str = "store"
    """Folder or cloud prefix of the store that has the run."""
    run: str | None = None
    """The run whose scores are read: its id (plumbline status), or `latest` for the newest."""
    scores: str | None = None
    """A table of scores (Parquet or CSV) or a run's folder, instead of `run`. Without either, the scores that
    people's ratings were released with."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.run is not None and self.scores is not None:
            raise ConfigError(f"run={self.run}: expected a run or scores, got scores={self.scores} too; leave one out")

    def locate_scores(self) -> Place | None:
        """Return the place of the named scores, if any; raise ConfigError if the store has no such run."""
        if self.run is not None:
            store = open_existing_store(self)
            return store.place / f"runs/{find_run(store, self.run)}"
        return None if self.scores is None else self.storage.locate(self.scores)
