"""Disturbs sweeps on a real cluster and S3 server with random faults; their results must not be affected.

python -m tests.faults.soak SEED MINUTES
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, TextIO

import pyarrow.parquet as pq

from plumbline.pipelines.base.storage import StorageConfig
from tests.environment import ROOT, set_environment
from tests.faults.driving import Driver, kill_process
from tests.faults.events import DAMAGE_EVENTS, Event, SoakRound, SweepPhase, draw_rounds
from tests.faults.hook import DISK_FULL_FILE, MEMORY_NOTE, NOTES_VARIABLE
from tests.faults.machines import Machines
from tests.faults.outcomes import assert_same_counts, assert_same_tables
from tests.faults.places import BENCH_STATES, PROMPTS_FILE, SHARD_ROWS, DamagedFile, RoundStorage, write_masters
from tests.faults.proxy import FaultProxy, run_proxy
from tests.histories.damage import DRAWN_DAMAGE_WAYS, damage_images, find_kind
from tests.histories.painter import PAINTER, Painter
from tests.operators.models.endpoint import KEY, KEY_VARIABLE
from tests.ray_head import RayNode, make_head_environment
from tests.s3 import N_EXTRA_KEYS, S3Server, run_server

METRICS = ("clipscore", "vqascore", "dsg")
OVERRIDE_OPTIONS = (
    f"metric=[{','.join(METRICS)}]",
    f"shard_rows={SHARD_ROWS}",
    *(f"cluster.pools.answers.{name}=1" for name in ("threads", "min_size", "max_size")),
)
REWARD_OPTION = f"reward={{weights: {{{', '.join(f'{metric}: 1' for metric in METRICS)}}}}}"
"""Option for rewards in the metrics' own units, because noise cannot be estimated from so few images."""
RUNTIME_ENVIRONMENT = json.dumps({"runtime_env": {"worker_process_setup_hook": "tests.faults.hook.install"}})
"""A runtime environment, in the format that `ray job submit` passes to a driver."""
POLL_SECONDS = 0.5
TRACEBACK_PATTERN = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)
"""Matches tracebacks printed by a job itself; lines that Ray relays from workers start with `(raylet)`."""
MIN_ROUNDS = 20
"""Number of rounds after which every state of the benchmark has occurred at least once."""
MAX_TRY_SECONDS = 900
"""Number of seconds after which a sweep is considered to hang."""
TOLERANCE = 1e-5
"""Relative tolerance, because the last bits of scores depend on the other rows in a batch."""
S3_FAULTS = {
    "s3-errors": ("429", "500", "503", "lost-500"),
    "s3-slow": ("delay",),
    "s3-resets": ("reset", "lost-reset"),
    "s3-truncated": ("truncated",),
}


class SoakError(Exception):
    """Error raised if a disturbed sweep does not end like an undisturbed sweep."""


class EventLog:
    """Log of all events, with one line of JSON per event that includes its time."""

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
    """State shared by all rounds: machines, the S3 server behind a faulty network, and credentials that expire."""

    def __init__(
        self, seed: int, folder: Path, server: S3Server, proxy: FaultProxy, endpoint: str, log: EventLog
    ) -> None:
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
        self.undisturbed: dict[tuple[str, str], str] = {}
        """Address of the undisturbed run, by state of the benchmark and options of the sweep."""
        self.seconds_undisturbed: dict[tuple[str, str], float] = {}
        self.cells_of: dict[tuple[str, str], int] = {}
        self.events: Counter[str] = Counter()
        """Number of events that had an effect, by kind."""
        self.idle: Counter[str] = Counter()
        """Number of events that occurred without an effect, by kind."""
        self.totals: Counter[str] = Counter()
        self.seconds_lost = 0.0
        self.key = 0
        os.environ[NOTES_VARIABLE] = str(self.notes)  # inherited by the machines
        self.write_credentials()

    def write_credentials(self) -> None:
        """Write the currently valid credentials to the file that the sweep reads, as an external program would."""
        draft = self.credentials.with_suffix(".draft")
        now = self.server.with_extra_key(self.key)
        draft.write_text(f"[default]\naws_access_key_id = {now.key}\naws_secret_access_key = {now.secret}\n")
        draft.replace(self.credentials)

    def expire_credentials(self) -> None:
        self.key = (self.key + 1) % N_EXTRA_KEYS
        self.proxy.valid = self.server.with_extra_key(self.key).key

    def environment(self) -> dict[str, str]:
        """Return the environment variables that a soak's driver needs in addition to the normal environment."""
        return {
            "AWS_SHARED_CREDENTIALS_FILE": str(self.credentials),
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "RAY_JOB_CONFIG_JSON": RUNTIME_ENVIRONMENT,
            "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
        }

    def create_storage(self, kind: str, name: str) -> RoundStorage:
        """Create a folder or bucket called `name` for a round's benchmark and store; `kind` is "folder" or "s3"."""
        if kind == "folder":
            return RoundStorage(StorageConfig().locate(str(self.folder / name)), self.masters)
        bucket = f"soak-{name}"
        self.server.filesystem().mkdir(bucket)
        storage = StorageConfig(
            endpoint_url=self.server.endpoint, region="us-east-1", key=self.server.key, secret=self.server.secret
        )
        return RoundStorage(storage.locate(f"s3://{bucket}"), self.masters)


