"""Published numbers, each with its place in the paper and with our number."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.protocols import ProtocolConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproductionConfig:
    """Options for the comparison with published numbers."""

    reference: str
    """Folder of published files, which contains the protocols' paths."""
    output: str = "docs/reproduction.md"
    """Markdown file to write."""
    protocols: Mapping[str, ProtocolConfig]
    """Protocols by name. GenAI-Bench's rating_range is null: its published numbers count two typing errors, ratings of
    41 and 33."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if not self.reference:
            raise ConfigError("reference: set REFERENCE_DATA, or reference=PATH, to the folder of published files")


class PublishedNumber(NamedTuple):
    """A published number and ours."""

    paper: str
    """Paper or release."""
    group: str
    """Table or figure."""
    row: str
    column: str
    """Column; empty in a table with a single column."""
    published: float
    ours: float
    decimals: int
    """Number of decimals of the published number."""
    reason: str = ""
    """Reason for a difference; empty if ours matches."""

    @property
    def table(self) -> str:
        """Paper and table or figure."""
        return f"{self.paper}, {self.group}"

    @property
    def place(self) -> str:
        """Place of the number in the paper."""
        return ", ".join(filter(None, (self.table, self.row, self.column)))

    @property
    def matches(self) -> bool:
        """True if ours rounds to the published number."""
        tolerance = 0.5 * 10**-self.decimals
        return bool(abs(self.ours - self.published) <= tolerance * (1 + 1e-9))

    def explained(self, reason: str) -> "PublishedNumber":
        """Return the number with this reason if it does not match."""
        return self if self.matches else self._replace(reason=reason)
