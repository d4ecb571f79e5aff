"""Numbers of the papers, each with its place in the paper and with our number."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.judging.protocols import ProtocolConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproductionConfig:
    """The published files, and the page of the comparison."""

    reference: str
    """The folder of published files, which the protocols' paths are below."""
    output: str = "docs/reproduction.md"
    """The Markdown file to write."""
    protocols: Mapping[str, ProtocolConfig]
    """Protocols by name. GenAI-Bench's rating_range is null: its published numbers count two typing errors, ratings of
    41 and 33."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if not self.reference:
            raise ConfigError("reference: set REFERENCE_DATA, or reference=PATH, to the folder of published files")


class PublishedNumber(NamedTuple):
    """A published number beside ours."""

    paper: str
    """The paper or release."""
    group: str
    """The table or figure."""
    row: str
    column: str
    """Empty in a table of one column."""
    published: float
    ours: float
    decimals: int
    """Decimals of the published number."""
    reason: str = ""
    """Reason why ours differs; empty if it matches."""

    @property
    def table(self) -> str:
        """Return the paper with its table or figure."""
        return f"{self.paper}, {self.group}"

    @property
    def place(self) -> str:
        """Return the number's place in the paper."""
        return ", ".join(filter(None, (self.table, self.row, self.column)))

    @property
    def matches(self) -> bool:
        """Return True if ours rounds to the published number."""
        tolerance = 0.5 * 10**-self.decimals
        return bool(abs(self.ours - self.published) <= tolerance * (1 + 1e-9))

    def explained(self, reason: str) -> "PublishedNumber":
        """Return the number with this reason if it does not match."""
        return self if self.matches else self._replace(reason=reason)
