"""Hours of faults in minutes: sweeps on a real cluster and a real S3 server, hurt by a seed, that must end alike.

python -m tests.faults.soak SEED MINUTES
"""

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Set
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from fsspec.implementations.local import LocalFileSystem

from pipelines.storage import StorageConfig
from tests.environment import ROOT, set_environment
from tests.faults.driving import Driver, killed
from tests.faults.events import Event, Phase, Round, draw_rounds
from tests.faults.hook import MEMORY, NOTES, ROOM
from tests.faults.machines import Machines
from tests.faults.outcomes import assert_same_tables
from tests.faults.places import BENCHES, SHARD, Place, write_masters
from tests.faults.proxy import FaultProxy, faulty
from tests.ray_head import RayNode
from tests.s3 import MORE_KEYS, S3Server, run_server

METRICS = ("clipscore", "vqascore", "dsg")
OVERRIDES = (
    f"metric=[{','.join(METRICS)}]",
    f"shard_rows={SHARD}",
    *(f"cluster.pools.answers.{name}=1" for name in ("threads", "min_size", "max_size")),
)
HOOKED = json.dumps({"runtime_env": {"worker_process_setup_hook": "tests.faults.hook.install"}})
"""As `ray job submit` hands a runtime environment to a driver."""
LOOK_SECONDS = 0.5
MOST_TRIES = 5
"""Of a sweep that nothing disturbs any more."""
MANY = 20
"""Rounds, among which are all states of the benchmark."""
LONGEST_TRY = 900
"""Seconds; a sweep that takes longer hangs."""
TOLERANCE = 1e-5
"""Relative; other rows in a batch change the last bits."""
S3_FAULTS = {
    "s3-errors": ("429", "500", "503", "lost-500"),
    "s3-slow": ("delay",),
    "s3-resets": ("reset", "lost-reset"),
    "s3-truncated": ("truncated",),
}


class SoakError(Exception):
    """A sweep did not end as an undisturbed one."""


class Log:
    """Every event as a line of JSON, with its time."""

    def __init__(self, *streams: TextIO) -> None:
        self.streams = streams
        self.began = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def write(self, event: str, **values: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "seconds": round(self.seconds(), 2), "event": event, **values})
        for stream in self.streams:
            print(line, file=stream, flush=True)


class Soak:
    """What all rounds share: machines, the S3 server with a faulty network before it, and credentials that expire."""

    def __init__(self, seed: int, folder: Path, server: S3Server, proxy: FaultProxy, endpoint: str, log: Log) -> None:
        self.seed = seed
        self.folder = folder
        self.server = server
        self.proxy = proxy
        self.endpoint = endpoint
        self.log = log
        self.masters = write_masters(folder / "masters")
        self.credentials = folder / "credentials"
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.undisturbed: dict[str, str] = {}
        self.seconds_undisturbed: dict[str, float] = {}
        self.cells_of: dict[str, int] = {}
        self.events: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.seconds_lost = 0.0
        self.key = 0
        os.environ[NOTES] = str(self.notes)  # the machines have it from here
        self.give_credentials()

    def give_credentials(self) -> None:
        """Those that are valid now, as something outside of the sweep puts them into its file."""
        draft = self.credentials.with_suffix(".draft")
        now = self.server.other(self.key)
        draft.write_text(f"[default]\naws_access_key_id = {now.key}\naws_secret_access_key = {now.secret}\n")
        draft.replace(self.credentials)

    def expire_credentials(self) -> None:
        self.key = (self.key + 1) % MORE_KEYS
        self.proxy.valid = self.server.other(self.key).key

    def environment(self) -> dict[str, str]:
        """A driver's, besides what all have."""
        return {
            "AWS_SHARED_CREDENTIALS_FILE": str(self.credentials),
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "RAY_JOB_CONFIG_JSON": HOOKED,
            "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
        }

    def place(self, kind: str, name: str) -> Place:
        """A place for a round of its own."""
        if kind == "folder":
            url = str(self.folder / name)
            return Place(fs=LocalFileSystem(), url=url, storage=StorageConfig(), masters=self.masters)
        fs = self.server.filesystem()
        bucket = f"soak-{name}"
        fs.mkdir(bucket)
        storage = StorageConfig(
            endpoint_url=self.server.endpoint, region="us-east-1", key=self.server.key, secret=self.server.secret
        )
        return Place(fs=fs, url=f"s3://{bucket}", storage=storage, masters=self.masters)


