"""Azure Blob Storage for the tests: Azurite (Microsoft's emulator, installed by `make clouds`) on a localhost port."""

import base64
import hashlib
import hmac
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

from tests.s3 import find_free_ports

AZURITE_FILE = Path(__file__).parent.parent / "build/azurite/node_modules/azurite/dist/src/blob/main.js"
ACCOUNT_NAME = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's default key, published in its documentation."""
API_VERSION = "2021-08-06"
MAX_READY_SECONDS = 60


class AzureServer(NamedTuple):
    port: int

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make Azure's tools use the server."""
        endpoint = f"http://127.0.0.1:{self.port}/{ACCOUNT_NAME}"
        names = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT")
        return dict(zip(names, (ACCOUNT_NAME, ACCOUNT_KEY, endpoint), strict=True))

    def make_bucket(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        signed = (
            f"PUT{chr(10) * 12}x-ms-date:{now}\nx-ms-version:{API_VERSION}\n/{ACCOUNT_NAME}/{ACCOUNT_NAME}/{name}\n"
        )
        digest = hmac.new(base64.b64decode(ACCOUNT_KEY), f"{signed}restype:container".encode(), hashlib.sha256).digest()
        sign = f"SharedKey {ACCOUNT_NAME}:{base64.b64encode(digest).decode()}"
        headers = {"x-ms-date": now, "x-ms-version": API_VERSION, "Authorization": sign, "Content-Length": "0"}
        connection = HTTPConnection("127.0.0.1", self.port)
        connection.request("PUT", f"/{ACCOUNT_NAME}/{name}?restype=container", headers=headers)
        assert connection.getresponse().status == 201


@contextmanager
def run_azure() -> Iterator[AzureServer]:
    """Yield a running server with empty storage that exists only in memory; stop it afterwards."""
    (port,) = find_free_ports(1)
    flags = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent")
    quiet = ("--skipApiVersionCheck", "--disableTelemetry")
    process = subprocess.Popen(
        [shutil.which("node") or "node", AZURITE_FILE, *flags, *quiet], stdout=subprocess.DEVNULL
    )
    try:
        _wait_until_ready(port, process)
        yield AzureServer(port)
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    waiting = threading.Event()
    for _ in range(MAX_READY_SECONDS * 10):
        if process.poll() is not None:
            break
        try:
            HTTPConnection("127.0.0.1", port).request("GET", "/")
            return
        except OSError:
            waiting.wait(0.1)
    raise RuntimeError(f"Azurite exited, or did not answer on port {port} within {MAX_READY_SECONDS} s")
