"""A reward service in its own process with its own Ray, and clients that send trainers' requests."""

import base64
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import requests

from tests.bench_of import read_image_rows, read_prompt_rows
from tests.ray_head import MARK_VARIABLE, RayNode
from tests.s3 import find_free_ports

ROOT = Path(__file__).parent.parent
TOKEN = "a-token-that-nothing-may-show"


class RunningService(NamedTuple):
    """A running reward service: its port, its log, the process that runs its command, and its own Ray."""

    port: int
    log: Path
    process: "subprocess.Popen[bytes]"
    node: RayNode

    @property
    def url(self) -> str:
        """Address that contains the token as a password, so that trainers' unmodified clients send the token."""
        return f"http://trainer:{TOKEN}@127.0.0.1:{self.port}"

    def replicas(self) -> list[int]:
        """Return the ids of the processes that hold the models."""
        return [pid for pid, command in self.node.find_processes().items() if "ServeReplica" in command]


@contextmanager
def run_service(log: Path, *words: str) -> Iterator[RunningService]:
    """Yield the service that `plumbline serve` runs on a free port, and stop it afterwards."""
    node, (port,) = RayNode(uuid.uuid4().hex), find_free_ports(1)
    folder = tempfile.mkdtemp(prefix="serve")  # a short path, because Ray puts sockets into it
    command = [sys.executable, "-m", "jobs.serve", "models=shapes", f"port={port}", *words]
    environment = {**os.environ, MARK_VARIABLE: node.mark, "PLUMBLINE_TOKEN": TOKEN, "RAY_TMPDIR": folder}
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment, cwd=ROOT)
    waiting = threading.Event()
    try:
        while b"; GET /health" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            waiting.wait(0.1)
        yield RunningService(port, log, process, node)
    finally:
        process.terminate()
        process.wait(timeout=60)
        node.kill()
        shutil.rmtree(folder, ignore_errors=True)


class Pair(NamedTuple):
    image: bytes
    prompt: str


def select_first_pairs(count: int, generators: Sequence[str] = ("atlas",)) -> list[Pair]:
    """Return the first `count` images of each of these generators in the embedded benchmark, with their prompts."""
    texts = {row["prompt_id"]: row["text"] for row in read_prompt_rows(256)}
    rows = [row for generator in generators for row in read_image_rows(generator, count)]
    return [Pair(_get_bytes(row["image"]), texts[row["prompt_id"]]) for row in rows]


def _get_bytes(image: bytes | dict[str, bytes]) -> bytes:
    return image["bytes"] if isinstance(image, dict) else image


def request_scores(session: requests.Session, url: str, pairs: Sequence[Pair]) -> list[dict[str, float | None]]:
    """Send the pairs in one request in the service's own JSON format; return each image's scores, keyed by metric.

    Only the statuses 429 and 503 are retried.
    """
    form = {
        "images": [base64.b64encode(pair.image).decode() for pair in pairs],
        "prompts": [pair.prompt for pair in pairs],
    }
    while (response := session.post(f"{url}/score", json=form, timeout=120)).status_code in (429, 503):
        threading.Event().wait(float(response.headers["Retry-After"]))
    response.raise_for_status()
    scores: list[dict[str, float | None]] = response.json()["scores"]
    return scores
