"""Server addresses, access tokens, and running an application until it is stopped."""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import logging
import math
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from plumbline.operators.base.errors import ConfigError

IDLE_TIMEOUT = 10
"""Seconds without a request before a connection is closed."""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""Host names that reach only this machine."""
HOST_NAME_PATTERN = re.compile(r"\*|(?:\*\.)?[\w.-]+|\[[0-9a-fA-F:.]+\]")


def check_address(port: int, hosts: Sequence[str]) -> None:
    """Raise ConfigError if the port or a name in `hosts` is invalid."""
    if not 0 <= port < 65536:
        raise ConfigError(f"port: expected 0 to 65535, got {port}")
    for name in hosts:
        if not HOST_NAME_PATTERN.fullmatch(name):
            raise ConfigError(
                f"hosts: expected names without a scheme or port (gpu-7, *.example.org, [fd00::7] or *), got {name!r}"
            )


def list_allowed_hosts(host: str, hosts: Sequence[str]) -> list[str]:
    """Return the host names that a server at `host` accepts: this machine's own names, the host, and `hosts`.

    If `hosts` is empty, a server that listens on all addresses (and therefore needs a token) accepts any host name.
    """
    try:
        is_everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_everywhere = host == ""
    if is_everywhere and not hosts:
        return ["*"]
    return list(dict.fromkeys([*LOOPBACK_HOSTS, _add_brackets(host), *hosts]))


def format_server_url(host: str, listener: socket.socket) -> str:
    """Return the URL of a server that listens on `host`."""
    return f"http://{_add_brackets(host)}:{listener.getsockname()[1]}"


def _add_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host  # an IPv6 address in a URL


@contextmanager
def open_listening_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address before the application loads; port 0 means any free port.

    Yields the socket, which is closed when the context ends. Raises OSError if the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        yield listener


def run_app(app: Any, listener: socket.socket, patience: float) -> None:
    """Serve an ASGI application until the process receives a stop signal, and then finish the open requests.

    Requests that are still open after `patience` seconds are cut off; a second Ctrl-C cuts off all open requests.
    """
    import uvicorn

    from plumbline.pipelines.web.http_guards import DrainingServer, TimedConnection

    options = uvicorn.Config(
        app,
        http=TimedConnection,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_TIMEOUT,
        timeout_graceful_shutdown=math.ceil(patience),
    )
    logging.getLogger("uvicorn.error").addFilter(_is_worth_logging)
    DrainingServer(options).run(sockets=[listener])


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return False if a log record only reports a request that was cut off."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def take_token(host: str, variable: str) -> str | None:
    """Return the access token in the environment variable `variable`, or None if it is not set.

    The variable is removed from the environment, so that child processes do not inherit the token.

    Raises ConfigError if the token is missing although other machines can reach the service.
    """
    token = os.environ.pop(variable, "") or None
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"host: other machines may reach {host!r}; set a token in the environment variable {variable}, or listen "
            "on 127.0.0.1"
        )
    return token


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach an address; host names other than localhost could be any machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def has_token(token: str, header: str) -> bool:
    """Return True if an Authorization header contains the token, as a bearer token or as a password."""
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