class DisturbedSweep:
    """A sweep over one state of a benchmark; faults disturb it, and it is restarted until it is complete."""

    def __init__(self, soak: Soak, machines: Machines, place: RoundStorage, phase: SweepPhase) -> None:
        self.soak = soak
        self.machines = machines
        self.place = place
        self.phase = phase
        self.pending = list(phase.events)
        self.known_cells = place.read_cells()
        self.before = len(self.known_cells)
        self.due: dict[Event, float] = {}
        self.ending: list[tuple[float, Event]] = []
        self.rivals: list[tuple[Driver, ExitStack]] = []
        self.disturbed = False
        """True if an event occurred during the current attempt."""
        self.damaged: list[DamagedFile] = []
        self.effect_checks: list[tuple[str, Callable[[], bool]]] = []
        """Kinds of the events so far, each with a function that returns True if the event had an effect."""

    def run(self) -> None:
        """Run until an attempt is complete, and again whenever the finished store is damaged; wait for rival sweeps.

        Raises SoakError if an attempt fails without a fault, does not end in time, or prints a traceback.
        """
        try:
            self._run_until_complete()
            while self._damage_finished_store():
                self._run_until_complete()
            for event in self.pending:
                self.soak.log.write("missed", kind=event.kind)
            self._wait_for_rival_sweeps()
        finally:
            self._finish_attempt()

    def _run_until_complete(self) -> None:
        while (code := self._run_once()) != 0:
            if not self.disturbed:
                raise SoakError(f"an undisturbed sweep ended with exit code {code}")

    def _damage_finished_store(self) -> bool:
        """Apply pending damage to files that exist only after a sweep; return False if nothing was damaged."""
        due = [
            event for event in self.pending if event.kind in DAMAGE_EVENTS and self._trigger_damage(event) is not None
        ]
        for event in due:
            self._record_event(event, self.damaged[-1].path)
        self.pending = [event for event in self.pending if event not in due]
        return bool(due)

    def _run_once(self) -> int:
        """Run one driver from start to end, and return its exit code."""
        soak = self.soak
        self.machines.add_missing_machines()
        soak.totals["tries"] += 1
        self.disturbed = bool(self.ending or self.rivals)
        with self._sweep() as job:
            self._watch(job)
            code = int(job.process.returncode)
            soak.log.write("ended", code=code, printed=job.printed.name, last=_read_last_line(job.printed))
        require_no_traceback(job.printed)
        self._count_recomputed()
        return code

    def _sweep(self) -> AbstractContextManager[Driver]:
        place, given = self.place, (*OVERRIDE_OPTIONS, *self.phase.options.split())
        return self.machines.cluster.sweep(
            place.bench, place.store.place.url, *given, environment=self.soak.environment()
        )

    def _watch(self, job: Driver) -> None:
        """Trigger events when they are due, until the driver ends."""
        waiting, ends = threading.Event(), time.monotonic() + MAX_TRY_SECONDS
        while not job.has_ended():
            if time.monotonic() > ends:
                raise SoakError(f"a sweep has not ended after {MAX_TRY_SECONDS} s; see {job.printed}")
            self._end_due_events()
            n_committed = len(self.place.read_cells()) - self.before if self.pending else 0
            for event in [event for event in self.pending if self._is_due(event, n_committed)]:
                if not job.has_ended() and self._trigger(event, job):
                    self.pending.remove(event)
            waiting.wait(POLL_SECONDS)

    def _is_due(self, event: Event, n_committed: int) -> bool:
        """Return True if the event's fraction of the cells is committed and the event's pause has passed since then."""
        if event not in self.due:
            if n_committed < event.share * self.soak.cells_of[self.phase.bench, self.phase.options]:
                return False
            self.due[event] = time.monotonic() + event.pause
        return time.monotonic() >= self.due[event]

    def _trigger(self, event: Event, job: Driver) -> bool:
        """Trigger an event; return False if it has no target yet.

        The methods `_trigger_KIND` return the target of the event, or None if there is none.
        """
        befall = getattr(
            self,
            "_trigger_" + event.kind.replace("-", "_"),
            self._trigger_damage if event.kind in DAMAGE_EVENTS else self._trigger_s3_faults,
        )
        victim = befall(event, job)
        if victim is None:
            return False
        self._record_event(event, victim)
        return True

    def _record_event(self, event: Event, victim: str) -> None:
        self.disturbed = True
        self.effect_checks.append((event.kind, self._make_effect_check(event)))
        self.soak.log.write(event.kind, victim=victim, cells=len(self.place.read_cells()) - self.before)

    def _make_effect_check(self, event: Event) -> Callable[[], bool]:
        """Return a function that checks, after the sweep, whether the event had an effect.

        For damage, the effect is that a file or a run was written again.
        """
        proxy, refused, badly = self.soak.proxy, self.soak.proxy.counts["400"], self._count_faulty_responses()
        if event.kind in S3_FAULTS:
            return lambda: self._count_faulty_responses() > badly
        if event.kind == "credentials-expire":
            return lambda: proxy.counts["400"] > refused
        if event.kind == "model-out-of-memory":
            return lambda: not (self.soak.notes / MEMORY_NOTE).exists()
        if event.kind == "disk-full":
            return lambda: not self._disk_full_file.exists()
        if event.kind in DAMAGE_EVENTS:
            damaged, newest = self.damaged[-1], self.place.find_newest()
            return lambda: self.place.find_newest() != newest or self.place.read(damaged.path) != damaged.content
        return lambda: True

    def _count_faulty_responses(self) -> int:
        return sum(count for fault, count in self.soak.proxy.counts.items() if fault not in ("none", "400"))

    def _count_effects(self) -> None:
        while self.effect_checks:
            kind, bit = self.effect_checks.pop()
            (self.soak.events if bit() else self.soak.idle)[kind] += 1

    def _trigger_driver_killed(self, event: Event, job: Driver) -> str | None:
        job.kill()
        return f"pid {job.process.pid}"

    def _trigger_damage(self, event: Event, job: Driver | None = None) -> str | None:
        """Damage one of the newest files of the event's kind; return its path, or None if no file was damaged.

        The next run is most likely to read the newest files. If a driver is running, it is killed first.
        """
        kind = event.kind.removeprefix("damaged-").replace("-", " ")
        if not any(find_kind(path) == kind for path in self.place.list_files()):
            return None
        if job is not None:
            job.kill()
        damaged = self.place.damage(kind, event.choice)
        if damaged is None:
            return None
        self.damaged.append(damaged)
        self.known_cells = self.place.read_cells()
        return damaged.path

    def _trigger_worker_killed(self, event: Event, job: Driver) -> str | None:
        workers = self.machines.list_workers()
        return _kill_process(workers[int(event.choice * len(workers))]) if workers else None

    def _trigger_worker_out_of_memory(self, event: Event, job: Driver) -> str | None:
        """Kill the worker with the most memory, as the kernel does if memory runs out; return None if there is none."""
        workers = self.machines.list_workers()
        return _kill_process(workers[0]) if workers else None

    def _trigger_model_out_of_memory(self, event: Event, job: Driver) -> str | None:
        (self.soak.notes / MEMORY_NOTE).touch()
        return "the next batch"

    def _trigger_progress_log_killed(self, event: Event, job: Driver) -> str | None:
        logs = self.machines.list_progress_logs()
        return _kill_process(logs[0]) if logs else None

    def _trigger_raylet_killed(self, event: Event, job: Driver) -> str | None:
        """Kill the raylet of a machine, add another machine, and return the name of the killed one for the log."""
        node = self._choose_node(event)
        self.machines.lose_raylet(node)
        self.machines.add_machine()
        return f"machine {node.mark}"

    def _trigger_node_lost(self, event: Event, job: Driver) -> str | None:
        """Kill a machine, add another one, and return the name of the killed one for the log."""
        node = self._choose_node(event)
        self.machines.lose(node)
        self.machines.add_machine()
        return f"machine {node.mark}"

    def _trigger_node_leaves(self, event: Event, job: Driver) -> str | None:
        if len(self.machines.nodes) < 2:
            return None
        self.machines.leave(node := self._choose_node(event))
        return f"machine {node.mark}, {len(self.machines.nodes)} left"

    def _trigger_node_joins(self, event: Event, job: Driver) -> str | None:
        return f"{len(self.machines.nodes)} machines" if self.machines.add_machine() else None

    def _choose_node(self, event: Event) -> RayNode:
        nodes = list(self.machines.nodes)
        return nodes[int(event.choice * len(nodes))]

    def _trigger_head_lost(self, event: Event, job: Driver) -> str | None:
        """Kill the machine with the driver, progress log and GCS; the driver ends, and the next one gets a new head."""
        self.machines.lose_head()
        return "the whole cluster"

    def _trigger_rival(self, event: Event, job: Driver) -> str | None:
        stack = ExitStack()
        self.rivals.append((stack.enter_context(self._sweep()), stack))
        return f"pid {self.rivals[-1][0].process.pid}"

    def _trigger_s3_faults(self, event: Event, job: Driver) -> str | None:
        self.soak.proxy.faults = S3_FAULTS[event.kind]
        self.soak.proxy.share = 0.3 + 0.6 * event.choice
        self._schedule_end(event)
        return f"{self.soak.proxy.share:.2f} of the calls for {event.seconds} s"

    def _trigger_credentials_expire(self, event: Event, job: Driver) -> str | None:
        """Let the credentials expire; return a text for the log that says when new credentials are written to the file.

        Depending on the event, new credentials are written at once or only after some seconds.
        """
        self.soak.expire_credentials()
        if event.choice < 0.5:
            self.soak.write_credentials()
            return "new ones are there"
        self._schedule_end(event)
        return f"new ones come in {event.seconds} s"

    def _trigger_disk_full(self, event: Event, job: Driver) -> str | None:
        self._disk_full_file.parent.mkdir(exist_ok=True)
        self._disk_full_file.write_text("0")
        return "the next cell"

    @property
    def _disk_full_file(self) -> Path:
        return Path(self.place.root.path) / "store" / DISK_FULL_FILE

    def _schedule_end(self, event: Event) -> None:
        self.ending.append((time.monotonic() + event.seconds, event))

    def _end_due_events(self, *, now: float | None = None) -> None:
        moment = time.monotonic() if now is None else now
        for ends, event in [entry for entry in self.ending if entry[0] <= moment]:
            self.ending.remove((ends, event))
            if event.kind == "credentials-expire":
                self.soak.write_credentials()
            elif not any(other.kind in S3_FAULTS for _, other in self.ending):
                self.soak.proxy.share = 0.0
            self.soak.log.write("over", kind=event.kind)

    def _finish_attempt(self) -> None:
        """Count the events that had an effect, and end all faults so that they do not affect the next sweep."""
        self._end_due_events(now=float("inf"))
        self._count_effects()
        self._end_rivals()
        for note in (self.soak.notes / MEMORY_NOTE, self._disk_full_file):
            note.unlink(missing_ok=True)

    def _wait_for_rival_sweeps(self) -> None:
        self._end_due_events(now=float("inf"))
        for rival, _ in self.rivals:
            rival.process.wait(MAX_TRY_SECONDS)
            self.soak.log.write("rival ended", code=rival.process.returncode, last=_read_last_line(rival.printed))
            require_no_traceback(rival.printed)

    def _end_rivals(self) -> None:
        while self.rivals:
            self.rivals.pop()[1].close()

    def _count_recomputed(self) -> None:
        """Count the committed cells that were computed again; raise SoakError if any committed cell is gone."""
        now = self.place.read_cells()
        again = [path for path, state in self.known_cells.items() if path in now and now[path] != state]
        gone = [path for path in self.known_cells if path not in now]
        self.soak.totals["cells"] += len(now) - len(self.known_cells)
        self.soak.totals["cells_again"] += len(again)
        self.known_cells = now
        if gone:
            raise SoakError(f"committed cells are missing from the store: {gone}")


