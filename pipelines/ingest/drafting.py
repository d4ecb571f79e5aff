"""The units of an input, a shard's rows or a tar, drafted here or side by side on Ray, and placed in their order."""

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow as pa

from operators.errors import ConfigError, PlumblineError
from pipelines.ingest.placing import Outline, Shards
from pipelines.ingest.shards import Drafted, Drafts, Placement, Report, ShardRecord, ShardSize, SourceFile
from pipelines.storage import Location, StorageConfig, aws_variables, first_line, locate
from pipelines.tables import Rejection

PATIENCE = 5.0
"""Seconds of drafting in this process, after which the rest is worth the start of Ray."""
UNITS_PER_WORKER = 3
"""One is drafted while others wait for their places."""
GOODBYE_SECONDS = 10.0
"""That a worker may take to remove its drafts."""
MAX_ATTEMPTS = 3
"""How often a worker may die on a unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersConfig:
    """Where shards are made."""

    address: str | None = None
    """A running Ray cluster (`auto`, or host:port); null takes RAY_ADDRESS, or else this machine."""
    num_cpus: int | None = None
    """How many shards are made at once on this machine; as many as it has CPUs by default."""

    def __post_init__(self) -> None:
        if self.num_cpus is not None and self.num_cpus < 1:
            raise ConfigError(f"cluster.num_cpus: expected at least 1 or null, got {self.num_cpus}")


class Source(Protocol):
    """What is taken in."""

    @property
    def schema(self) -> pa.Schema:
        """A shard's columns."""

    @property
    def size(self) -> ShardSize:
        """What goes into a shard."""

    @property
    def files(self) -> list[SourceFile]:
        """The files that name the rows."""

    @property
    def urls(self) -> list[str]:
        """Where images are read."""

    def units(self, rejected: list[Rejection]) -> Iterator[Any]:
        """What is drafted together, in order; what is no row of any of them goes to `rejected`."""

    def outline(self, unit: Any, shards: Shards) -> Outline | None:
        """What the unit becomes, where it may stand already."""

    def draft(self, unit: Any, drafts: Drafts) -> list[Rejection]:
        """Drafts the unit's shards; its rows that are of none."""

    def name(self, unit: Any) -> str:
        """What the unit is called in messages."""

    def end(self, unit: Any, drafted: Drafted, output: Location) -> None:
        """Notes that the unit's shards stand."""


NOTHING = Drafted((), ())


class WorkerDied(Exception):
    """A worker is gone, with all that it had drafted."""


