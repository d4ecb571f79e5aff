"""What an export of scores is asked for."""

import re
from dataclasses import dataclass, field

from plumbline.operators.errors import ConfigError, suggest
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.exports.formats import NAMES

TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Of which run, into which table."""

    store: str
    """Folder or s3:// prefix of the store."""
    format: str
    """A name of pipelines/exports/formats."""
    output: str
    """Folder or s3:// prefix that holds the table; several runs may be exported into one."""
    run: str = "latest"
    """A run's id; `latest` is the newest."""
    table: str = "scores"
    """The table's name; in Iceberg it stands in the namespace `plumbline`."""
    catalog: str | None = None
    """Iceberg's catalog, as SQLAlchemy names a database or as the address of a REST catalog; None is `catalog.db` in
    the output folder."""
    columns: tuple[str, ...] | None = None
    """Of the further columns of scores.parquet, those to take along; None takes all."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if self.format not in NAMES:
            raise ConfigError(
                f"format: expected one of {', '.join(NAMES)}, got {self.format!r}; {suggest(self.format, NAMES)}"
            )
        if not TABLE_NAME.fullmatch(self.table):
            raise ConfigError(f"table: expected letters, digits and _, got {self.table!r}")