def _kill_process(pid: int) -> str | None:
    return f"pid {pid}" if kill_process(pid) else None


def _read_last_line(printed: Path) -> str:
    lines = printed.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def require_no_traceback(printed: Path) -> None:
    if TRACEBACK_PATTERN.search(printed.read_text(errors="replace")):
        raise SoakError(f"found a traceback in {printed}")


def run_undisturbed(soak: Soak, machines: Machines, wanted: Set[tuple[str, str]]) -> None:
    """Run sweeps without faults on one store; `wanted` contains (state of the benchmark, options of the sweep)."""
    place = soak.create_storage("folder", "undisturbed")
    for bench, options in sorted(wanted, key=lambda one: (list(BENCH_STATES).index(one[0]), one[1])):
        place.set_bench_state(bench)
        known, began = len(place.read_cells()), time.monotonic()
        soak.cells_of[bench, options] = 0
        DisturbedSweep(soak, machines, place, SweepPhase(bench, options, ())).run()
        soak.undisturbed[bench, options] = place.find_newest()
        soak.cells_of[bench, options] = len(place.read_cells()) - known
        soak.seconds_undisturbed[bench, options] = time.monotonic() - began
        soak.log.write("undisturbed", bench=bench, options=options, cells=soak.cells_of[bench, options])


