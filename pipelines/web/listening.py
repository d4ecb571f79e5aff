"""Where a server listens, who may reach it, and how it ends."""

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

IDLE_SECONDS = 10
"""Without a request on it, after which a connection is closed."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Names by which only this machine reaches itself."""
NAME = re.compile(r"\*|(?:\*\.)?[\w.-]+|\[[0-9a-fA-F:.]+\]")


def check_address(port: int, hosts: Sequence[str]) -> None:
    """Raises ConfigError for a port, or a name in `hosts`, that cannot be."""
    if not 0 <= port < 65536:
        raise ConfigError(f"port: expected 0 to 65535, got {port}")
    for name in hosts:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"hosts: expected names without scheme and port, as gpu-7, *.example.org, [fd00::7] or *, got {name!r}"
            )


def names_of(host: str, hosts: Sequence[str]) -> list[str]:
    """By which names a server at `host` is asked: this machine's own, the host's, and `hosts`.

    Where it listens at all addresses, and needs a token, those are any names until `hosts` has some.
    """
    if _is_everywhere(host) and not hosts:
        return ["*"]
    return list(dict.fromkeys([*LOOPBACK, _in_address(host), *hosts]))


def url_of(host: str, listener: socket.socket) -> str:
    """The address of a server that listens at `host`."""
    return f"http://{_in_address(host)}:{listener.getsockname()[1]}"


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_everywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """The address, taken before anything is loaded for it; port 0 is any free one. Raises OSError where it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        yield listener


def run_app(app: Any, listener: socket.socket, patience: float) -> None:
    """Answers by an ASGI application until the process is told to stop, and then the requests that it has.

    Those that take longer than `patience` seconds more are cut off; a second Ctrl-C cuts off all.
    """
    import uvicorn

    from plumbline.pipelines.web.http_guards import PatientServer, PromptConnection

    options = uvicorn.Config(
        app,
        http=PromptConnection,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=math.ceil(patience),
    )
    logging.getLogger("uvicorn.error").addFilter(_is_fault)
    PatientServer(options).run(sockets=[listener])


def _is_fault(record: logging.LogRecord) -> bool:
    """Whether a line of the log is about more than a request that was cut off."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


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
