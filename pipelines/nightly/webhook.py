"""Tells an address of somebody's that a night has ended."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

SECONDS = 10.0
"""For each step of one try: to connect, to send, and to be answered."""
PAUSES = (1.0, 4.0, 16.0)
"""Before another try."""


def send(
    url: str,
    message: Mapping[str, Any],
    *,
    seconds: float = SECONDS,
    pause: Callable[[float], None] = time.sleep,
) -> str | None:
    """Posts the message as JSON; what went wrong, or None. What may pass (a refused connection, 429, 5xx) is tried
    again a few times; of the address the host alone is named.
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request with its whole address
    problem = None
    for before in (0.0, *PAUSES):
        if before:
            pause(before)
        status = _post(url, message, seconds)
        if isinstance(status, int) and 200 <= status < 300:
            return None
        problem = f"{urlsplit(url).hostname}: {f'HTTP {status}' if isinstance(status, int) else status}"
        if isinstance(status, int) and status < 500 and status != 429:
            break
    return problem


def _post(url: str, message: Mapping[str, Any], seconds: float) -> int | str:
    """The status that it was answered with, or why there is none; what an answer says is not read."""
    try:
        with (
            httpx.Client(timeout=seconds, follow_redirects=False) as client,
            client.stream("POST", url, json=message) as response,
        ):
            return response.status_code
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return type(error).__name__
