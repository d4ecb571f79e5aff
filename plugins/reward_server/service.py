"""Combines images from many requests into batches for the replicas; known scores come from a cache."""

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
"""Answers for an image, by metric."""
ScoreBatch = Callable[[Sequence[ScoreRequest], Sequence[str]], Awaitable[Sequence[ImageAnswers]]]
"""Function that scores images with the named metrics on a replica; raises ReplicaDied if the replica dies first."""

KILLED = RowError(
    "killed_worker",
    "the replicas that scored this image died, or went over batch_deadline; check the image, or give the replicas "
    "more memory or time",
)
MAX_PAUSE = 60
"""Maximum value of Retry-After, in seconds."""


class ReplicaDied(Exception):
    """A replica died, or was killed, before it answered a batch."""


class Unanswered(Exception):
    """A request cannot be answered now, but may be answered later."""

    def __init__(
        self, status: int, message: str, retry_after: int, unfinished: "Collection[asyncio.Future[ImageAnswers]]" = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.unfinished = unfinished
        """Images of the request that still have to be scored."""


class Counters(Protocol):
    """Interface for counting the events of a service."""

    def count_batch(self, images: int) -> None:
        """Count a batch that is sent to a replica."""

    def count_answer(self, metric: str, outcome: str) -> None:
        """Count an answer for an image: `scored`, `cached` or `null`."""

    def count_death(self) -> None:
        """Count a replica that died while it had a batch."""

    def add_seconds(self, part: str, seconds: float) -> None:
        """Add the time spent in a phase: `queue` for each image; `send`, `decode` and `model` for each batch."""


class ScoreCache:
    """The most recently used scores. Nulls are not cached, because a retry may succeed."""

    def __init__(self, max_scores: int) -> None:
        self.max_scores = max_scores
        self.answers: OrderedDict[bytes, MetricAnswer] = OrderedDict()

    def __len__(self) -> int:
        return len(self.answers)

    def get(self, key: bytes) -> MetricAnswer | None:
        """Return the answer with this key and mark it as recently used; return None if there is none."""
        answer = self.answers.get(key)
        if answer is not None:
            self.answers.move_to_end(key)
        return answer

    def add(self, key: bytes, answer: MetricAnswer) -> None:
        if answer.score is None:
            return
        self.answers[key] = answer
        while len(self.answers) > self.max_scores:
            self.answers.popitem(last=False)


@dataclass(slots=True, eq=False)
class _Job:
    """An image to score, for which one or more requests are waiting."""

    digest: bytes
    request: ScoreRequest
    metrics: tuple[str, ...]
    """Metrics to compute; scores of the other requested metrics are cached."""
    since: float
    answers: "asyncio.Future[ImageAnswers]"
    deaths: int = 0


class Service:
    """Answers requests: cached scores immediately, all others in batches that combine images from many requests.

    Equal images are scored once. An idle replica receives the waiting images. A busy replica receives its next batch in
    advance only if the batch is full, so batches grow with the load. If a replica dies, its batch is repeated on
    another replica: first as a whole, and then each image alone, with no other batch in advance that could be lost with
    it.
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
        """Images from batches on which two replicas died."""
        self.tested: _Job | None = None
        """Suspect that is currently being scored alone."""
        self.pending: dict[tuple[bytes, tuple[str, ...]], _Job] = {}
        self.running: set[asyncio.Task[None]] = set()
        self.seconds_per_image = 0.0
        self.alarm: asyncio.TimerHandle | None = None

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ImageAnswers]:
        """Return the answers for each image, in order; raise Unanswered if the queue is full or the deadline passes."""
        if self.queued() + len(requests) > self.load.max_waiting:
            raise Unanswered(429, f"{self.queued()} images wait already; retry later", self.pause())
        jobs = [self._find_job(request) for request in requests]
        futures = {job.answers for _, job in jobs if job is not None}
        if futures:
            _, late = await asyncio.wait(futures, timeout=self.load.deadline)
            if late:
                raise Unanswered(503, f"no score after {self.load.deadline:g} seconds; retry", self.pause(), late)
        return [
            self._join_answers(request, known, job.answers.result() if job else {})
            for request, (known, job) in zip(requests, jobs, strict=True)
        ]

    def queued(self) -> int:
        """Return the number of images that are waiting for a replica."""
        return len(self.waiting) + len(self.suspects)

    def pause(self) -> int:
        """Estimate the seconds until the waiting images are scored."""
        return max(1, min(MAX_PAUSE, math.ceil(self.queued() * self.seconds_per_image)))

    def _join_answers(self, request: ScoreRequest, known: ImageAnswers, computed: ImageAnswers) -> ImageAnswers:
        for name in known:
            self.watch.count_answer(name, "cached")
        for name, answer in computed.items():
            self.watch.count_answer(name, "null" if answer.score is None else "scored")
        answers = self.served.with_reward({**known, **computed})
        return {name: answers[name] for name in request.metrics}

    def _find_job(self, request: ScoreRequest) -> tuple[dict[str, MetricAnswer], _Job | None]:
        """Return the cached answers for an image, and the job that computes the others, if any."""
        if request.error is not None:
            return {name: MetricAnswer(None, request.error) for name in request.metrics}, None
        digest = _digest(request)
        names = self.sentinel.add_watched(request.metrics) if self.sentinel else request.metrics
        needed = self.served.metrics_to_compute(names)
        cached = {name: self.cache.get(self._key(digest, name)) for name in needed}
        known = {name: answer for name, answer in cached.items() if answer is not None}
        missing = tuple(name for name in needed if name not in known)
        if not missing:
            return known, None
        job = self.pending.get((digest, missing))
        if job is None:
            loop = asyncio.get_running_loop()
            job = _Job(digest, request, missing, loop.time(), loop.create_future())
            self.pending[digest, missing] = job
            self.waiting.append(job)
            loop.call_soon(self._start)
        return known, job

    def _key(self, digest: bytes, metric: str) -> bytes:
        return hashlib.sha256(digest + self.served.metrics[metric].encode()).digest()

    def _start(self) -> None:
        """Send all batches that are due, and set a timer if images remain that wait for an idle replica."""
        while batch := self._next_batch():
            self.running.add(asyncio.ensure_future(self._run(batch)))
        if self.alarm is None and self.waiting and len(self.running) < self.load.replicas:
            self.alarm = asyncio.get_running_loop().call_later(self.load.gather_seconds, self._ring)

    def _ring(self) -> None:
        self.alarm = None
        self._start()

    def _next_batch(self) -> list[_Job]:
        """Return one suspect, or the first waiting image and others for the same metrics; empty if none is due."""
        if self.suspects and self.tested is None and len(self.running) < self.load.replicas:
            self.tested = self.suspects.popleft()
            return [self.tested]
        if not self.waiting or len(self.running) >= 2 * self.load.replicas:
            return []
        metrics = self.waiting[0].metrics
        batch = list(islice((job for job in self.waiting if job.metrics == metrics), self.load.batch))
        if not self._is_due(batch):
            return []
        ids = set(map(id, batch))
        self.waiting = deque(job for job in self.waiting if id(job) not in ids)
        return batch

    def _is_due(self, batch: Sequence[_Job]) -> bool:
        """Return True if the batch should be sent now, either to an idle replica or in advance to a busy one."""
        full = len(batch) == self.load.batch
        if len(self.running) >= self.load.replicas:
            return full and not self.suspects and self.tested is None
        waited = asyncio.get_running_loop().time() - batch[0].since
        return full or waited >= self.load.gather_seconds

    async def _run(self, batch: list[_Job]) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        self.watch.count_batch(len(batch))
        begun = loop.time()
        for job in batch:
            self.watch.add_seconds("queue", begun - job.since)
        try:
            answers = await self.score_batch([job.request for job in batch], batch[0].metrics)
            for job, image_answers in zip(batch, answers, strict=True):
                self._finish(job, image_answers)
            self.seconds_per_image = (loop.time() - begun) / len(batch)
        except ReplicaDied:
            self._repeat(batch)
        except Exception as error:
            failure = RowError("model_failed", f"{type(error).__name__}: the batch failed; retry", retryable=True)
            for job in batch:
                self._finish(job, {name: MetricAnswer(None, failure) for name in job.metrics})
        finally:
            self.running.discard(task) if task else None
            if batch[0] is self.tested:
                self.tested = None
        self._start()  # skipped if the task is cancelled, because the loop is ending

    def _repeat(self, batch: Sequence[_Job]) -> None:
        """Put the images of a dead replica at the front of the queue, giving up those with max_deaths deaths."""
        self.watch.count_death()
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
            self.cache.add(self._key(job.digest, name), answer)
        if self.sentinel is not None:
            self.sentinel.add_image(job.request.prompt, self.served.with_reward(answers))
        self.pending.pop((job.digest, job.metrics), None)
        job.answers.set_result(answers)


def _digest(request: ScoreRequest) -> bytes:
    """Hash the frames, sources, prompt and questions of a request."""
    frames = [hashlib.sha256(image).digest() for image in (*request.images, *request.sources)]
    texts = [request.prompt] if request.questions is None else [request.prompt, repr(request.questions)]
    text_digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    counts = [len(images).to_bytes(8, "big") for images in (request.images, request.sources)]
    return hashlib.sha256(b"".join([*frames, *counts, *text_digests])).digest()
