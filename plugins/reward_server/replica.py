"""A replica of the reward service: a Scorer in a separate process."""

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

from plumbline.operators.base.batches import is_device_lost
from plumbline.operators.base.errors import RowError
from plumbline.operators.scoring.scorer import Phase, Scorer, ScorerConfig, WrittenQuestionStore
from plumbline.operators.stages.graph import list_source_metrics
from plumbline.pipelines.base.cluster_config import PoolConfig
from plumbline.pipelines.running.machines import find_own_resources
from plumbline.pipelines.running.process import Deadline, tune_process
from plumbline.plugins.reward_server.groups import rename_failed_image
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, ScoreRequest

BATCHES_PER_REPLICA = 2
"""Number of batches sent to a replica at a time. The replica decodes the next batch while it computes the current one,
unless it has only one core.
"""
NOT_FINITE_ERROR = RowError("not_finite", "the score is not a finite number; set the model's dtype=float32")


class ScoredBatch(NamedTuple):
    """Answers for each image in a batch, and the seconds that each phase took."""

    answers: list[dict[str, MetricAnswer]]
    seconds: Mapping[Phase, float]


class Replica:
    """Process with loaded models. Ray Serve replaces it if it dies, hangs or loses its GPU."""

    def __init__(
        self,
        config: ScorerConfig,
        pool: PoolConfig,
        pack: pa.Table | None = None,
        written: WrittenQuestionStore | None = None,
    ) -> None:
        """Load the models. The pool's deadline applies separately to decoding a batch and to its model calls."""
        tune_process(pool.threads)
        machine = find_own_resources()
        config = replace(config, decoders=pool.count_decoders(machine.cpus, machine.gpus))
        self.deadline = Deadline(pool.deadline)
        self.scorer = Scorer(config, self._watch, pack=pack, written=written)
        uses_service = any(stage.side_by_side and node.roles for node, stage, _ in self.scorer.nodes)
        decodes_ahead = pool.num_gpus > 0 or config.decoders > 1 or uses_service
        self.threads = ThreadPoolExecutor(
            BATCHES_PER_REPLICA if decodes_ahead else 1
        )  # two threads slow each other on one core
        self.batch = threading.local()
        """Thread-local storage for the `seconds` of the batch that the thread is scoring."""

    async def score(self, requests: Sequence[ScoreRequest], metrics: Sequence[str]) -> ScoredBatch:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, self._score_unwatched, requests, metrics)

    def _score_unwatched(self, requests: Sequence[ScoreRequest], metrics: Sequence[str]) -> ScoredBatch:
        self.batch.seconds = {"decode": 0.0, "model": 0.0}
        try:
            return ScoredBatch(score_batch(self.scorer, requests, metrics), self.batch.seconds)
        except Exception as error:
            if is_device_lost(error):
                os._exit(1)  # only a new process can load the models again
            raise

    @contextmanager
    def _watch(self, phase: Phase) -> Iterator[None]:
        begun = time.perf_counter()
        with self.deadline():
            yield
        self.batch.seconds[phase] += time.perf_counter() - begun


def score_batch(
    scorer: Scorer, requests: Sequence[ScoreRequest], metrics: Sequence[str]
) -> list[dict[str, MetricAnswer]]:
    """Score images, and return each image's answers by metric. A score that is not finite becomes an error."""
    if any(request.other for request in requests):
        return _compare_batch(scorer, requests, metrics)
    images = [image.images[0] if len(image.images) == 1 else image.images for image in requests]
    questions = [image.questions for image in requests]
    has_questions = any(image_questions is not None for image_questions in questions)
    use_sources = list_source_metrics({name: scorer.metrics[name] for name in metrics})
    sources = [image.sources for image in requests] if use_sources else None
    prompts = [image.prompt for image in requests]
    table = scorer.score_table(images, prompts, metrics, questions if has_questions else None, sources)
    return _list_answers(table, len(requests))


def _compare_batch(
    scorer: Scorer, requests: Sequence[ScoreRequest], metrics: Sequence[str]
) -> list[dict[str, MetricAnswer]]:
    """Return, for each pair of images, the probabilities by metric that the first image is better."""
    images = [image for pair in requests for image in (pair.images, pair.other)]
    doubled = [pair for pair in requests for _ in range(2)]
    use_sources = list_source_metrics({name: scorer.metrics[name] for name in metrics})
    sources = [pair.sources for pair in doubled] if use_sources else None
    groups = [number // 2 for number in range(len(images))]
    prompts = [pair.prompt for pair in doubled]
    table = scorer.score_table(images, prompts, metrics, sources=sources, groups=groups)
    return [
        {name: _renumber_images(answer, 2 * number) for name, answer in answers.items()}
        for number, answers in enumerate(_list_answers(table, len(images))[::2])
    ]


def _renumber_images(answer: MetricAnswer, first: int) -> MetricAnswer:
    """Return the answer about the images `first` and `first + 1` of a batch, with an error about images 0 and 1."""
    error = answer.error
    for index in (1, 0):
        error = error and rename_failed_image(error, first + index, index)
    return answer._replace(error=error)


def _list_answers(table: pa.Table, count: int) -> list[dict[str, MetricAnswer]]:
    """Return the answers of a number of images by metric, from a table with their scores."""
    answers: list[dict[str, MetricAnswer]] = [{} for _ in range(count)]
    columns = (table.column(name).to_pylist() for name in ("image_id", "metric", "score", "error"))
    for place, metric, score, error in zip(*columns, strict=True):
        failure = None if score is not None and math.isfinite(score) else NOT_FINITE_ERROR
        if error is not None:
            failure = RowError(str(error["kind"]), str(error["message"]), bool(error["retryable"]))
        answers[int(place)][metric] = MetricAnswer(None if failure else score, failure)
    return answers
