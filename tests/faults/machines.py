"""A cluster that loses and gains machines, and can lose its head."""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.faults.driving import Cluster, kill_process, list_actors, list_workers
from tests.ray_head import RayNode, run_head

MIN_MACHINES, MAX_MACHINES = 2, 4
"""Minimum and maximum number of machines in addition to the head."""
MAX_ATTEMPTS = 3
"""Maximum number of attempts to start a machine, which may take longer than Ray allows on a busy host."""


class Machines:
    """A Ray head and some worker nodes; all are stopped when the context ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = ExitStack()
        self.nodes: dict[RayNode, ExitStack] = {}
        self.cluster: Cluster

    def __enter__(self) -> "Machines":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in list(self.nodes):
            self.lose(node)
        self.stack.close()

    def start(self, address: str | None = None) -> None:
        """Start a head with separate logs, and the minimum number of nodes."""
        logs = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Ray puts sockets here, and their paths must be short
        self.stack.callback(shutil.rmtree, logs, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        log = self.folder / f"head-{logs.name}.log"
        head = self.stack.enter_context(run_head(log, "--num-cpus=1", f"--temp-dir={logs}", address=address))
        self.stack.callback(head.node.kill)
        self.cluster = Cluster(head, logs, self.folder)
        self.add_missing_machines()

    def add_missing_machines(self) -> None:
        """Add machines until the minimum number is running."""
        while len(self.nodes) < MIN_MACHINES:
            self.add_machine()

    def add_machine(self) -> bool:
        """Add a machine; return False if the maximum is reached."""
        if len(self.nodes) == MAX_MACHINES:
            return False
        for _ in range(MAX_ATTEMPTS):
            stack = ExitStack()
            try:
                self.nodes[stack.enter_context(self.cluster.node("--num-cpus=2"))] = stack
                return True
            except AssertionError as error:
                failure = error
        raise failure

    def leave(self, node: RayNode) -> None:
        self.nodes.pop(node).close()

    def lose(self, node: RayNode) -> None:
        """Kill a machine abruptly, as in a power failure."""
        node.kill()
        self.leave(node)

    def lose_raylet(self, node: RayNode) -> None:
        """Kill a machine's raylet, which ends its other processes as well."""
        for pid in list_actors(node, "raylet/raylet"):
            kill_process(pid)
        self.leave(node)

    def lose_head(self) -> None:
        """Kill the head, including the GCS and the progress log; the other machines are then without a cluster.

        A new head is started at the same address, as if behind a service name. It replies to the old machines, but
        knows nothing about them.
        """
        self.cluster.head.node.kill()
        self.close()
        self.start(self.cluster.head.address)

    def list_workers(self) -> list[int]:
        """Return the ids of the processes that run stages, the one that uses the most memory first.

        The kernel's OOM killer would choose them in this order.
        """
        nodes = (self.cluster.head.node, *self.nodes)
        return sorted((pid for node in nodes for pid in list_workers(node)), key=_count_pages, reverse=True)

    def list_progress_logs(self) -> list[int]:
        return list_actors(self.cluster.head.node, "ProgressLog")


def _count_pages(pid: int) -> int:
    """Return a process's number of resident memory pages, or 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
