"""The units of an input, a shard's rows or a tar, drafted here or side by side on Ray, and placed in their order."""

import os
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.base.storage import Place, first_line
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.placing import Shards
from plumbline.pipelines.ingest.shards import Drafted, DraftedShard, Placement, ShardDraft, ShardReport
from plumbline.pipelines.sources.origins import Origins

PATIENCE = 5.0
"""Seconds of drafting in this process, after which the rest is worth the start of Ray."""
UNITS_PER_WORKER = 3
"""One is drafted while others wait for their places."""
RESTART_SECONDS = 0.2
"""Between looks at whether a worker is there again."""
GOODBYE_SECONDS = 10.0
"""That a worker may take to remove its drafts."""
MAX_ATTEMPTS = 3
"""How often a worker may die on a unit."""

Begin = Callable[[str, str], ShardDraft]
"""Begins a draft of a generator's next shard, made from this content."""


class SourceFile(NamedTuple):
    """A file that was read, for the manifest."""

    url: str
    bytes: int
    etag: str


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """What is taken in, unit by unit."""

    config: IngestConfig

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """A shard's columns."""

    @property
    @abstractmethod
    def files(self) -> list[SourceFile]:
        """The files that name the rows."""

    @property
    @abstractmethod
    def origins(self) -> Origins:
        """Where the prompts and the generators come from, once every unit was drafted or found."""

    def landmarks(self) -> list[SourceFile]:
        """What every machine must see."""
        return self.files[:1]

    @abstractmethod
    def units(self, rejected: list[Rejection]) -> Iterator[Any]:
        """What is drafted together, in order; what is no row of any of them goes to `rejected`."""

    @abstractmethod
    def outline(self, unit: Any, shards: Shards) -> Drafted | None:
        """What the unit becomes, as far as that is known without its images, where it may stand already."""

    @abstractmethod
    def draft(self, unit: Any, begin: Begin) -> list[Rejection]:
        """Drafts the unit's shards; its rows that are of none."""

    @abstractmethod
    def end(self, unit: Any, drafted: Drafted, output: Place) -> None:
        """Notes that the unit's shards stand."""


NOTHING = Drafted((), ())


class WorkerDied(Exception):
    """A worker is gone, with all that it had drafted."""


class Drafter:
    """Drafts units, and commits them once they have their places."""

    def __init__(self, source: Source, enter: Callable[[], None] = lambda: None) -> None:
        """`enter` makes another process ready, which may lack what the driver has."""
        enter()
        self.source = source
        self.schema = source.schema
        config = source.config
        for url in filter(None, (config.table, config.images, config.tars)):
            config.storage.locate(url)  # makes its client ready
        self.output = config.storage.locate(config.output, writable=True)
        self.drafts: dict[int, list[ShardDraft]] = {}

    def draft(self, number: int, unit: Any) -> Drafted:
        """Drafts the unit of this number."""
        drafts = self.drafts[number] = []

        def begin(generator: str, content: str) -> ShardDraft:
            drafts.append(ShardDraft(self.source.config, self.output, self.schema, generator, content))
            return drafts[-1]

        rejected = self.source.draft(unit, begin)
        return Drafted([shard.drafted() for shard in drafts], rejected)

    def commit(self, number: int, places: list[Placement | None]) -> list[int]:
        """Puts the drafts of a unit in their places, those with none away; the size of each in bytes."""
        if number not in self.drafts:
            raise WorkerDied
        drafts = zip(self.drafts[number], places, strict=True)
        sizes = [shard.commit(place) if place else 0 for shard, place in drafts]
        self.abandon(number)
        return sizes

    def abandon(self, *numbers: int) -> None:
        """Removes whatever of these units, by default of all, was not committed."""
        for number in numbers or tuple(self.drafts):
            for shard in self.drafts.pop(number):
                shard.abandon()


