"""A browser of a store from its configuration to its end."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from plumbline.operators.errors import ConfigError, install
from plumbline.pipelines.cells.store import open_existing_store
from plumbline.pipelines.serving.listening import listening, names_of, run_app, take_token, url_of
from plumbline.pipelines.viewing.browser import Browser
from plumbline.pipelines.viewing.run_database import Database
from plumbline.pipelines.viewing.view_config import ViewConfig

PAGE_SECONDS = 10
"""That a page which is being made is waited for at the end."""


def view(config: ViewConfig, ready: Callable[[str], None]) -> None:
    """Serves the pages until the process is told to stop; `ready` is told the address.

    Raises ConfigError where there is no store, or what the pages need is not installed; OSError where the port is
    taken.
    """
    try:
        import uvicorn  # noqa: F401

        from plumbline.pipelines.viewing.app import make_app
    except ImportError as error:
        raise ConfigError(f"expected {error.name}, found none; {install('view')}") from error
    token = take_token(config.host, config.token_variable)
    with tempfile.TemporaryDirectory(prefix="plumbline-view-") as folder:
        browser = Browser(open_existing_store(config), Database(Path(folder), config.memory))
        try:
            browser.check()
            with listening(config.host, config.port) as listener:
                ready(url_of(config.host, listener))
                app = make_app(browser, token, names_of(config.host, config.hosts))
                run_app(app, listener, patience=PAGE_SECONDS)
        finally:
            browser.close()