class Drafter:
    """Drafts units, and commits them once they have their places."""

    def __init__(
        self, source: Source, output: str, storage: StorageConfig, credentials: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`credentials` are the driver's AWS variables, where this is another process, which may lack them."""
        os.environ.update(credentials)
        self.source = source
        self.schema = source.schema
        self.output = [locate(url, storage) for url in (*source.urls, output)][-1]  # each makes its client ready
        self.drafts: dict[int, Drafts] = {}

    def draft(self, number: int, unit: Any) -> Drafted:
        """Drafts the unit of this number."""
        drafts = self.drafts[number] = Drafts(self.output, self.schema, self.source.size)
        rejected = self.source.draft(unit, drafts)
        return Drafted([shard.drafted() for shard in drafts.shards], rejected)

    def commit(self, number: int, places: list[Placement | None]) -> list[int]:
        """Puts the drafts of a unit in their places, those with none away; the size of each in bytes."""
        if number not in self.drafts:
            raise WorkerDied
        drafts = self.drafts[number]
        sizes = [shard.commit(place) if place else 0 for shard, place in zip(drafts.shards, places, strict=True)]
        self.drafts.pop(number).abandon()
        return sizes

    def abandon(self) -> None:
        """Removes whatever was not committed."""
        for drafts in self.drafts.values():
            drafts.abandon()


class Worker(ABC):
    """Calls a drafter."""

    units = 0
    """How many it has under way."""

    @abstractmethod
    def call(self, method: str, *arguments: Any) -> Any:
        """Begins a call of the drafter's method."""

    @abstractmethod
    def answer(self, call: Any, timeout: float | None = None) -> Any:
        """The answer to a call; raises what the call raised, or WorkerDied."""


class Here(Worker):
    """A drafter in this process, whose calls are answered at once."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.drafter, method)(*arguments)

    def answer(self, call: Any, timeout: float | None = None) -> Any:
        return call


class OnRay(Worker):
    """A drafter in a process of its own; what dies is started again, and knows nothing of before."""

    def __init__(self, source: Source, output: str, storage: StorageConfig) -> None:
        import ray  # takes a second, and only a large ingest needs it

        worker = ray.remote(Drafter).options(num_cpus=1, max_restarts=-1)
        self.actor = worker.remote(source, output, storage, aws_variables())

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.actor, method).remote(*arguments)

    def answer(self, call: Any, timeout: float | None = None) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        try:
            return ray.get(call, timeout=timeout)
        except RayTaskError as error:
            raise error.cause from None
        except (RayActorError, GetTimeoutError) as error:
            raise WorkerDied(str(error)) from error


@dataclass(slots=True)
class Job:
    """A unit on its way into the output."""

    number: int
    unit: Any
    worker: Worker
    call: Any
    """To the worker, of which the answer is awaited."""
    drafted: Drafted = NOTHING
    places: list[Placement | None] = field(default_factory=list)
    deaths: int = 0


class Line:
    """Takes units to workers and their drafts to their places, in order, so that any number of workers makes the same.

    Until one unit is awaited, what stands already is taken over without being drafted.
    """

    def __init__(self, source: Source, shards: Shards, workers: "Workers", report: Report) -> None:
        self.source = source
        self.shards = shards
        self.workers = workers
        self.report = report
        self.drafting: deque[Job] = deque()
        self.committing: deque[Job] = deque()

    def run(self) -> None:
        """Brings every unit into the output."""
        for number, unit in enumerate(self.source.units(self.shards.rejected)):
            if not self.drafting and self._restore(unit):
                continue
            worker = self.workers.next()
            worker.units += 1
            self.drafting.append(Job(number, unit, worker, worker.call("draft", number, unit)))
            while len(self.drafting) + len(self.committing) >= self.workers.room:
                self._go_on()
        while self.drafting or self.committing:
            self._go_on()

    def _restore(self, unit: Any) -> bool:
        outline = self.source.outline(unit, self.shards)
        records = self.shards.restore(outline) if outline is not None else None
        for record in records or ():
            self.report(record)
        return records is not None

    def _go_on(self) -> None:
        """Places the next draft, or where all are placed awaits the next commit."""
        if self.drafting:
            self._place(self.drafting.popleft())
        if len(self.committing) >= self.workers.room // 2 or not self.drafting:
            self._end(self.committing.popleft())

    def _place(self, job: Job) -> None:
        job.drafted = self._answer(job)
        self.shards.rejected += job.drafted.rejected
        for draft in job.drafted.shards:
            place = self.shards.place(draft)
            if isinstance(place, ShardRecord):
                self.report(place)
            job.places.append(place if isinstance(place, Placement) else None)
        job.call = job.worker.call("commit", job.number, job.places)
        self.committing.append(job)

    def _end(self, job: Job) -> None:
        for draft, place, size in zip(job.drafted.shards, job.places, self._answer(job), strict=True):
            if place is not None:
                self.report(self.shards.committed(draft, place, size))
        self.source.end(job.unit, job.drafted, self.shards.output)
        job.worker.units -= 1

    def _answer(self, job: Job) -> Any:
        """The answer to the job's call; after the death of its worker the unit is drafted again."""
        while True:
            try:
                return job.worker.answer(job.call)
            except WorkerDied as error:
                job.deaths += 1
                if job.deaths == MAX_ATTEMPTS:
                    raise PlumblineError(
                        f"the workers died {job.deaths} times on {self.source.name(job.unit)} "
                        f"({first_line(error)}); they may lack memory: make row_group_bytes or cluster.num_cpus "
                        "smaller, and run the same command to go on"
                    ) from error
                job.call = job.worker.call("draft", job.number, job.unit)
                if job.places:
                    job.call = job.worker.call("commit", job.number, job.places)


class Workers:
    """The drafter of this process, or after a while those on Ray."""

    def __init__(self, source: Source, output: str, storage: StorageConfig, cluster: WorkersConfig) -> None:
        self.arguments = (source, output, storage)
        self.cluster = cluster
        self.workers: Sequence[Worker] = [Here(Drafter(*self.arguments))]
        self._started = time.monotonic()
        self._session = ExitStack()

    @property
    def room(self) -> int:
        """How many units may be under way at once."""
        return 1 if isinstance(self.workers[0], Here) else UNITS_PER_WORKER * len(self.workers)

    def next(self) -> Worker:
        """The worker with the fewest units."""
        if isinstance(self.workers[0], Here) and time.monotonic() - self._started > PATIENCE:
            self._spread()
        return min(self.workers, key=lambda worker: worker.units)

    def _spread(self) -> None:
        """Goes on with as many workers as there are CPUs, where these are several."""
        address = self.cluster.address or os.environ.get("RAY_ADDRESS")
        cpus = self.cluster.num_cpus or len(os.sched_getaffinity(0))
        if address is None and cpus == 1:
            return
        import ray  # takes a second, and only a large ingest needs it

        from pipelines.running.pools import ClusterConfig
        from pipelines.running.session import ray_session

        self._session.enter_context(ray_session(ClusterConfig(address=address, num_cpus=cpus, pools={})))
        count = int(ray.cluster_resources().get("CPU", 1)) if address else cpus
        self.workers = [OnRay(*self.arguments) for _ in range(count)]

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        """Removes the drafts that were not committed, as far as their workers still answer."""
        with self._session:
            for worker, call in [(worker, worker.call("abandon")) for worker in self.workers]:
                with suppress(WorkerDied):
                    worker.answer(call, GOODBYE_SECONDS)
