"""A cluster whose machines are lost and join, its head too."""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.faults.driving import Cluster, actors, killed, workers_on
from tests.ray_head import RayNode, run_head

FEWEST, MOST = 2, 4
"""Machines besides the head."""
STARTS = 3
"""Of a machine: on a busy host one may not start within the time that Ray allows it."""


class Machines:
    """A head and some nodes; a context whose end ends them all."""

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
        """Ends all of them."""
        for node in list(self.nodes):
            self.lose(node)
        self.stack.close()

    def start(self, address: str | None = None) -> None:
        """A head with logs of its own and the fewest nodes."""
        logs = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # for sockets, whose names must be short
        self.stack.callback(shutil.rmtree, logs, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        log = self.folder / f"head-{logs.name}.log"
        head = self.stack.enter_context(run_head(log, "--num-cpus=1", f"--temp-dir={logs}", address=address))
        self.stack.callback(head.node.kill)
        self.cluster = Cluster(head, logs, self.folder)
        self.fill()

    def fill(self) -> None:
        """Has machines join while there are too few."""
        while len(self.nodes) < FEWEST:
            self.join()

    def join(self) -> bool:
        """One more machine; False where there are enough."""
        if len(self.nodes) == MOST:
            return False
        for _ in range(STARTS):
            stack = ExitStack()
            try:
                self.nodes[stack.enter_context(self.cluster.node("--num-cpus=2"))] = stack
                return True
            except AssertionError as error:
                failure = error
        raise failure

    def leave(self, node: RayNode) -> None:
        """A machine is told to stop."""
        self.nodes.pop(node).close()

    def lose(self, node: RayNode) -> None:
        """A machine's power fails."""
        node.kill()
        self.leave(node)

    def lose_raylet(self, node: RayNode) -> None:
        """A machine's raylet is killed, and what is left there goes with it."""
        for pid in actors(node, "raylet/raylet"):
            killed(pid)
        self.leave(node)

    def lose_head(self) -> None:
        """The head's power fails, with the GCS and the progress log; the others are of no cluster any more.

        Another head takes its address, as behind a service's name: to those of the old cluster it answers, but not what
        they wait for.
        """
        self.cluster.head.node.kill()
        self.close()
        self.start(self.cluster.head.address)

    def workers(self) -> list[int]:
        """The processes of stages, the largest first, as the kernel looks for one to kill."""
        nodes = (self.cluster.head.node, *self.nodes)
        return sorted((pid for node in nodes for pid in workers_on(node)), key=_memory, reverse=True)

    def progress_logs(self) -> list[int]:
        return actors(self.cluster.head.node, "ProgressLog")


def _memory(pid: int) -> int:
    """Resident pages; none of a process that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
