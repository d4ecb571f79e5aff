"""Runs the web server that shows a store."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from plumbline.operators.base.bounds import BoundsChecked, at_least
from plumbline.operators.base.errors import ConfigError, format_install_remedy
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.store.store import open_existing_store
from plumbline.pipelines.web.listening import (
    check_address,
    format_server_url,
    list_allowed_hosts,
    open_listening_socket,
    run_app,
    take_token,
)
from plumbline.plugins.viewer.browser import StoreBrowser
from plumbline.plugins.viewer.run_database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewConfig(BoundsChecked):
    """The store to show, and the address to serve it at."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    host: str = "127.0.0.1"
    """Address to listen on; an address that other machines can reach needs a token."""
    hosts: tuple[str, ...] = ()
    """Host names to accept besides this machine's own and `host`, such as [plumbline.example.org] behind a reverse
    proxy; ["*"] accepts any."""
    port: int = 8008
    """Port to listen on; 0 chooses a free port."""
    token_variable: str = "PLUMBLINE_TOKEN"
    """The environment variable that contains the token, which the browser asks for as a password."""
    memory: Annotated[int, at_least(100, " megabytes")] = 1000
    """Megabytes of memory for the rows of open runs; further rows are kept in a temporary folder."""
    notes: bool = True
    """Allow people to write notes on images to the store. Existing notes are always shown."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_address(self.port, self.hosts)


SHUTDOWN_SECONDS = 10
"""Seconds that a stopping server waits for unfinished requests."""


def serve_viewer(config: ViewConfig, ready: Callable[[str], None]) -> None:
    """Serve the pages until the process is stopped; call `ready` with the address.

    Raises ConfigError if the store does not exist or has no run, or if a library is missing, and OSError if the port
    is in use.
    """
    try:
        import uvicorn  # noqa: F401

        from plumbline.plugins.viewer.app import make_app
    except ImportError as error:
        raise ConfigError(f"module {error.name} is not installed; {format_install_remedy('view')}") from error
    token = take_token(config.host, config.token_variable)
    with tempfile.TemporaryDirectory(prefix="plumbline-view-") as folder:
        browser = StoreBrowser(open_existing_store(config), Database(Path(folder), config.memory))
        try:
            browser.check()
            with open_listening_socket(config.host, config.port) as listener:
                ready(format_server_url(config.host, listener))
                app = make_app(browser, token, list_allowed_hosts(config.host, config.hosts), notes=config.notes)
                run_app(app, listener, patience=SHUTDOWN_SECONDS)
        finally:
            browser.close()
