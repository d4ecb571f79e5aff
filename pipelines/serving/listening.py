"""Where a server listens, who may reach it, and how it ends."""

import base64
import binascii
import hmac
import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from operators.errors import ConfigError


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """The address, taken before anything is loaded for it; port 0 is any free one. Raises OSError where it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        yield listener


def run_app(app: Any, listener: socket.socket) -> None:
    """Answers by an ASGI application until the process is told to stop."""
    import uvicorn

    options = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, lifespan="off", timeout_graceful_shutdown=10
    )
    uvicorn.Server(options).run(sockets=[listener])


def take_token(host: str, variable: str) -> str | None:
    """The token, taken out of the environment variable so that no other process has it.

    Raises ConfigError where others could reach a service without one.
    """
    token = os.environ.pop(variable, "") or None
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"host: expected a token in the environment variable {variable} for {host!r}, which others may reach, "
            "found none; set it, or listen at 127.0.0.1"
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; a name other than localhost may lead anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def has_token(token: str, header: str) -> bool:
    """Whether an Authorization header brings the token, as a bearer's or as a password."""
    scheme, _, value = header.partition(" ")
    given = value.strip().encode("utf-8", "replace")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given, token.encode())