class Disturbed:
    """A sweep over one state of a benchmark, started again until it is complete, and what befalls it meanwhile."""

    def __init__(self, soak: Soak, machines: Machines, place: Place, phase: Phase) -> None:
        self.soak = soak
        self.machines = machines
        self.place = place
        self.bench = phase.bench
        self.pending = list(phase.events)
        self.standing = place.cells()
        self.before = len(self.standing)
        self.due: dict[Event, float] = {}
        self.ending: list[tuple[float, Event]] = []
        self.rivals: list[tuple[Driver, ExitStack]] = []

    def run(self) -> None:
        """Until a try is complete; raises SoakError where none is though nothing disturbs it any more."""
        quiet = 0
        try:
            while (code := self._try()) != 0:
                quiet = quiet + 1 if not self.pending and not self.ending else 0
                if quiet == MOST_TRIES:
                    raise SoakError(f"exit code {code} at {MOST_TRIES} undisturbed tries")
            for event in self.pending:
                self.soak.log.write("missed", kind=event.kind)
            self._join_rivals()
        finally:
            self._settle()

    def _try(self) -> int:
        """One driver, from its start to its end; its exit code."""
        soak = self.soak
        self.machines.fill()
        soak.totals["tries"] += 1
        with self._sweep() as job:
            self._watch(job)
            code = int(job.process.returncode)
            soak.log.write("ended", code=code, printed=job.printed.name, last=_last_line(job.printed))
        self._count_again()
        return code

    def _sweep(self) -> AbstractContextManager[Driver]:
        place, environment = self.place, self.soak.environment()
        return self.machines.cluster.sweep(place.bench, place.store.url, *OVERRIDES, environment=environment)

    def _watch(self, job: Driver) -> None:
        """Has events come when they are due, until the driver has ended."""
        waiting, ends = threading.Event(), time.monotonic() + LONGEST_TRY
        while not job.ended():
            if time.monotonic() > ends:
                raise SoakError(f"a sweep has not ended for {LONGEST_TRY} s; see {job.printed}")
            self._end_what_lasts()
            stand = len(self.place.cells()) - self.before if self.pending else 0
            for event in [event for event in self.pending if self._is_due(event, stand)]:
                if not job.ended() and self._happens(event, job):
                    self.pending.remove(event)
            waiting.wait(LOOK_SECONDS)

    def _is_due(self, event: Event, stand: int) -> bool:
        """Whether its share of the cells stands, and has for as long as it pauses."""
        if event not in self.due:
            if stand < event.share * self.soak.cells_of[self.bench]:
                return False
            self.due[event] = time.monotonic() + event.pause
        return time.monotonic() >= self.due[event]

    def _happens(self, event: Event, job: Driver) -> bool:
        """Has it come; False where there is nothing yet that it could befall."""
        befall = getattr(self, "_" + event.kind.replace("-", "_"), self._s3_faults)
        victim = befall(event, job)
        if victim is None:
            return False
        self.soak.events[event.kind] += 1
        self.soak.log.write(event.kind, victim=victim, cells=len(self.place.cells()) - self.before)
        return True

    def _driver_killed(self, event: Event, job: Driver) -> str | None:
        job.kill()
        return f"pid {job.process.pid}"

    def _flipped_bits(self, event: Event, job: Driver) -> str | None:
        """In up to three cells between two runs: those that came last, which the next run most likely reads."""
        if not self.place.cells():
            return None
        job.kill()
        cells = self.place.cells()
        chosen = sorted(cells, key=lambda path: cells[path][1])[-1 - int(event.seconds) % 3 :]
        for cell in chosen:
            self.place.flip(cell, event.choice)
        self.standing = self.place.cells()
        return " ".join(chosen)

    def _worker_killed(self, event: Event, job: Driver) -> str | None:
        workers = self.machines.workers()
        return _kill(workers[int(event.choice * len(workers))]) if workers else None

    def _worker_out_of_memory(self, event: Event, job: Driver) -> str | None:
        """The largest worker is killed, as by the kernel."""
        workers = self.machines.workers()
        return _kill(workers[0]) if workers else None

    def _model_out_of_memory(self, event: Event, job: Driver) -> str | None:
        (self.soak.notes / MEMORY).touch()
        return "the next batch"

    def _progress_log_killed(self, event: Event, job: Driver) -> str | None:
        logs = self.machines.progress_logs()
        return _kill(logs[0]) if logs else None

    def _raylet_killed(self, event: Event, job: Driver) -> str | None:
        """Another machine joins in its place."""
        node = self._node(event)
        self.machines.lose_raylet(node)
        self.machines.join()
        return f"machine {node.mark}"

    def _node_lost(self, event: Event, job: Driver) -> str | None:
        """Another machine joins in its place."""
        node = self._node(event)
        self.machines.lose(node)
        self.machines.join()
        return f"machine {node.mark}"

    def _node_leaves(self, event: Event, job: Driver) -> str | None:
        if len(self.machines.nodes) < 2:
            return None
        self.machines.leave(node := self._node(event))
        return f"machine {node.mark}, {len(self.machines.nodes)} left"

    def _node_joins(self, event: Event, job: Driver) -> str | None:
        return f"{len(self.machines.nodes)} machines" if self.machines.join() else "enough machines"

    def _node(self, event: Event) -> RayNode:
        nodes = list(self.machines.nodes)
        return nodes[int(event.choice * len(nodes))]

    def _head_lost(self, event: Event, job: Driver) -> str | None:
        """The machine of driver, progress log and GCS is lost; the driver ends by itself, and the next has another."""
        self.machines.lose_head()
        return "the whole cluster"

    def _rival(self, event: Event, job: Driver) -> str | None:
        stack = ExitStack()
        self.rivals.append((stack.enter_context(self._sweep()), stack))
        return f"pid {self.rivals[-1][0].process.pid}"

    def _s3_faults(self, event: Event, job: Driver) -> str | None:
        self.soak.proxy.faults = S3_FAULTS[event.kind]
        self.soak.proxy.share = 0.3 + 0.6 * event.choice
        self._lasts(event)
        return f"{self.soak.proxy.share:.2f} of the calls for {event.seconds} s"

    def _credentials_expire(self, event: Event, job: Driver) -> str | None:
        """At once new ones stand in the file, or only after some seconds."""
        self.soak.expire_credentials()
        if event.choice < 0.5:
            self.soak.give_credentials()
            return "new ones are there"
        self._lasts(event)
        return f"new ones come in {event.seconds} s"

    def _disk_full(self, event: Event, job: Driver) -> str | None:
        self._room.parent.mkdir(exist_ok=True)
        self._room.write_text("0")
        return "the next cell"

    @property
    def _room(self) -> Path:
        return Path(self.place.path) / "store" / ROOM

    def _lasts(self, event: Event) -> None:
        self.ending.append((time.monotonic() + event.seconds, event))

    def _end_what_lasts(self, *, now: float | None = None) -> None:
        moment = time.monotonic() if now is None else now
        for ends, event in [entry for entry in self.ending if entry[0] <= moment]:
            self.ending.remove((ends, event))
            if event.kind == "credentials-expire":
                self.soak.give_credentials()
            elif not any(other.kind in S3_FAULTS for _, other in self.ending):
                self.soak.proxy.share = 0.0
            self.soak.log.write("over", kind=event.kind)

    def _settle(self) -> None:
        """Nothing that befell this sweep befalls the next one."""
        self._end_what_lasts(now=float("inf"))
        self._end_rivals()
        for note in (self.soak.notes / MEMORY, self._room):
            note.unlink(missing_ok=True)

    def _join_rivals(self) -> None:
        self._end_what_lasts(now=float("inf"))
        for rival, _ in self.rivals:
            rival.process.wait(LONGEST_TRY)
            self.soak.log.write("rival ended", code=rival.process.returncode, last=_last_line(rival.printed))

    def _end_rivals(self) -> None:
        while self.rivals:
            self.rivals.pop()[1].close()

    def _count_again(self) -> None:
        """Counts the committed cells that were computed again, which only what is damaged or stale may be."""
        now = self.place.cells()
        again = [path for path, state in self.standing.items() if path in now and now[path] != state]
        gone = [path for path in self.standing if path not in now]
        self.soak.totals["cells"] += len(now) - len(self.standing)
        self.soak.totals["cells_again"] += len(again)
        self.standing = now
        if gone:
            raise SoakError(f"committed cells are gone: {gone}")