def run_round(soak: Soak, machines: Machines, place: RoundStorage, drawn: SoakRound) -> None:
    """Run a round's sweeps, comparing each with the undisturbed one; at the end, `jobs.gc` must find nothing."""
    damaged: list[str] = []
    for number, phase in enumerate(drawn.phases):
        soak.log.write("sweep", store=place.store.place.url, bench=phase.bench, options=phase.options,
                       events=[list(e) for e in phase.events])  # fmt: skip
        place.set_bench_state(phase.bench)
        began = time.monotonic()
        disturbed = DisturbedSweep(soak, machines, place, phase)
        disturbed.run()
        damaged += [one.path for one in disturbed.damaged]
        lost = time.monotonic() - began - soak.seconds_undisturbed[phase.bench, phase.options]
        soak.seconds_lost += max(0.0, lost)
        _assert_equal(soak, place, phase)
        for job in phase.jobs:
            if job == "generate":
                run_generation(soak, place, phase.bench)
            else:
                run_job(soak, place, job, f"{drawn.store}-{soak.totals['rounds']}-{number}")
        soak.totals["sweeps"] += 1
    place.collect_garbage(damaged)
    _assert_equal(soak, place, drawn.phases[-1])
    if left := place.find_leftovers():
        raise SoakError(f"files left in the store: {left}")


