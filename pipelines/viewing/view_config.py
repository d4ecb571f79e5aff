"""Of which store to show the pages, and where."""

from dataclasses import dataclass, field

from plumbline.operators.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.serving.listening import check_address


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewConfig:
    """Of which store to show the pages, and where."""

    store: str = "store"
    """Folder or s3:// prefix of the store."""
    host: str = "127.0.0.1"
    """Where it listens; a host that others reach needs a token."""
    hosts: tuple[str, ...] = ()
    """Names by which it is asked beside this machine's own and `host`, as [rewards.example.org] behind a reverse proxy;
    ["*"] is any."""
    port: int = 8008
    """The port that it listens on; 0 is any that is free."""
    token_variable: str = "PLUMBLINE_TOKEN"
    """The environment variable that holds the token, which a browser asks for as a password."""
    memory: int = 1000
    """Megabytes that the rows of opened runs may take in memory; what is more stands in a temporary folder."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        check_address(self.port, self.hosts)
        if self.memory < 100:
            raise ConfigError(f"memory: expected at least 100 megabytes, got {self.memory}")