def _kill(pid: int) -> str | None:
    return f"pid {pid}" if killed(pid) else None


def _last_line(printed: Path) -> str:
    lines = printed.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def run_undisturbed(soak: Soak, machines: Machines, benches: Set[str]) -> None:
    """These states of the benchmark without a fault, one after the other on one store."""
    place = soak.place("folder", "undisturbed")
    for bench in [bench for bench in BENCHES if bench in benches]:
        place.show(bench)
        known, began = len(place.cells()), time.monotonic()
        Disturbed(soak, machines, place, Phase(bench, ())).run()
        soak.undisturbed[bench] = place.newest()
        soak.cells_of[bench] = len(place.cells()) - known
        soak.seconds_undisturbed[bench] = time.monotonic() - began
        soak.log.write("undisturbed", bench=bench, cells=soak.cells_of[bench])


def run_round(soak: Soak, machines: Machines, place: Place, drawn: Round) -> None:
    """Its sweeps, each compared with the undisturbed one; at the end `jobs.gc` leaves nothing to clean."""
    for phase in drawn.phases:
        soak.log.write("sweep", store=place.store.url, bench=phase.bench, events=[list(e) for e in phase.events])
        place.show(phase.bench)
        began = time.monotonic()
        Disturbed(soak, machines, place, phase).run()
        soak.seconds_lost += max(0.0, time.monotonic() - began - soak.seconds_undisturbed[phase.bench])
        _assert_equal(soak, place, phase.bench)
        soak.totals["sweeps"] += 1
    place.collect_garbage()
    _assert_equal(soak, place, phase.bench)
    if left := place.leftovers():
        raise SoakError(f"left in the store: {left}")