def run_job(soak: Soak, place: RoundStorage, job: str, name: str) -> None:
    """Run the job `job` on the newest run of a round's store; raise SoakError if the job fails.

    `name` distinguishes the job's output and log files from those of other calls.
    """
    output = soak.folder / f"{job}-{name}"
    arguments = {
        "rewards": ["format=rewards", f"output={output}", REWARD_OPTION],
        "export": ["format=lance", f"output={output}"],
        "report": [],
    }
    _run_job_successfully(soak, job, name, [f"store={place.store.place}", *arguments[job]])


def run_generation(soak: Soak, place: RoundStorage, bench: str) -> None:
    """Generate images for the benchmark's prompts, then again after damage; all images must be correct."""
    chance, images = Random(f"{soak.seed} {soak.totals['jobs']}"), soak.folder / "drawn"
    words = [
        f"prompts={place.root}/bench/prompts.parquet",
        f"images={images}",
        "cluster=here",
        f"shard_rows={SHARD_ROWS}",
    ]
    prompts = pq.read_table(place.masters / BENCH_STATES[bench][PROMPTS_FILE]).to_pylist()
    with Painter() as painter:
        for way in (None, *chance.sample(DRAWN_DAMAGE_WAYS, 2)):
            harmed = damage_images(images, PAINTER, way, chance) if way is not None else ""
            soak.log.write("pictures", harmed=harmed)
            _run_job_successfully(soak, "generate", f"{soak.totals['jobs']}", [*painter.list_arguments(), *words])
            painter.assert_drawn(images / PAINTER, prompts)


