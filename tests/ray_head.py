"""Ray nodes in separate processes, as in a user's cluster."""

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

from tests.s3 import find_free_ports

RAY_BINARY = Path(sys.executable).parent / "ray"
MARK_VARIABLE = "PLUMBLINE_TEST_NODE"
"""Environment variable that marks a node and all processes it starts."""
MAX_ATTEMPTS = 50
"""Number of attempts to find processes that a dying node has started in the meantime."""


def find_marked_processes(variable: str, mark: str) -> dict[int, str]:
    """Return the command lines of running processes whose environment has `variable` set to `mark`, by process id."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{variable}={mark}".encode() in (folder / "environ").read_bytes():
                processes[int(folder.name)] = (folder / "cmdline").read_text()
    return processes


class RayNode(NamedTuple):
    """A node of a cluster, whose processes all have `mark` in their environment."""

    mark: str

    def find_processes(self) -> dict[int, str]:
        """Return the command lines of the node's running processes, keyed by process id."""
        return find_marked_processes(MARK_VARIABLE, self.mark)

    def kill(self) -> None:
        """Kill all processes at once, as in a power failure, including any that are started meanwhile."""
        waiting = threading.Event()
        for _ in range(MAX_ATTEMPTS):
            processes = self.find_processes()
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not processes:
                return
            waiting.wait(0.1)


class RayHead(NamedTuple):
    """A running head node, with its addresses for drivers and for submitted jobs."""

    address: str
    jobs: str
    node: RayNode


def make_head_environment() -> dict[str, str]:
    path = f"{RAY_BINARY.parent}:{os.environ['PATH']}"
    return {**os.environ, "RAY_AUTH_MODE": "disabled", "NO_PROXY": "127.0.0.1,localhost", "PATH": path}


@contextmanager
def run_head(log: Path, *flags: str, address: str | None = None) -> Iterator[RayHead]:
    """Yield a running head node with a job server, and stop only this node afterwards.

    `address` may be the address of an earlier head node.
    """
    free, dashboard, agent, client = find_free_ports(4)
    port = free if address is None else int(address.rpartition(":")[2])
    command = [
        RAY_BINARY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}",
        "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
        f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}", *flags,
    ]  # fmt: skip
    node = RayNode(uuid.uuid4().hex)
    with _run_node_command(command, log, node):
        yield RayHead(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", node)


@contextmanager
def run_node(head: RayHead, log: Path, *flags: str, without: Path | None = None) -> Iterator[RayNode]:
    """Yield a running node of a head's cluster; `without` is a folder on this machine that the node cannot see."""
    node = RayNode(uuid.uuid4().hex)
    (agent,) = find_free_ports(1)
    command = [
        RAY_BINARY, "start", f"--address={head.address}", "--block", "--node-ip-address=127.0.0.1",
        f"--dashboard-agent-listen-port={agent}", *flags,
    ]  # fmt: skip
    if without is not None:
        command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(without), *command]
    try:
        with _run_node_command(command, log, node):
            yield node
    finally:
        node.kill()


@contextmanager
def _run_node_command(command: Sequence[str | Path], log: Path, node: RayNode) -> Iterator[None]:
    """Run the command of a node until the context ends, without credentials in its environment.

    The head quickly notices if the node is lost.
    """
    environment = {name: value for name, value in make_head_environment().items() if not name.startswith("AWS_")}
    environment |= {
        MARK_VARIABLE: node.mark,
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