def _assert_equal(soak: Soak, place: Place, bench: str) -> None:
    assert_same_tables(place.newest(), soak.undisturbed[bench], rtol=TOLERANCE, storage=place.storage)
    soak.log.write("equal", bench=bench)


def run_soak(soak: Soak, minutes: float, most_rounds: int | None) -> str:
    """Rounds until the time is over, and one at least; what the summary says of them."""
    place = None
    with Machines(soak.folder / "machines") as machines:
        try:
            drawn_first = islice(draw_rounds(soak.seed), most_rounds or MANY)
            run_undisturbed(soak, machines, {phase.bench for drawn in drawn_first for phase in drawn.phases})
            for number, drawn in enumerate(draw_rounds(soak.seed)):
                if number == most_rounds or (number and soak.log.seconds() > 60 * minutes):
                    return "equal"
                place = soak.place(drawn.store, f"round-{number}")
                run_round(soak, machines, place, drawn)
                soak.totals["rounds"] += 1
        except Exception:
            soak.log.write("failed", kept=str(soak.folder), reason=traceback.format_exc())
            if place is not None and place.url.startswith("s3://"):
                place.fs.get(place.path, str(soak.folder / "kept"), recursive=True)
        return "failed"


def main(argv: list[str] | None = None) -> int:
    """Prints the log and the summary; 0 where all tables were equal."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--rounds", type=int, help="at most so many, however long it takes")
    parser.add_argument("--folder", type=Path, help="a new folder for logs and stores; build/soak/SEED by default")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    set_environment()
    folder = (given.folder or ROOT / "build" / "soak" / str(given.seed)).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "log.jsonl").open("w") as file, run_server() as server:
        log = Log(sys.stdout, file)
        proxy = FaultProxy(server, given.seed, share=0.0)
        with faulty(proxy) as endpoint:
            soak = Soak(given.seed, folder, server, proxy, endpoint, log)
            proxy.valid = server.other(0).key
            result = run_soak(soak, given.minutes, given.rounds)
        log.write("summary", **_summary(soak, result))
    return 0 if result == "equal" else 1


def _summary(soak: Soak, result: str) -> Mapping[str, Any]:
    return {
        "seed": soak.seed,
        "rounds": soak.totals["rounds"],
        "sweeps": soak.totals["sweeps"],
        "tries": soak.totals["tries"],
        "events": dict(sorted(soak.events.items())),
        "calls": dict(soak.proxy.counts),
        "cells": soak.totals["cells"],
        "cells_again": soak.totals["cells_again"],
        "seconds_lost": round(soak.seconds_lost),
        "result": result,
    }


if __name__ == "__main__":
    sys.exit(main())
