"""Drafts the units of an input (a shard's rows, or a tar) in this process or on Ray, and places the drafts in order."""

import os
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import pyarrow as pa

from plumbline.operators.base.cores import count_cores
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.extensions import explain_missing_extra
from plumbline.pipelines.base.cluster_config import ClusterConfig, is_ray_installed
from plumbline.pipelines.base.storage import Place, get_first_line
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.ingest.draft_placement import PlacedShards
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.shards import DraftedUnit, Placement, ShardDraft, ShardRecord, ShardReport
from plumbline.pipelines.sources.origins import Origins

RAY_START_DELAY = 5.0
"""Seconds that this process drafts on its own before it starts Ray."""
MAX_UNITS_PER_WORKER = 3
"""Maximum number of units in progress per worker: one unit is being drafted while further units wait to be placed."""
RESTART_INTERVAL = 0.2
"""Seconds between checks whether a worker has restarted."""
CLEANUP_TIMEOUT = 10.0
"""Seconds allowed for a worker to remove its drafts."""
MAX_ATTEMPTS = 3
"""Number of workers that may die on a unit before the ingest fails."""

StartDraft = Callable[[str, str], ShardDraft]
"""Function that starts a draft of the next shard, given its generator and a hash of its input."""


class SourceFile(NamedTuple):
    """An input file that was read, as recorded in the manifest."""

    url: str
    bytes: int
    etag: str


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """Input that is divided into units; each unit becomes one or more shards."""

    config: IngestConfig

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Columns of a shard."""

    @property
    @abstractmethod
    def files(self) -> list[SourceFile]:
        """The files with the rows: tables or tars."""

    @property
    @abstractmethod
    def origins(self) -> Origins:
        """Origins of the prompts and generators; complete once every unit has been drafted or restored."""

    def list_files_to_probe(self) -> list[SourceFile]:
        """Return a few files, used to check that every machine of the cluster can read the input."""
        return self.files[:1]

    @abstractmethod
    def iterate_units(self, rejected: list[Rejection]) -> Iterator[Any]:
        """Yield the units in order; append rows that belong to no unit to `rejected`."""

    @abstractmethod
    def find_existing_shards(self, unit: Any, shards: PlacedShards) -> DraftedUnit | None:
        """Return the unit's shards, found without reading images; None if the output does not seem to have them."""

    @abstractmethod
    def draft(self, unit: Any, start_draft: StartDraft) -> list[Rejection]:
        """Draft the unit's shards; return the unit's rejected rows that are not part of any shard."""

    @abstractmethod
    def record_finished_unit(self, unit: Any, drafted: DraftedUnit, output: Place) -> None:
        """Record that all shards of the unit are in the output."""


class WorkerDied(Exception):
    """Raised when a worker has died; its drafts are lost."""


class Drafter:
    """Drafts the shards for units of the input, and commits a draft once its path in the output has been decided."""

    def __init__(self, source: Source, prepare: Callable[[], None] = lambda: None) -> None:
        """Create the drafter after calling `prepare`, which applies the driver's environment in a worker process."""
        prepare()
        self.source = source
        self.schema = source.schema
        config = source.config
        for url in filter(None, (config.table, config.images, config.tars)):
            config.storage.locate(url)  # prepares the client
        self.output = config.storage.locate(config.output, writable=True)
        self.drafts: dict[int, list[ShardDraft]] = {}

    def draft(self, number: int, unit: Any) -> DraftedUnit:
        drafts = self.drafts[number] = []

        def start_draft(generator: str, content: str) -> ShardDraft:
            drafts.append(ShardDraft(self.source.config, self.output, self.schema, generator, content))
            return drafts[-1]

        rejected = self.source.draft(unit, start_draft)
        return DraftedUnit([shard.finish() for shard in drafts], rejected)

    def commit(self, number: int, placements: list[Placement | None]) -> list[int]:
        """Commit a unit's drafts that have a placement; return the size of each in bytes, and 0 for the other drafts.

        Raises WorkerDied if this worker does not have the drafts.
        """
        if number not in self.drafts:
            raise WorkerDied
        drafts = zip(self.drafts[number], placements, strict=True)
        sizes = [draft.commit(placement) if placement else 0 for draft, placement in drafts]
        self.abandon(number)
        return sizes

    def abandon(self, *numbers: int) -> None:
        """Remove the uncommitted drafts of these units, or of all units if none are given."""
        for number in numbers or tuple(self.drafts):
            for shard in self.drafts.pop(number):
                shard.abandon()


