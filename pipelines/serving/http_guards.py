"""What stands before every page of a server: names, origins, the time that a client may take, and what its end is."""

import logging
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Server
from uvicorn.protocols.http.auto import AutoHTTPProtocol

LOG = logging.getLogger(__name__)


def guards(names: Sequence[str]) -> list[Middleware]:
    """Middleware that answers requests by these names of the server alone, and none of another site's pages."""
    return [Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False), Middleware(OwnOrigin)]


class OwnOrigin:
    """Refuses what a page of another origin asks through a web browser; clients that are none send no Origin."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application's call."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or origin.partition("://")[2] == headers.get("host"):
            await self.app(scope, receive, send)
        else:
            refusal = PlainTextResponse("expected no page of another origin to ask; ask from outside a browser", 403)
            await refusal(scope, receive, send)


class PromptConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed where no request is under way for uvicorn's `timeout_keep_alive` seconds.

    uvicorn itself counts from the end of a response to the next byte, so that a client that sends no head, or one byte
    of it now and then, keeps its connection.
    """

    waiting: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:
        """Begins to wait for the first head."""
        super().connection_made(transport)
        self._wait_for_request()

    def on_response_complete(self) -> None:
        """Begins to wait for the next head; what is left of a body that was refused is none."""
        super().on_response_complete()
        self._wait_for_request()

    def connection_lost(self, error: Exception | None) -> None:
        """Waits no more."""
        super().connection_lost(error)
        if self.waiting is not None:
            self.waiting.cancel()

    def _wait_for_request(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
        self.waiting = self.loop.call_later(self.timeout_keep_alive, self._close_idle)

    def _close_idle(self) -> None:
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.close()


class PatientServer(Server):
    """uvicorn's server, which says whom it waits for at its end."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends after the requests that are under way."""
        if under_way := len(self.server_state.tasks):
            LOG.warning("requests that are answered before the end: %d; a second Ctrl-C cuts them off", under_way)
        await super().shutdown(sockets)
