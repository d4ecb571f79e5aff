"""Runs a command and measures all processes that it starts: python -m tests.benchmarks.peers.watching SPECIFICATION.

The specification is JSON with the fields of `Specification`; the output is JSON with the fields of `Measured`. The
process adopts the orphans among its descendants, so those that detach themselves are measured, too, and are ended.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.benchmarks.peers.outputs import count_scores
from tests.benchmarks.size import ROOT

POLL_SECONDS = 0.25
POLLS_PER_PSS = 8
"""Number of polls between measurements of shared memory, which take longer than the others."""
GRACE_SECONDS = 15.0
"""Seconds for detached processes to end after the command."""
PR_SET_CHILD_SUBREAPER = 36
CLOCK_TICKS, PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Specification:
    command: Sequence[str]
    output: str
    """Folder for the command's scores."""
    log: str
    """File for what the command prints."""
    limit: float
    """Seconds after which all processes are killed."""
    kill_at: int | None = None
    """Number of scores in the output at which all processes are killed."""
    kill_after: float | None = None
    """Seconds after which all processes are killed if there are fewer scores than `kill_at`."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Measured:
    seconds: float
    first_seconds: float | None
    """Seconds until the first score was in a file."""
    cpu_seconds: float
    rss_bytes: int
    """Highest sum of the processes' resident memory; memory that processes share counts for each of them."""
    pss_bytes: int
    """Highest sum in which shared memory counts once."""
    exit_code: int | None
    """Exit code, or None if the processes were killed."""
    killed_at: int | None
    """Number of scores in the output when the processes were killed as intended."""
    exceeded: bool
    """True if the command took longer than its limit."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    parent: int
    cpu_seconds: float
    rss_bytes: int


class ProcessTree:
    """The descendants of this process, with the highest memory and the processor time that was seen of them."""

    def __init__(self) -> None:
        self.cpu_by_process: dict[tuple[int, int], float] = {}
        self.rss_bytes = self.pss_bytes = self.polls = 0

    def poll(self) -> list[int]:
        """Return the ids of all running descendants, and add what they use."""
        states = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with suppress(OSError):
                    states[int(entry.name)] = self._read(int(entry.name))
        found: list[int] = []
        parents = {os.getpid()}
        while parents:
            parents = {process for process, (state, _) in states.items() if state.parent in parents}
            found += parents
        for process in found:
            state, started = states[process]
            self.cpu_by_process[process, started] = state.cpu_seconds
        self.rss_bytes = max(self.rss_bytes, sum(states[process][0].rss_bytes for process in found))
        if self.polls % POLLS_PER_PSS == 0:
            self.pss_bytes = max(self.pss_bytes, sum(map(_read_pss, found)))
        self.polls += 1
        return [process for process in found if states[process][0].rss_bytes]  # zombies have no memory

    def _read(self, process: int) -> tuple[ProcessState, int]:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
        return ProcessState(int(fields[1]), cpu, int(fields[21]) * PAGE_BYTES), int(fields[19])

    def kill(self) -> None:
        """Kill all descendants, and wait until there are none."""
        while running := self.poll():
            for process in running:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)


def _read_pss(process: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def watch(told: Specification) -> Measured:
    """Run the command to its end, or until it is killed, and return what was measured."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    tree, output, first, killed_at = ProcessTree(), Path(told.output), None, None
    began = time.monotonic()
    with Path(told.log).open("wb") as log:
        process = subprocess.Popen(
            told.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
            env={**os.environ, **told.environment}, start_new_session=True,
        )  # fmt: skip
    while process.poll() is None:
        tree.poll()
        passed = time.monotonic() - began
        if first is None or told.kill_at is not None:
            scored = count_scores(output)
            if scored and first is None:
                first = passed
            late = told.kill_after is not None and passed > told.kill_after
            if told.kill_at is not None and (scored >= told.kill_at or late):
                killed_at = scored
                break
        if passed > told.limit:
            break
        time.sleep(POLL_SECONDS)
    seconds, code = time.monotonic() - began, process.poll()
    if first is None and code is not None and count_scores(output):
        first = seconds
    while code is not None and tree.poll() and time.monotonic() - began < seconds + GRACE_SECONDS:
        time.sleep(POLL_SECONDS)
    tree.kill()
    return Measured(
        seconds=seconds, first_seconds=first, cpu_seconds=sum(tree.cpu_by_process.values()), rss_bytes=tree.rss_bytes,
        pss_bytes=tree.pss_bytes, exit_code=code, killed_at=killed_at,
        exceeded=code is None and killed_at is None,
    )  # fmt: skip


def watch_in_process(told: Specification) -> Measured:
    """Return what a watching process of its own measures, so that only the command's processes are among them."""
    words = [sys.executable, "-m", "tests.benchmarks.peers.watching", json.dumps(asdict(told))]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Measured(**json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(watch(Specification(**json.loads(sys.argv[1]))))))
