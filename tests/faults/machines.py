"""A cluster that loses and gains machines, including its head."""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.faults.driving import Cluster, actors, killed, workers_on
from tests.ray_head import RayNode, run_head

MIN_MACHINES, MAX_MACHINES = 2, 4
"""Limits of the number of machines besides the head."""
MAX_ATTEMPTS = 3
"""Attempts to start a machine: on a busy host, it may take longer than Ray allows."""


class Machines:
    """A head and some nodes; leaving the context ends them all."""

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
        """End all of them."""
        for node in list(self.nodes):
            self.lose(node)
        self.stack.close()

    def start(self, address: str | None = None) -> None:
        """Start a head with its own logs and the minimum number of nodes."""
        logs = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # for sockets, whose names must be short
        self.stack.callback(shutil.rmtree, logs, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        log = self.folder / f"head-{logs.name}.log"
        head = self.stack.enter_context(run_head(log, "--num-cpus=1", f"--temp-dir={logs}", address=address))
        self.stack.callback(head.node.kill)
        self.cluster = Cluster(head, logs, self.folder)
        self.fill()

    def fill(self) -> None:
        """Add machines up to the minimum."""
        while len(self.nodes) < MIN_MACHINES:
            self.join()

    def join(self) -> bool:
        """Add a machine; return False if there are enough."""
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
        """Tell a machine to stop."""
        self.nodes.pop(node).close()

    def lose(self, node: RayNode) -> None:
        """Kill a machine, like a power failure."""
        node.kill()
        self.leave(node)

    def lose_raylet(self, node: RayNode) -> None:
        """Kill a machine's raylet; its other processes end with it."""
        for pid in actors(node, "raylet/raylet"):
            killed(pid)
        self.leave(node)

    def lose_head(self) -> None:
        """Kill the head with the GCS and the progress log; the other machines no longer belong to a cluster.

        Another head takes its address, as behind a service's name. It answers the old machines, but with nothing they
        wait for.
        """
        self.cluster.head.node.kill()
        self.close()
        self.start(self.cluster.head.address)

    def workers(self) -> list[int]:
        """Return the processes of stages, the largest first, which the kernel would kill."""
        nodes = (self.cluster.head.node, *self.nodes)
        return sorted((pid for node in nodes for pid in workers_on(node)), key=_memory, reverse=True)

    def progress_logs(self) -> list[int]:
        return actors(self.cluster.head.node, "ProgressLog")


def _memory(pid: int) -> int:
    """Return the resident pages of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
