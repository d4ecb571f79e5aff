"""A replica of the reward service: a Scorer in a process of its own."""

import asyncio
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from plumbline.operators.base.batches import device_lost
from plumbline.operators.base.errors import RowError
from plumbline.operators.scoring.scorer import Part, Scorer, ScorerConfig, WrittenQuestions
from plumbline.operators.stages.graph import need_sources
from plumbline.pipelines.base.cluster import PoolConfig
from plumbline.pipelines.running.machines import own_resources
from plumbline.pipelines.running.process import Deadline, tune_process
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, ScoreRequest

BATCHES = 2
"""One is computed while the next is decoded, or waits where there is but one core for both."""
NOT_FINITE = RowError("not_finite", "the score is no finite number; set the model's dtype=float32")


class ScoredBatch(NamedTuple):
    """A batch's answers, and the seconds that each part of it took."""

    answers: list[dict[str, MetricAnswer]]
    """About every image, by metric."""
    seconds: Mapping[Part, float]


class Replica:
    """Holds the models; Ray Serve starts another where it dies, hangs or loses its GPU."""

    def __init__(
        self,
        config: ScorerConfig,
        pool: PoolConfig,
        pack: pa.Table | None = None,
        written: WrittenQuestions | None = None,
    ) -> None:
        """The pool's deadline is of one batch's decoding, and of its models' calls; the others are the Scorer's."""
        tune_process(pool.threads)
        machine = own_resources()
        config = replace(config, decoders=pool.decoders_on(machine.cpus, machine.gpus))
        self.deadline = Deadline(pool.deadline)
        self.scorer = Scorer(config, self._watch, pack=pack, written=written)
        asks_elsewhere = any(stage.side_by_side and node.roles for node, stage, _ in self.scorer.nodes)
        beside_model = pool.num_gpus > 0 or config.decoders > 1 or asks_elsewhere
        self.threads = ThreadPoolExecutor(BATCHES if beside_model else 1)  # two on one core wait for each other
        self.batch = threading.local()
        """The seconds of the batch that a thread scores."""

    async def score(self, asked: Sequence[ScoreRequest], metrics: Sequence[str]) -> ScoredBatch:
        """The answers about every image."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, self._score, asked, metrics)

    def _score(self, asked: Sequence[ScoreRequest], metrics: Sequence[str]) -> ScoredBatch:
        self.batch.seconds = {"decode": 0.0, "model": 0.0}
        try:
            return ScoredBatch(score_batch(self.scorer, asked, metrics), self.batch.seconds)
        except Exception as error:
            if device_lost(error):
                os._exit(1)  # only a new process can load the models again
            raise

    @contextmanager
    def _watch(self, part: Part) -> Iterator[None]:
        begun = time.perf_counter()
        with self.deadline():
            yield
        self.batch.seconds[part] += time.perf_counter() - begun


def score_batch(scorer: Scorer, asked: Sequence[ScoreRequest], metrics: Sequence[str]) -> list[dict[str, MetricAnswer]]:
    """The answers about every image, by metric."""
    images = [one.images[0] if len(one.images) == 1 else one.images for one in asked]
    questions = [one.questions for one in asked] if any(one.questions is not None for one in asked) else None
    comparing = need_sources({name: scorer.metrics[name] for name in metrics})
    sources = [one.sources for one in asked] if comparing else None
    table = scorer.score_table(images, [one.prompt for one in asked], metrics, questions, sources)
    answers: list[dict[str, MetricAnswer]] = [{} for _ in asked]
    columns = (table.column(name).to_pylist() for name in ("image_id", "metric", "score", "error"))
    for place, metric, score, error in zip(*columns, strict=True):
        answers[int(place)][metric] = _answer(score, error)
    return answers


def _answer(score: float | None, error: dict[str, object] | None) -> MetricAnswer:
    if error is not None:
        return MetricAnswer(None, RowError(str(error["kind"]), str(error["message"]), bool(error["retryable"])))
    return MetricAnswer(score) if score is not None and math.isfinite(score) else MetricAnswer(None, NOT_FINITE)
