"""A Ray head node in a process of its own, as somebody's cluster has one."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.s3 import free_ports

RAY = Path(sys.executable).parent / "ray"
RESOURCE = "given_cluster"
"""The custom resource by which a driver can tell this cluster from a Ray of its own."""


class RayHead(NamedTuple):
    """Where drivers and submitted jobs go."""

    address: str
    jobs: str


def head_environment() -> dict[str, str]:
    """The environment of the head and of those who talk to it."""
    path = f"{RAY.parent}:{os.environ['PATH']}"
    return {**os.environ, "RAY_AUTH_MODE": "disabled", "NO_PROXY": "127.0.0.1,localhost", "PATH": path}


@contextmanager
def run_head(log: Path) -> Iterator[RayHead]:
    """Starts a head node with a job server, and ends it by its own process afterwards, never by name."""
    port, dashboard, agent, client = free_ports(4)
    with log.open("w") as stream:
        process = subprocess.Popen(
            [RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=4", f"--port={port}",
             f'--resources={{"{RESOURCE}": 1}}', "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
             f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"],
            stdout=stream, stderr=stream, start_new_session=True, env=head_environment(),
        )  # fmt: skip
    waiting = threading.Event()
    try:
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            waiting.wait(0.25)
        yield RayHead(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}")
    finally:
        process.terminate()
        process.wait(timeout=60)
