"""JSON request bodies from pages: reading within limits, and validation errors in one line."""

import asyncio
from typing import NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

MAX_BODY = 65_536
"""Bytes of a request body."""
BODY_TIMEOUT = 30.0
"""Seconds allowed for receiving a request body."""


async def read_json_body(request: Request, what: str) -> bytes:
    """Return the body of a request; refusals call it `what`.

    The content type must be JSON. This keeps pages of other sites out, because browsers ask the server before they send
    JSON to another site.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        _refuse(415, f"expected {what} as application/json")
    body = b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    _refuse(413, f"expected {what} of at most {MAX_BODY} bytes")
    except TimeoutError:
        _refuse(408, f"expected {what} within {BODY_TIMEOUT:g} seconds")
    except ClientDisconnect:
        _refuse(400, "the client left")
    return body


def _refuse(status: int, message: str) -> NoReturn:
    raise HTTPException(status, message)
