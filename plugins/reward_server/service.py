"""Images of many requests to batches for the replicas, but for those whose scores are known."""

import asyncio
import hashlib
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from plumbline.operators.base.errors import RowError
from plumbline.plugins.reward_server.sentinel import Sentinel
from plumbline.plugins.reward_server.serve_config import LoadConfig
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, ScoreRequest, Served

ImageAnswers = Mapping[str, MetricAnswer]
"""An image's answers, by metric."""
ScoreBatch = Callable[[Sequence[ScoreRequest], Sequence[str]], Awaitable[Sequence[ImageAnswers]]]
"""Scores images by some metrics on some replica; raises ReplicaDied where that ended before it answered."""

KILLED = RowError(
    "killed_worker",
    "the replicas that looked at this image died, or went over batch_deadline; look at the image, or give the replicas "
    "more memory or time",
)
LONGEST_PAUSE = 60
"""Seconds that a client is told to wait at most."""


class ReplicaDied(Exception):
    """A replica ended, or was ended, with a batch that it had not answered."""


class Unanswered(Exception):
    """There is no answer now; the same request may have one later."""

    def __init__(
        self, status: int, message: str, retry_after: int, unfinished: "Collection[asyncio.Future[ImageAnswers]]" = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.unfinished = unfinished
        """Of the request's images, those that are still to be scored."""


class Counters(Protocol):
    """Who counts what happens."""

    def sent(self, images: int) -> None:
        """A batch goes to a replica."""

    def answered(self, metric: str, outcome: str) -> None:
        """An image has its answer: `scored`, `cached` or `null`."""

    def died(self) -> None:
        """A replica died with a batch."""

    def took(self, part: str, seconds: float) -> None:
        """A part of a request took so long: of one of its images, `queue`, or of a batch, `send`, `decode`, `model`."""


class ScoreCache:
    """The newest scores, by what they follow from; bounded. A null is never remembered: it may be a score next time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.answers: OrderedDict[bytes, MetricAnswer] = OrderedDict()

    def __len__(self) -> int:
        return len(self.answers)

    def get(self, key: bytes) -> MetricAnswer | None:
        """The answer, which thereby counts as new."""
        answer = self.answers.get(key)
        if answer is not None:
            self.answers.move_to_end(key)
        return answer

    def put(self, key: bytes, answer: MetricAnswer) -> None:
        """Remembers a score."""
        if answer.score is None:
            return
        self.answers[key] = answer
        while len(self.answers) > self.most:
            self.answers.popitem(last=False)


@dataclass(slots=True, eq=False)
class _Job:
    """An image that some requests wait for."""

    digest: bytes
    asked: ScoreRequest
    metrics: tuple[str, ...]
    """Those whose answers are not known yet."""
    since: float
    answers: "asyncio.Future[ImageAnswers]"
    deaths: int = 0


class Service:
    """Answers requests: images that are known from the cache, equal ones once, all others in batches across requests.

    A replica that is idle is sent what waits; one that is busy is sent the next batch ahead only once that is full, so
    that batches grow with the load. Where a replica dies, its images go to another: once together, then each alone,
    with nothing sent ahead that would die with it.
    """

    def __init__(
        self, score: ScoreBatch, served: Served, load: LoadConfig, watch: Counters, sentinel: Sentinel | None = None
    ) -> None:
        self.score_batch = score
        self.served = served
        self.load = load
        self.watch = watch
        self.sentinel = sentinel
        self.cache = ScoreCache(load.cached_scores)
        self.waiting: deque[_Job] = deque()
        self.suspects: deque[_Job] = deque()
        """Images with which replicas died twice."""
        self.tested: _Job | None = None
        """The one of them that runs."""
        self.pending: dict[tuple[bytes, tuple[str, ...]], _Job] = {}
        self.running: set[asyncio.Task[None]] = set()
        self.seconds_per_image = 0.0
        self.alarm: asyncio.TimerHandle | None = None

    async def score(self, asked: Sequence[ScoreRequest]) -> list[ImageAnswers]:
        """The answers in the order of what was asked; raises Unanswered where there is no room, or none in time."""
        if self.queued() + len(asked) > self.load.max_waiting:
            raise Unanswered(429, f"{self.queued()} images wait already; ask again later", self.pause())
        jobs = [self._job(one) for one in asked]
        futures = {job.answers for _, job in jobs if job is not None}
        if futures:
            _, late = await asyncio.wait(futures, timeout=self.load.deadline)
            if late:
                raise Unanswered(503, f"no score after {self.load.deadline:g} seconds; ask again", self.pause(), late)
        return [
            self._in_order(one, known, job.answers.result() if job else {})
            for one, (known, job) in zip(asked, jobs, strict=True)
        ]

    def queued(self) -> int:
        """Images that wait for a replica."""
        return len(self.waiting) + len(self.suspects)

    def pause(self) -> int:
        """Seconds after which those that wait now should be done."""
        return max(1, min(LONGEST_PAUSE, math.ceil(self.queued() * self.seconds_per_image)))

    def _in_order(self, asked: ScoreRequest, known: ImageAnswers, computed: ImageAnswers) -> ImageAnswers:
        for name in known:
            self.watch.answered(name, "cached")
        for name, answer in computed.items():
            self.watch.answered(name, "null" if answer.score is None else "scored")
        answers = self.served.with_reward({**known, **computed})
        return {name: answers[name] for name in asked.metrics}

    def _job(self, asked: ScoreRequest) -> tuple[dict[str, MetricAnswer], _Job | None]:
        """What is known of an image, and who brings the rest."""
        if asked.error is not None:
            return {name: MetricAnswer(None, asked.error) for name in asked.metrics}, None
        digest = _digest(asked)
        wanted = self.served.measured(self.sentinel.wanted(asked.metrics) if self.sentinel else asked.metrics)
        cached = {name: self.cache.get(self._key(digest, name)) for name in wanted}
        known = {name: answer for name, answer in cached.items() if answer is not None}
        missing = tuple(name for name in wanted if name not in known)
        return known, self._waiting(digest, asked, missing) if missing else None

    def _waiting(self, digest: bytes, asked: ScoreRequest, missing: tuple[str, ...]) -> _Job:
        """The job of an image, which others may wait for already."""
        job = self.pending.get((digest, missing))
        if job is None:
            loop = asyncio.get_running_loop()
            job = _Job(digest, asked, missing, loop.time(), loop.create_future())
            self.pending[digest, missing] = job
            self.waiting.append(job)
            loop.call_soon(self._start)
        return job

    def _key(self, digest: bytes, metric: str) -> bytes:
        return hashlib.sha256(digest + self.served.metrics[metric].encode()).digest()

    def _start(self) -> None:
        """Sends the batches that are due, and sees to it that the next is sent when it is."""
        while batch := self._next_batch():
            self.running.add(asyncio.ensure_future(self._run(batch)))
        if self.alarm is None and self.waiting and len(self.running) < self.load.replicas:
            self.alarm = asyncio.get_running_loop().call_later(self.load.gather_seconds, self._ring)

    def _ring(self) -> None:
        self.alarm = None
        self._start()

    def _next_batch(self) -> list[_Job]:
        """A suspect, else the first image and those that wait for the same metrics; none where nothing is due."""
        if self.suspects and self.tested is None and len(self.running) < self.load.replicas:
            self.tested = self.suspects.popleft()
            return [self.tested]
        if not self.waiting or len(self.running) >= 2 * self.load.replicas:
            return []
        metrics = self.waiting[0].metrics
        batch = list(islice((job for job in self.waiting if job.metrics == metrics), self.load.batch))
        if not self._is_due(batch):
            return []
        taken = set(map(id, batch))
        self.waiting = deque(job for job in self.waiting if id(job) not in taken)
        return batch

    def _is_due(self, batch: Sequence[_Job]) -> bool:
        """Whether a replica is idle and the first image waited long enough, or a full batch may be sent ahead."""
        full = len(batch) == self.load.batch
        if len(self.running) >= self.load.replicas:
            suspected = self.suspects or self.tested is not None
            return full and not suspected
        waited = asyncio.get_running_loop().time() - batch[0].since
        return full or waited >= self.load.gather_seconds

    async def _run(self, batch: list[_Job]) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        self.watch.sent(len(batch))
        begun = loop.time()
        for job in batch:
            self.watch.took("queue", begun - job.since)
        try:
            answers = await self.score_batch([job.asked for job in batch], batch[0].metrics)
            for job, of_image in zip(batch, answers, strict=True):
                self._finish(job, of_image)
            self.seconds_per_image = (loop.time() - begun) / len(batch)
        except ReplicaDied:
            self._repeat(batch)
        except Exception as error:
            failure = RowError("model_failed", f"{type(error).__name__}: the batch failed; ask again", retryable=True)
            for job in batch:
                self._finish(job, {name: MetricAnswer(None, failure) for name in job.metrics})
        finally:
            self.running.discard(task) if task else None
            if batch[0] is self.tested:
                self.tested = None
        self._start()  # not where the task is cancelled: the loop ends then

    def _repeat(self, batch: Sequence[_Job]) -> None:
        """Puts images whose replica died before all others, but for those that too many died with."""
        self.watch.died()
        for job in batch:
            job.deaths += 1
            if job.deaths >= self.load.max_deaths:
                self._finish(job, {name: MetricAnswer(None, KILLED) for name in job.metrics})
        left = [job for job in batch if not job.answers.done()]
        self.suspects.extend(job for job in left if job.deaths > 1)
        self.waiting.extendleft(job for job in reversed(left) if job.deaths <= 1)

    def _finish(self, job: _Job, answers: ImageAnswers) -> None:
        if job.answers.done():
            return
        for name, answer in answers.items():
            self.cache.put(self._key(job.digest, name), answer)
        if self.sentinel is not None:
            self.sentinel.see(job.asked.prompt, self.served.with_reward(answers))
        self.pending.pop((job.digest, job.metrics), None)
        job.answers.set_result(answers)


def _digest(asked: ScoreRequest) -> bytes:
    """Of the image's bytes, frame by frame, its prompt, and the questions and sources that came with it."""
    frames = [hashlib.sha256(image).digest() for image in (*asked.images, *asked.sources)]
    texts = [asked.prompt] if asked.questions is None else [asked.prompt, repr(asked.questions)]
    about = [hashlib.sha256(text.encode()).digest() for text in texts]
    counts = [len(images).to_bytes(8, "big") for images in (asked.images, asked.sources)]
    return hashlib.sha256(b"".join([*frames, *counts, *about])).digest()
