"""A browser of a store from its configuration to its end."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from plumbline.operators.base.bounds import BoundsChecked, at_least
from plumbline.operators.base.errors import ConfigError, install
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.cells.store import open_existing_store
from plumbline.pipelines.web.listening import allowed_hosts, check_address, listening, run_app, server_url, take_token
from plumbline.plugins.viewer.browser import Browser
from plumbline.plugins.viewer.run_database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewConfig(BoundsChecked):
    """Of which store to show the pages, and where."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    host: str = "127.0.0.1"
    """Where it listens; a host that others reach needs a token."""
    hosts: tuple[str, ...] = ()
    """Names by which it is asked beside this machine's own and `host`, as [rewards.example.org] behind a reverse proxy;
    ["*"] is any."""
    port: int = 8008
    """The port that it listens on; 0 is any that is free."""
    token_variable: str = "PLUMBLINE_TOKEN"
    """The environment variable that holds the token, which a browser asks for as a password."""
    memory: Annotated[int, at_least(100, " megabytes")] = 1000
    """Megabytes that the rows of opened runs may take in memory; what is more stands in a temporary folder."""
    notes: bool = True
    """Whether people may write notes on images, which are kept in the store; they are shown in any case."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_address(self.port, self.hosts)


PAGE_SECONDS = 10
"""That a page which is being made is waited for at the end."""


def view(config: ViewConfig, ready: Callable[[str], None]) -> None:
    """Serves the pages until the process is told to stop; `ready` is told the address.

    Raises ConfigError where there is no store, or what the pages need is not installed; OSError where the port is
    taken.
    """
    try:
        import uvicorn  # noqa: F401

        from plumbline.plugins.viewer.app import make_app
    except ImportError as error:
        raise ConfigError(f"expected {error.name}, found none; {install('view')}") from error
    token = take_token(config.host, config.token_variable)
    with tempfile.TemporaryDirectory(prefix="plumbline-view-") as folder:
        browser = Browser(open_existing_store(config), Database(Path(folder), config.memory))
        try:
            browser.check()
            with listening(config.host, config.port) as listener:
                ready(server_url(config.host, listener))
                app = make_app(browser, token, allowed_hosts(config.host, config.hosts), notes=config.notes)
                run_app(app, listener, patience=PAGE_SECONDS)
        finally:
            browser.close()
