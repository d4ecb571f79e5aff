"""Shared parts of page servers: the token as a password, headers that restrict a page, and JSON sent by a page."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from plumbline.pipelines.web.http_guards import make_guards
from plumbline.pipelines.web.listening import has_token

DEFAULT_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response by default."""
MAX_BODY_BYTES = 65_536
"""Maximum number of bytes in a request body."""
BODY_TIMEOUT = 30.0
"""Seconds allowed for receiving a request body."""


def make_page_guards(names: Sequence[str], token: str | None, policy: str) -> list[Middleware]:
    """Return the middleware of `make_guards`, and the middleware that is specific to pages.

    The browser asks for the token as a password, and every response has the Content-Security-Policy `policy`.
    """

    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if token is not None and not has_token(token, request.headers.get("authorization", "")):
            response: Response = PlainTextResponse("expected the token as the password", 401)
            response.headers["WWW-Authenticate"] = 'Basic realm="plumbline"'
        else:
            response = await answer(request)
        for header, value in {"Content-Security-Policy": policy, **DEFAULT_HEADERS}.items():
            response.headers.setdefault(header, value)
        return response

    return [Middleware(BaseHTTPMiddleware, dispatch=guard), *make_guards(names)]


async def read_json_body(request: Request, what: str) -> bytes:
    """Return the body of a request; `what` names it in error messages.

    The content type must be JSON. This keeps out pages of other sites, because browsers ask the server before they send
    JSON to another site.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, f"expected {what} as application/json")
    body = b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise HTTPException(413, f"expected {what} of at most {MAX_BODY_BYTES} bytes")
    except TimeoutError as error:
        raise HTTPException(408, f"expected {what} within {BODY_TIMEOUT:g} seconds") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the client closed the connection") from error
    return body
