"""Combines images from many requests into batches for the replicas, and caches scores."""

import asyncio
import hashlib
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from plumbline.operators.base.errors import RowError
from plumbline.plugins.reward_server.groups import join_pairs, make_pairs
from plumbline.plugins.reward_server.sentinel import Sentinel
from plumbline.plugins.reward_server.serve_config import LoadConfig
from plumbline.plugins.reward_server.wires.wire import ImageAnswers, MetricAnswer, ScoreRequest, Served

ScoreBatch = Callable[[Sequence[ScoreRequest], Sequence[str]], Awaitable[Sequence[ImageAnswers]]]
"""Function that scores images with the named metrics on a replica. It raises ReplicaDied if the replica dies."""

KILLED_REPLICAS_ERROR = RowError(
    "killed_worker",
    "the replicas that scored this image died, or went over batch_deadline; check the image, or give the replicas "
    "more memory or time",
)
MAX_RETRY_AFTER_SECONDS = 60
"""Maximum value of Retry-After, in seconds."""


class ReplicaDied(Exception):
    """Raised if a replica dies, or is killed, before it answers a batch."""


class RetryLater(Exception):
    """Raised if the queue is full or the deadline has passed, so that the client should retry later."""

    def __init__(
        self, status: int, message: str, retry_after: int, unfinished: "Collection[asyncio.Future[ImageAnswers]]" = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.unfinished = unfinished
        """Images of the request that are still waiting for their scores."""


class Counters(Protocol):
    """Interface of the counters that a service updates."""

    def count_batch(self, images: int) -> None:
        """Count a batch that is sent to a replica."""

    def count_answer(self, metric: str, outcome: str) -> None:
        """Count an answer for an image: `scored`, `cached` or `null`."""

    def count_replica_death(self) -> None:
        """Count a replica that died while it was processing a batch."""

    def add_seconds(self, part: str, seconds: float) -> None:
        """Add the time spent in a phase: `queue` for each image; `send`, `decode` and `model` for each batch."""


class ScoreCache:
    """Cache of the most recently used scores. Nulls are not cached, because a retry may succeed."""

    def __init__(self, max_scores: int) -> None:
        self.max_scores = max_scores
        self.answers: OrderedDict[bytes, MetricAnswer] = OrderedDict()

    def __len__(self) -> int:
        return len(self.answers)

    def get(self, key: bytes) -> MetricAnswer | None:
        """Return the cached answer and mark it as recently used; return None if the key is not cached."""
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
    """An image to score. One or more requests are waiting for it."""

    digest: bytes
    request: ScoreRequest
    metrics: tuple[str, ...]
    """Metrics to compute; scores of the other requested metrics are cached."""
    since: float
    answers: "asyncio.Future[ImageAnswers]"
    deaths: int = 0


class Service:
    """Scoring service. It looks up scores in a cache, and computes missing scores in batches across requests.

    Identical images with the same prompt, questions, sources and metrics are scored once. An idle replica receives a
    batch once the batch is full or its first image has waited for `gather_seconds`. A busy replica receives its next
    batch in advance only if the batch is full, so batches grow with the load. All images of a batch need the same
    metrics.

    If a replica dies, its batch is tried again on another replica. If the second replica dies too, each image is tried
    again by itself. Meanwhile, no replica receives a batch in advance, because the batch would be lost if the image
    killed the replica. After `max_deaths` deaths, an image gets an error.
    """

    def __init__(
        self, score: ScoreBatch, served: Served, load: LoadConfig, counters: Counters, sentinel: Sentinel | None = None
    ) -> None:
        self.score_batch = score
        self.served = served
        self.load = load
        self.counters = counters
        self.sentinel = sentinel
        self.cache = ScoreCache(load.cached_scores)
        self.waiting: deque[_Job] = deque()
        self.suspects: deque[_Job] = deque()
        """Images from batches on which two replicas died."""
        self.tested: _Job | None = None
        """Image from `suspects` that is currently being scored alone."""
        self.pending: dict[tuple[bytes, tuple[str, ...]], _Job] = {}
        self.running: set[asyncio.Task[None]] = set()
        self.seconds_per_image = 0.0
        self.timer: asyncio.TimerHandle | None = None

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ImageAnswers]:
        """Return the answers for each image, in order; raise RetryLater if the queue is full or the deadline passes.

        Images with the same prompt are compared with each other if a metric requires it.
        """
        pairs = make_pairs(requests, self.served)
        if self.count_waiting() + len(requests) + len(pairs) > self.load.max_waiting:
            raise RetryLater(
                429, f"{self.count_waiting()} images are already waiting; retry later", self.estimate_wait()
            )
        digests: dict[bytes, bytes] = {}
        jobs = [self._find_job(request, digests) for request in (*requests, *(pair.request for pair in pairs))]
        futures = {job.answers for _, job in jobs if job is not None}
        if futures:
            _, late = await asyncio.wait(futures, timeout=self.load.deadline)
            if late:
                raise RetryLater(
                    503, f"no score after {self.load.deadline:g} seconds; retry", self.estimate_wait(), late
                )
        answers = [self._join_answers(known, job.answers.result() if job else {}) for known, job in jobs]
        compared = join_pairs(requests, pairs, answers[len(requests) :], self.served)
        return [
            self._select_answers(request, {**alone, **in_group})
            for request, alone, in_group in zip(requests, answers, compared, strict=False)
        ]

    def count_waiting(self) -> int:
        """Return the number of images that are waiting for a replica."""
        return len(self.waiting) + len(self.suspects)

    def estimate_wait(self) -> int:
        """Estimate the seconds until the waiting images are scored."""
        return max(1, min(MAX_RETRY_AFTER_SECONDS, math.ceil(self.count_waiting() * self.seconds_per_image)))

    def _select_answers(self, request: ScoreRequest, answers: ImageAnswers) -> ImageAnswers:
        with_reward = self.served.add_reward(answers)
        return {name: with_reward[name] for name in request.metrics}

    def _join_answers(self, known: ImageAnswers, computed: ImageAnswers) -> ImageAnswers:
        for name in known:
            self.counters.count_answer(name, "cached")
        for name, answer in computed.items():
            self.counters.count_answer(name, "null" if answer.score is None else "scored")
        return {**known, **computed}

    def _find_job(
        self, request: ScoreRequest, digests: dict[bytes, bytes]
    ) -> tuple[dict[str, MetricAnswer], _Job | None]:
        """Return the cached scores of an image or pair, and the job that computes the missing scores, if any.

        If the request has an error, every metric gets this error, and there is no job. `digests` has the digests of the
        images that occurred in earlier requests.
        """
        if request.error is not None:
            return {name: MetricAnswer(None, request.error) for name in request.metrics}, None
        names = self.sentinel.add_watched_metrics(request.metrics) if self.sentinel else request.metrics
        computed = self.served.find_metrics_to_compute(names)
        comparing = self.served.select_comparing(names)
        needed = [name for name in computed if (name in comparing) == bool(request.other)]
        if not needed:
            return {}, None
        digest = _hash_request(request, digests)
        cached = {name: self.cache.get(self._make_key(digest, name)) for name in needed}
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
            loop.call_soon(self._send_due_batches)
        return known, job

    def _make_key(self, digest: bytes, metric: str) -> bytes:
        return hashlib.sha256(digest + self.served.metrics[metric].encode()).digest()

    def _send_due_batches(self) -> None:
        """Send all batches that are due. Set a timer if other images are waiting although a replica is idle."""
        while batch := self._take_next_batch():
            self.running.add(asyncio.ensure_future(self._score_batch_of_jobs(batch)))
        if self.timer is None and self.waiting and len(self.running) < self.load.replicas:
            self.timer = asyncio.get_running_loop().call_later(self.load.gather_seconds, self._on_timer)

    def _on_timer(self) -> None:
        self.timer = None
        self._send_due_batches()

    def _take_next_batch(self) -> list[_Job]:
        """Return the images to send next, or an empty list if no batch is due.

        These are waiting images with the same metrics, or a single image that may have killed its replicas.
        """
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

    async def _score_batch_of_jobs(self, batch: list[_Job]) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        self.counters.count_batch(len(batch))
        begun = loop.time()
        for job in batch:
            self.counters.add_seconds("queue", begun - job.since)
        try:
            answers = await self.score_batch([job.request for job in batch], batch[0].metrics)
            for job, image_answers in zip(batch, answers, strict=True):
                self._set_answers(job, image_answers)
            self.seconds_per_image = (loop.time() - begun) / len(batch)
        except ReplicaDied:
            self._requeue_jobs(batch)
        except Exception as error:
            failure = RowError("model_failed", f"{type(error).__name__}: the batch failed; retry", retryable=True)
            for job in batch:
                self._set_answers(job, {name: MetricAnswer(None, failure) for name in job.metrics})
        finally:
            self.running.discard(task) if task else None
            if batch[0] is self.tested:
                self.tested = None
        self._send_due_batches()  # skipped if the task is cancelled, because the loop is ending

    def _requeue_jobs(self, batch: Sequence[_Job]) -> None:
        """Put a dead replica's images at the front of the queue, but give up on an image after `max_deaths` deaths."""
        self.counters.count_replica_death()
        for job in batch:
            job.deaths += 1
            if job.deaths >= self.load.max_deaths:
                self._set_answers(job, {name: MetricAnswer(None, KILLED_REPLICAS_ERROR) for name in job.metrics})
        left = [job for job in batch if not job.answers.done()]
        self.suspects.extend(job for job in left if job.deaths > 1)
        self.waiting.extendleft(job for job in reversed(left) if job.deaths <= 1)

    def _set_answers(self, job: _Job, answers: ImageAnswers) -> None:
        if job.answers.done():
            return
        for name, answer in answers.items():
            self.cache.add(self._make_key(job.digest, name), answer)
        if self.sentinel is not None:
            self.sentinel.add_image(job.request.prompt, self.served.add_reward(answers))
        self.pending.pop((job.digest, job.metrics), None)
        job.answers.set_result(answers)


def _hash_request(request: ScoreRequest, digests: dict[bytes, bytes]) -> bytes:
    """Return a digest of everything that affects the answers. The digests of images are added to `digests`."""
    images = (request.images, request.sources, request.other)
    for image in chain(*images):
        if image not in digests:
            digests[image] = hashlib.sha256(image).digest()
    frames = [digests[image] for listed in images for image in listed]
    texts = [request.prompt] if request.questions is None else [request.prompt, repr(request.questions)]
    text_digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    counts = [len(listed).to_bytes(8, "big") for listed in images]
    return hashlib.sha256(b"".join([*frames, *counts, *text_digests])).digest()