class DraftWorkerPool:
    """Drafters: a single one in this process or, once the ingest has taken a while, several on Ray.

    A worker that dies is restarted with an empty state.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.drafters: list[Any] = [Drafter(source)]
        self._on_ray = False
        self._started = time.monotonic()
        self._session = ExitStack()

    @property
    def max_units(self) -> int:
        """Maximum number of units that may be in progress at once."""
        return MAX_UNITS_PER_WORKER * len(self.drafters) if self._on_ray else 1

    def call(self, drafter: Any, method: str, *arguments: Any) -> Any:
        """Start a call to a drafter's method and return a handle, which `get_result` turns into the result."""
        called = getattr(drafter, method)
        return called.remote(*arguments) if self._on_ray else called(*arguments)

    def get_result(self, call: Any, timeout: float | None = None) -> Any:
        """Return the result of a call; raise the exception that the call raised, or WorkerDied."""
        if not self._on_ray:
            return call
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        try:
            return ray.get(call, timeout=timeout)
        except RayTaskError as error:
            raise error.cause from None
        except (RayActorError, GetTimeoutError) as error:
            raise WorkerDied(str(error)) from error

    def await_restart(self, drafter: Any) -> None:
        """Wait until a dead worker has restarted. Calls before that would fail at once and count as further deaths."""
        import ray
        from ray.exceptions import ActorUnavailableError

        while True:
            try:
                ray.get(drafter.__ray_ready__.remote())
                return
            except ActorUnavailableError:
                time.sleep(RESTART_INTERVAL)

    def start_ray_if_slow(self) -> None:
        """Start one drafter per CPU on Ray if there are several CPUs and the ingest has taken RAY_START_DELAY seconds.

        If Ray is not installed and no cluster address is set, this process continues on its own.
        Raises RunnerError if a machine of the cluster cannot reach the input or the output.
        """
        config = self.source.config
        cluster, locate = config.cluster, config.storage.locate
        address = cluster.address or os.environ.get("RAY_ADDRESS")
        cpus = cluster.num_cpus or count_cores()
        is_late = time.monotonic() - self._started > RAY_START_DELAY
        if self._on_ray or not is_late or cluster.num_cpus == 1:
            return
        if address is None and (cpus == 1 or not is_ray_installed()):
            return
        with explain_missing_extra("ray", f"the cluster {address}"):
            import ray  # takes a second, and only a large ingest needs it
        from plumbline.pipelines.running.driver_environment import VisibilityProbe, open_driver_environment
        from plumbline.pipelines.running.session import open_ray_session

        self._session.enter_context(open_ray_session(ClusterConfig(address=address, num_cpus=cpus, pools={})))
        count = int(ray.cluster_resources().get("CPU", 1)) if address else cpus
        probes = [
            VisibilityProbe(f"source {file.url}", locate(file.url), file.bytes, file.etag)
            for file in self.source.list_files_to_probe()
        ]
        output = self.drafters[0].output
        environment = self._session.enter_context(
            open_driver_environment(f"output {output}", output / ".ingest", probes)
        )
        worker = ray.remote(Drafter).options(num_cpus=1, max_restarts=-1)
        self.drafters = [worker.remote(self.source, environment.apply) for _ in range(count)]
        self._on_ray = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the uncommitted drafts of all workers that still respond."""
        with self._session:
            for call in [self.call(drafter, "abandon") for drafter in self.drafters]:
                with suppress(WorkerDied):
                    self.get_result(call, CLEANUP_TIMEOUT)


@dataclass(slots=True)
class UnitInProgress:
    """A unit that is being drafted or committed."""

    number: int
    unit: Any
    drafter: Any
    call: Any
    """Pending call to the drafter."""
    drafted: DraftedUnit = DraftedUnit((), ())  # noqa: RUF009  # it is immutable
    placements: list[Placement | None] | None = None
    """Placements of the unit's drafts; None before they are decided. Afterwards, `call` is the call that commits the
    drafts.
    """
    deaths: int = 0


class DraftingQueue:
    """Passes units to workers and places the drafts in order; the output does not depend on the number of workers.

    Shards that are already in the output are restored without drafting until the first unit has to be drafted.
    """

    def __init__(self, source: Source, shards: PlacedShards, workers: DraftWorkerPool, report: ShardReport) -> None:
        self.source = source
        self.shards = shards
        self.workers = workers
        self.report = report
        self.drafting: deque[UnitInProgress] = deque()
        self.committing: deque[UnitInProgress] = deque()

    def run(self) -> None:
        """Draft, or restore, the shards of every unit."""
        for number, unit in enumerate(self.source.iterate_units(self.shards.rejected)):
            if not self.drafting and (existing := self.source.find_existing_shards(unit, self.shards)) is not None:
                restored = self.shards.restore(existing)
                for record in restored or ():
                    self.report(record)
                if restored is not None:
                    continue
            self.workers.start_ray_if_slow()
            busy = Counter(job.drafter for job in (*self.drafting, *self.committing))
            drafter = min(self.workers.drafters, key=lambda drafter: busy[drafter])
            self.drafting.append(
                UnitInProgress(number, unit, drafter, self.workers.call(drafter, "draft", number, unit))
            )
            while len(self.drafting) + len(self.committing) >= self.workers.max_units:
                self._place_next_draft()
        while self.drafting or self.committing:
            self._place_next_draft()

    def _place_next_draft(self) -> None:
        """Place the next draft, and wait for the oldest commit if enough are pending or nothing is being drafted."""
        if self.drafting:
            job = self.drafting.popleft()
            job.drafted = self._await_result(job)
            self.shards.rejected += job.drafted.rejected
            job.placements = []
            for draft in job.drafted.shards:
                placed = self.shards.place(draft)
                if isinstance(placed, ShardRecord):  # the same shard is in the output already
                    self.report(placed)
                job.placements.append(placed if isinstance(placed, Placement) else None)
            job.call = self.workers.call(job.drafter, "commit", job.number, job.placements)
            self.committing.append(job)
        if len(self.committing) >= self.workers.max_units // 2 or not self.drafting:
            job = self.committing.popleft()
            sizes = self._await_result(job)
            for draft, placement, size in zip(job.drafted.shards, job.placements or (), sizes, strict=True):
                if placement is not None:
                    self.report(self.shards.add_committed(draft, placement, size))
            self.source.record_finished_unit(job.unit, job.drafted, self.shards.output)

    def _await_result(self, job: UnitInProgress) -> Any:
        """Return the result of the job's call; if the worker dies, draft the unit again."""
        while True:
            try:
                return self.workers.get_result(job.call)
            except WorkerDied as error:
                job.deaths += 1
                if job.deaths == MAX_ATTEMPTS:
                    raise PlumblineError(
                        f"the workers died {job.deaths} times on {job.unit} "
                        f"({get_first_line(error)}); they may have run out of memory: lower row_group_bytes or "
                        "cluster.num_cpus, and run the same command to continue"
                    ) from error
                self.workers.await_restart(job.drafter)
                job.call = self.workers.call(job.drafter, "draft", job.number, job.unit)
                if job.placements is not None:
                    job.call = self.workers.call(job.drafter, "commit", job.number, job.placements)
