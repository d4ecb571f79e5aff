"""Client that requests the viewer's pages within the test process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from plumbline.pipelines.store.store import Store
from plumbline.pipelines.web.listening import list_allowed_hosts
from plumbline.plugins.viewer.app import make_app
from plumbline.plugins.viewer.browser import StoreBrowser
from plumbline.plugins.viewer.run_database import Database


class PageClient:
    def __init__(self, browser: StoreBrowser, token: str | None = None, *, notes: bool = True) -> None:
        self.browser, self.app = browser, make_app(browser, token, list_allowed_hosts("127.0.0.1", ()), notes=notes)

    def __call__(self, path: str, **request: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8008") as client:
                return await client.request(request.pop("method", "GET"), path, **request)

        return asyncio.run(ask())


@contextmanager
def open_client(store: Store, folder: Path, token: str | None = None, *, notes: bool = True) -> Iterator[PageClient]:
    """Yield a client for the pages of a store; `folder` contains the database."""
    folder.mkdir(exist_ok=True)
    browser = StoreBrowser(store, Database(folder, 100))
    try:
        yield PageClient(browser, token, notes=notes)
    finally:
        browser.close()