class Workers:
    """The drafter of this process, whose calls are answered at once, or after a while others on Ray.

    One that dies is started again, and knows nothing of before.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.drafters: list[Any] = [Drafter(source)]
        self.output = self.drafters[0].output
        self._on_ray = False
        self._started = time.monotonic()
        self._session = ExitStack()

    @property
    def room(self) -> int:
        """How many units may be under way at once."""
        return UNITS_PER_WORKER * len(self.drafters) if self._on_ray else 1

    def call(self, drafter: Any, method: str, *arguments: Any) -> Any:
        """Begins a call of a drafter's method."""
        called = getattr(drafter, method)
        return called.remote(*arguments) if self._on_ray else called(*arguments)

    def answer(self, call: Any, timeout: float | None = None) -> Any:
        """The answer to a call; raises what the call raised, or WorkerDied."""
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
        """Waits until a worker that died is there again: calls that come before fail at once, of no death of theirs."""
        import ray
        from ray.exceptions import ActorUnavailableError

        while True:
            try:
                ray.get(drafter.__ray_ready__.remote())
                return
            except ActorUnavailableError:
                time.sleep(RESTART_SECONDS)

    def spread_in_time(self) -> None:
        """Goes on with as many drafters as there are CPUs, where these are several, once it is worth it."""
        cluster = self.source.config.cluster
        address = cluster.address or os.environ.get("RAY_ADDRESS")
        cpus = cluster.num_cpus or len(os.sched_getaffinity(0))
        late = time.monotonic() - self._started > PATIENCE
        if self._on_ray or not late or cluster.num_cpus == 1 or (address is None and cpus == 1):
            return
        import ray  # takes a second, and only a large ingest needs it

        from plumbline.pipelines.base.cluster import ClusterConfig
        from plumbline.pipelines.running.session import ray_session

        self._session.enter_context(ray_session(ClusterConfig(address=address, num_cpus=cpus, pools={})))
        count = int(ray.cluster_resources().get("CPU", 1)) if address else cpus
        worker, enter = ray.remote(Drafter).options(num_cpus=1, max_restarts=-1), self._surroundings()
        self.drafters = [worker.remote(self.source, enter) for _ in range(count)]
        self._on_ray = True

    def _surroundings(self) -> Callable[[], None]:
        """What makes a process ready; raises RunnerError for a machine that does not see the input or the output."""
        from plumbline.pipelines.running.surroundings import Landmark, surroundings

        locate = self.source.config.storage.locate
        seen = [
            Landmark(f"source {file.url}", locate(file.url), file.bytes, file.etag) for file in self.source.landmarks()
        ]
        given = surroundings(f"output {self.output}", self.output / ".ingest", seen)
        return self._session.enter_context(given).apply_environment

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        """Removes the drafts that were not committed, as far as their workers still answer."""
        with self._session:
            for call in [self.call(drafter, "abandon") for drafter in self.drafters]:
                with suppress(WorkerDied):
                    self.answer(call, GOODBYE_SECONDS)


@dataclass(slots=True)
class Job:
    """A unit on its way into the output."""

    number: int
    unit: Any
    drafter: Any
    call: Any
    """To the drafter, of which the answer is awaited."""
    drafted: Drafted = NOTHING
    places: list[Placement | None] | None = None
    """Where its drafts go, once that is known; then the answer is to their commit."""
    deaths: int = 0


class DraftingQueue:
    """Takes units to workers and their drafts to their places, in order, so that any number of workers makes the same.

    Until one unit is awaited, what stands already is taken over without being drafted.
    """

    def __init__(self, source: Source, shards: Shards, workers: Workers, report: ShardReport) -> None:
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
            self.workers.spread_in_time()
            busy = Counter(job.drafter for job in (*self.drafting, *self.committing))
            drafter = min(self.workers.drafters, key=lambda drafter: busy[drafter])
            self.drafting.append(Job(number, unit, drafter, self.workers.call(drafter, "draft", number, unit)))
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
        job.places = [self._place_draft(draft) for draft in job.drafted.shards]
        job.call = self.workers.call(job.drafter, "commit", job.number, job.places)
        self.committing.append(job)

    def _place_draft(self, draft: DraftedShard) -> Placement | None:
        """Where the draft goes; None where its shard stands already."""
        place = self.shards.place(draft)
        if isinstance(place, Placement):
            return place
        self.report(place)
        return None

    def _end(self, job: Job) -> None:
        for draft, place, size in zip(job.drafted.shards, job.places or (), self._answer(job), strict=True):
            if place is not None:
                self.report(self.shards.committed(draft, place, size))
        self.source.end(job.unit, job.drafted, self.shards.output)

    def _answer(self, job: Job) -> Any:
        """The answer to the job's call; after the death of its worker the unit is drafted again."""
        while True:
            try:
                return self.workers.answer(job.call)
            except WorkerDied as error:
                job.deaths += 1
                if job.deaths == MAX_ATTEMPTS:
                    raise PlumblineError(
                        f"the workers died {job.deaths} times on {job.unit} "
                        f"({first_line(error)}); they may lack memory: make row_group_bytes or cluster.num_cpus "
                        "smaller, and run the same command to go on"
                    ) from error
                self.workers.await_restart(job.drafter)
                job.call = self.workers.call(job.drafter, "draft", job.number, job.unit)
                if job.places is not None:
                    job.call = self.workers.call(job.drafter, "commit", job.number, job.places)
