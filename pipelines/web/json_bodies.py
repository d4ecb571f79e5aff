"""JSON that a page sends: no more of it is taken than it may have, and what is wrong with it in a line."""

import asyncio
from typing import NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

MOST_BODY = 65_536
"""Bytes."""
BODY_SECONDS = 30.0
"""That a body may take to arrive."""


async def json_body(request: Request, what: str) -> bytes:
    """The body of a request, which is called `what` where it is refused.

    That it must call itself JSON keeps pages of other sites out: a browser asks before it lets them send that.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        _refuse(415, f"expected {what} as application/json")
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BODY:
                    _refuse(413, f"expected {what} of at most {MOST_BODY} bytes")
    except TimeoutError:
        _refuse(408, f"expected {what} within {BODY_SECONDS:g} seconds")
    except ClientDisconnect:
        _refuse(400, "the client left")
    return body


def _refuse(status: int, message: str) -> NoReturn:
    raise HTTPException(status, message)
