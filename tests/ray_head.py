"""Ray nodes in processes of their own, as somebody's cluster has them."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.s3 import free_ports

RAY = Path(sys.executable).parent / "ray"
MARK = "PLUMBLINE_TEST_NODE"
"""An environment variable that a node and all that it starts carry."""
LOOKS = 50
"""For what a node that is being killed has started meanwhile."""


def marked(variable: str, mark: str) -> dict[int, str]:
    """The commands of the processes that still run with this value of an environment variable."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{variable}={mark}".encode() in (folder / "environ").read_bytes():
                processes[int(folder.name)] = (folder / "cmdline").read_text()
    return processes


class RayNode(NamedTuple):
    """A machine of a cluster."""

    mark: str

    def processes(self) -> dict[int, str]:
        """The command of each of its processes that still run."""
        return marked(MARK, self.mark)

    def kill(self) -> None:
        """Ends all of it at once, as when the power fails, and what was being started meanwhile."""
        waiting = threading.Event()
        for _ in range(LOOKS):
            processes = self.processes()
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not processes:
                return
            waiting.wait(0.1)


class RayHead(NamedTuple):
    """Where drivers and submitted jobs go."""

    address: str
    jobs: str
    node: RayNode


def head_environment() -> dict[str, str]:
    """The environment of the head and of those who talk to it."""
    path = f"{RAY.parent}:{os.environ['PATH']}"
    return {**os.environ, "RAY_AUTH_MODE": "disabled", "NO_PROXY": "127.0.0.1,localhost", "PATH": path}


@contextmanager
def run_head(log: Path, *flags: str, address: str | None = None) -> Iterator[RayHead]:
    """Starts a head node with a job server, and ends it by its own process afterwards, never by name.

    `address` is one that a head of before has left.
    """
    free, dashboard, agent, client = free_ports(4)
    port = free if address is None else int(address.rpartition(":")[2])
    command = [
        RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}",
        "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
        f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}", *flags,
    ]  # fmt: skip
    node = RayNode(uuid.uuid4().hex)
    with _running(command, log, node):
        yield RayHead(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", node)


@contextmanager
def run_node(head: RayHead, log: Path, *flags: str, without: Path | None = None) -> Iterator[RayNode]:
    """Starts a node of a head's cluster, from which a folder of this machine may be hidden."""
    node = RayNode(uuid.uuid4().hex)
    (agent,) = free_ports(1)
    command = [
        RAY, "start", f"--address={head.address}", "--block", "--node-ip-address=127.0.0.1",
        f"--dashboard-agent-listen-port={agent}", *flags,
    ]  # fmt: skip
    if without is not None:
        command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(without), *command]
    try:
        with _running(command, log, node):
            yield node
    finally:
        node.kill()


@contextmanager
def _running(command: Sequence[str | Path], log: Path, node: RayNode) -> Iterator[None]:
    """A node without credentials, which is soon missed where it is lost."""
    environment = {name: value for name, value in head_environment().items() if not name.startswith("AWS_")}
    environment |= {
        MARK: node.mark,
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_initial_delay_ms": "500",
    }
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True, env=environment)
    waiting = threading.Event()
    try:
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            waiting.wait(0.25)
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)