def _run_job_successfully(soak: Soak, job: str, name: str, words: Sequence[str]) -> None:
    """Run a job with the arguments `words`, printing to the file JOB-NAME.printed; raise SoakError if the job fails."""
    printed = soak.folder / f"{job}-{name}.printed"
    with printed.open("wb") as file:
        code = subprocess.run(
            [sys.executable, "-m", f"jobs.{job}", *words], cwd=ROOT, check=False,
            env=make_head_environment() | soak.environment() | {KEY_VARIABLE: KEY}, stdout=file, stderr=file,
        ).returncode  # fmt: skip
    soak.totals["jobs"] += 1
    soak.log.write("job", job=job, code=code, last=_read_last_line(printed))
    require_no_traceback(printed)
    if code != 0:
        raise SoakError(f"jobs.{job} ended with {code}; see {printed}")


def _assert_equal(soak: Soak, place: RoundStorage, phase: SweepPhase) -> None:
    undisturbed = soak.undisturbed[phase.bench, phase.options]
    assert_same_tables(place.find_newest(), undisturbed, rtol=TOLERANCE, storage=place.root.storage)
    assert_same_counts(place.find_newest(), undisturbed, storage=place.root.storage)
    soak.log.write("equal", bench=phase.bench, options=phase.options)


def run_soak(soak: Soak, minutes: float, max_rounds: int | None) -> str:
    """Run at least one round, and more until time is up; return "equal" or "failed" for the summary."""
    place = None
    with Machines(soak.folder / "machines") as machines:
        try:
            drawn_first = islice(draw_rounds(soak.seed), max_rounds or MIN_ROUNDS)
            wanted = {(phase.bench, phase.options) for drawn in drawn_first for phase in drawn.phases}
            run_undisturbed(soak, machines, wanted)
            for number, drawn in enumerate(draw_rounds(soak.seed)):
                if number == max_rounds or (number and soak.log.seconds() > 60 * minutes):
                    return "equal"
                place = soak.create_storage(drawn.store, f"round-{number}")
                run_round(soak, machines, place, drawn)
                soak.totals["rounds"] += 1
        except Exception:
            soak.log.write("failed", kept=str(soak.folder), reason=traceback.format_exc())
            if place is not None and not place.root.is_local:
                place.root.fs.get(place.root.path, str(soak.folder / "kept"), recursive=True)
        return "failed"


def main(argv: list[str] | None = None) -> int:
    """Run the soak and print the summary; return 0 if all tables were equal."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--rounds", type=int, help="maximum number of rounds, regardless of the time")
    parser.add_argument("--folder", type=Path, help="a new folder for logs and stores; build/soak/SEED by default")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    set_environment()
    folder = (given.folder or ROOT / "build" / "soak" / str(given.seed)).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "log.jsonl").open("w") as file, run_server() as server:
        log = EventLog(sys.stdout, file)
        proxy = FaultProxy(server, given.seed, share=0.0)
        with run_proxy(proxy) as endpoint:
            soak = Soak(given.seed, folder, server, proxy, endpoint, log)
            proxy.valid = server.with_extra_key(0).key
            result = run_soak(soak, given.minutes, given.rounds)
        log.write("summary", **_summarize(soak, result))
    return 0 if result == "equal" else 1


def _summarize(soak: Soak, result: str) -> Mapping[str, Any]:
    return {
        "seed": soak.seed,
        "rounds": soak.totals["rounds"],
        "sweeps": soak.totals["sweeps"],
        "tries": soak.totals["tries"],
        "jobs": soak.totals["jobs"],
        "events": dict(sorted(soak.events.items())),
        "idle": dict(sorted(soak.idle.items())),
        "calls": dict(soak.proxy.counts),
        "cells": soak.totals["cells"],
        "cells_again": soak.totals["cells_again"],
        "seconds_lost": round(soak.seconds_lost),
        "result": result,
    }


if __name__ == "__main__":
    sys.exit(main())
