"""A real S3 server for the tests: SeaweedFS on a localhost port, which checks credentials and conditional PUTs."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
from botocore.exceptions import BotoCoreError, ClientError

ACCESS_KEY, SECRET_KEY = "testkey", "testsecret"
N_EXTRA_KEYS = 32
"""Number of additional keys with their own secrets, for tests that change credentials."""
PORT_NAMES = (
    "s3.port",
    "s3.port.grpc",
    "s3.port.iceberg",
    "s3.port.lance",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
)
MAX_READY_SECONDS = 60
MIN_PORT, N_PORTS = 20_000, 12_000


class S3Server(NamedTuple):
    """The address and the credentials of the server."""

    endpoint: str
    key: str = ACCESS_KEY
    secret: str = SECRET_KEY
    filer: str = ""
    """Address that accepts objects without signatures, as files below /buckets."""

    def environment(self) -> dict[str, str]:
        """Return the standard AWS variables."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def with_extra_key(self, number: int) -> "S3Server":
        """Return the same server, with the additional key of this number for access."""
        return self._replace(key=f"otherkey{number}", secret=f"othersecret{number}")

    def filesystem(self) -> fsspec.AbstractFileSystem:
        return fsspec.filesystem(
            "s3", key=self.key, secret=self.secret, endpoint_url=self.endpoint, use_listings_cache=False
        )


@contextmanager
def run_server() -> Iterator[S3Server]:
    """Yield a running server whose only bucket is `s3-ready`; afterwards, stop it and delete its data."""
    folder = Path(tempfile.mkdtemp(prefix="plumbline-s3-"))
    ports = find_free_ports(len(PORT_NAMES))
    flags = [f"-{name}={port}" for name, port in zip(PORT_NAMES, ports, strict=True)]
    (folder / "s3.json").write_text(json.dumps({"identities": [_make_identity(server) for server in _list_keys()]}))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                Path(sys.executable).parent / "weed",
                f"-logdir={folder}",
                "mini",
                f"-dir={folder}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-admin.ui=false",
                "-webdav=false",
                "-s3.autoCreateBucket=false",
                "-volume.max=10000",  # each bucket takes a whole volume, and a small disk would allow only a few dozen
                f"-s3.config={folder}/s3.json",
                *flags,
            ],
            env={
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "HOME": str(folder),
                "TMPDIR": str(folder),
            },
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    filer = ports[PORT_NAMES.index("filer.port")]
    server = S3Server(f"http://127.0.0.1:{ports[0]}", filer=f"http://127.0.0.1:{filer}")
    try:
        _wait_until_ready(server, process, folder / "log")
        yield server
    finally:
        process.kill()  # its data is discarded
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _list_keys() -> list[S3Server]:
    server = S3Server("")
    return [server, *(server.with_extra_key(number) for number in range(N_EXTRA_KEYS))]


def _make_identity(server: S3Server) -> dict[str, Any]:
    """Return an entry for SeaweedFS's configuration that gives the server's key all permissions."""
    keys = [{"accessKey": server.key, "secretKey": server.secret}]
    return {"name": server.key, "credentials": keys, "actions": ["Admin", "Read", "List", "Tagging", "Write"]}


_port_counter = itertools.count(os.getpid() * 64)


def find_free_ports(count: int) -> list[int]:
    """Return free localhost ports below the range that the system assigns ports from.

    Test workers search at the same time, so each process starts at a different port. No port is returned twice, because
    a server that is starting may not have opened its port yet.
    """
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            candidate = MIN_PORT + next(_port_counter) % N_PORTS
            holder = stack.enter_context(socket.socket())
            try:
                holder.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            ports.append(candidate)
    return ports


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Poll until a bucket can be created and written; fail if the server's log reports an error."""
    waiting = threading.Event()
    for _ in range(MAX_READY_SECONDS * 4):
        if process.poll() is not None:
            break
        try:
            server.filesystem().mkdir("s3-ready")
            server.filesystem().pipe_file("s3-ready/probe", b"ready")
            return
        except (OSError, BotoCoreError, ClientError):
            waiting.wait(0.25)
    raise RuntimeError(f"the S3 server did not become ready: {log.read_text()[-2000:]}")
