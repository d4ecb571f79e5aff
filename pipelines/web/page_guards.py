"""Middleware of pages: the token as a password, and headers that restrict a page."""

from collections.abc import Awaitable, Callable, Sequence

from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from plumbline.pipelines.web.http_guards import guards
from plumbline.pipelines.web.listening import has_token

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of every response."""


def page_guards(names: Sequence[str], token: str | None, policy: str) -> list[Middleware]:
    """Return the middleware of `guards` and the middleware of pages.

    A browser asks for the token as a password, and every response has the Content-Security-Policy `policy`.
    """

    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if token is not None and not has_token(token, request.headers.get("authorization", "")):
            response: Response = PlainTextResponse("expected the token as the password", 401)
            response.headers["WWW-Authenticate"] = 'Basic realm="plumbline"'
        else:
            response = await answer(request)
        for header, value in {"Content-Security-Policy": policy, **HEADERS}.items():
            response.headers.setdefault(header, value)
        return response

    return [Middleware(BaseHTTPMiddleware, dispatch=guard), *guards(names)]
