"""Options for jobs that read the scores of a run in a store, or of a table."""

from dataclasses import dataclass, field

from plumbline.operators.base.bounds import BoundsChecked
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.store.runs import find_run
from plumbline.pipelines.store.store import open_existing_store


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoresSource(BoundsChecked):
    """The run or table whose scores a job reads."""

    store: str = "store"
    """Folder or cloud prefix of the run's store."""
    run: str | None = None
    """Id of the run whose scores are read (plumbline status), or `latest` for the newest run."""
    scores: str | None = None
    """A table of scores (Parquet or CSV) or a run's folder, as an alternative to `run`. If neither is set, the scores
    that were released with people's ratings are used.
    """
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.run is not None and self.scores is not None:
            raise ConfigError(f"run={self.run}, scores={self.scores}: expected only one of the two; leave one out")

    def locate_scores(self) -> Place | None:
        """Return the path of the configured scores, if any; raise ConfigError if the store has no such run."""
        if self.run is not None:
            store = open_existing_store(self)
            return store.place / f"runs/{find_run(store, self.run)}"
        return None if self.scores is None else self.storage.locate(self.scores)
