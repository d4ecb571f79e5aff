"""Middleware and HTTP protocol for all servers: allowed host names and origins, size and time limits, shutdown."""

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
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LOG = logging.getLogger(__name__)
MAX_HEAD_BYTES = 65_536
"""Maximum number of bytes in a request's head, or in the trailers after a body."""
PIECE_BYTES = 16_384
"""Number of bytes that are parsed between two checks of a head's length."""
HEAD_TOO_LONG = f"expected a head of at most {MAX_HEAD_BYTES} bytes".encode()
HEAD_TOO_LONG_REPLY = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"X-Content-Type-Options: nosniff\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    % (len(HEAD_TOO_LONG), HEAD_TOO_LONG)
)


def make_guards(names: Sequence[str]) -> list[Middleware]:
    """Return middleware that refuses requests to other host names, and requests from other sites' pages."""
    return [Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False), Middleware(SameOriginGuard)]


class SameOriginGuard:
    """Middleware that refuses requests from pages of other origins; clients that are not browsers send no Origin."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or origin.partition("://")[2] == headers.get("host"):
            await self.app(scope, receive, send)
        else:
            message = "expected no request from a page of another origin; send it from outside a browser"
            refusal = PlainTextResponse(message, 403)
            await refusal(scope, receive, send)


class TimedConnection(HttpToolsProtocol):
    """Connection that is closed if a request's head is longer than MAX_HEAD_BYTES or does not arrive in time.

    uvicorn itself accepts heads of any length, because llhttp has no limit. It measures its `timeout_keep_alive` from
    the end of a response to the next byte, so a client that never sends a head, or sends only a byte of it now and
    then, would keep its connection open.
    """

    unparsed: int = 0
    """Number of bytes since the last request, or since the last byte of a body."""
    waiting: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        """Parse bytes in small pieces, and refuse a head that is too long."""
        for start in range(0, len(data), PIECE_BYTES):
            if self.transport.is_closing():
                return
            piece = data[start : start + PIECE_BYTES]
            self.unparsed += len(piece)
            super().data_received(piece)
            if self.unparsed > MAX_HEAD_BYTES:
                if self._is_idle():
                    self.transport.write(HEAD_TOO_LONG_REPLY)
                self.transport.close()

    def on_body(self, body: bytes) -> None:
        """Reset `unparsed`, so that it only counts the bytes between chunks of the body and after the last chunk."""
        self.unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.unparsed = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start waiting for the next request; remaining bytes of a refused body do not count as its head."""
        super().on_response_complete()
        self._wait_for_request()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self.waiting is not None:
            self.waiting.cancel()

    def _wait_for_request(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
        self.waiting = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._is_idle():
            self.transport.close()

    def _is_idle(self) -> bool:
        """Return True if no earlier request is still being answered."""
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)


class DrainingServer(Server):
    """uvicorn server that finishes open requests at shutdown, and logs how many there are."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests in progress, and then shut down."""
        if in_progress := len(self.server_state.tasks):
            LOG.warning("finishing the requests in progress: %d; a second Ctrl-C cuts them off", in_progress)
        await super().shutdown(sockets)
