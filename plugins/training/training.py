"""Carries out a planned training run with Ray Train, and measures the checkpoint's agreement with people."""

import json
import tempfile
import threading
from functools import partial
from typing import Any, NamedTuple

import ray

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.pipelines.base.storage import convert_write_errors
from plumbline.pipelines.metaeval.metaeval import Findings, write_findings
from plumbline.pipelines.metaeval.releases.scores import read_scores
from plumbline.pipelines.running.driver_environment import (
    HUB_VARIABLES,
    DriverEnvironment,
    VisibilityProbe,
    open_driver_environment,
)
from plumbline.pipelines.running.errors import RunnerError, format_error
from plumbline.pipelines.running.machines import choose_next_wave
from plumbline.pipelines.running.session import open_ray_session
from plumbline.plugins.training.loop import Report
from plumbline.plugins.training.planning import PlannedTraining
from plumbline.plugins.training.rated_images import measure_held_out_agreement
from plumbline.plugins.training.training_config import TRAINING_POOL, FinetuneConfig
from plumbline.plugins.training.worker import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    HELD_OUT_FILE,
    OUTCOME_FILE,
    WorkerRank,
    WorkerTask,
    run_worker,
)


class WorkerReports:
    """Ray actor that stores the lines that workers report, and a fatal error. It outlives the workers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.fatal_error: str | None = None

    def add(self, line: str) -> None:
        self.lines.append(line)

    def take_lines(self) -> list[str]:
        """Return the lines that were added since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def record_error(self, message: str) -> None:
        """Record a fatal error, after which further attempts are pointless."""
        self.fatal_error = self.fatal_error or message

    def get_error(self) -> str | None:
        return self.fatal_error


RECIPE_FILE = "training.json"
AGREEMENT_NAME = "agreement"
POLL_SECONDS = 0.5


class TrainingResult(NamedTuple):
    """The trained checkpoint, the number of omitted rows, and the checkpoint's agreement with people."""

    checkpoint: str
    failed: int
    """Number of unreadable rows that were left out."""
    findings: Findings | None
    """VQAScore's agreement with people on held-out prompts, before and after training."""


def run_training(planned: PlannedTraining, report: Report) -> TrainingResult:
    """Train, or resume an interrupted training run. A finished run is not repeated.

    Raises ConfigError if the output contains a different training run, and RunnerError if the workers keep failing.
    """
    output = planned.task.output
    checkpoint = output / CHECKPOINT_FOLDER
    _write_recipe(planned)
    if (checkpoint / CONFIG_FILE).exists():
        report(f"{checkpoint.url} is already trained")
    else:
        _run_workers(planned, report)
    outcome = json.loads((output / OUTCOME_FILE).read())
    return TrainingResult(checkpoint.url, outcome["failed"], _measure_agreement(planned))


def _write_recipe(planned: PlannedTraining) -> None:
    """Write the recipe to the output; raise ConfigError if the output already contains a different recipe."""
    output = planned.task.output
    recipe = output / RECIPE_FILE
    with convert_write_errors(recipe):
        if recipe.create((json.dumps(planned.recipe, indent=2) + "\n").encode()):
            return
        existing = json.loads(recipe.read())
    different = [name for name, value in planned.recipe.items() if existing.get(name) != value]
    if different:
        names = " and ".join(different)
        raise ConfigError(
            f"{output.url} contains a training run that differs in {names}; choose another output, or remove it"
        )


def _measure_agreement(planned: PlannedTraining) -> Findings | None:
    if planned.release is None or not isinstance(planned.config, FinetuneConfig):
        return None
    output = planned.task.output
    scores = output / HELD_OUT_FILE
    findings = measure_held_out_agreement(planned.config, planned.release, read_scores(scores), scores.url)
    write_findings(findings, output / AGREEMENT_NAME)
    return findings


def _run_workers(planned: PlannedTraining, report: Report) -> None:
    """Run the workers until they finish; Ray Train restarts them if one dies."""
    config, task = planned.config, planned.task
    output = task.output
    with open_ray_session(config.cluster) as cluster:
        choose_next_wave({TRAINING_POOL: config.pool}, cluster.wait_seconds)
        shard = task.examples.shards[0].shard
        source = VisibilityProbe(f"source {shard.place}", shard.place, shard.size, shard.etag)
        with open_driver_environment(f"output {output}", output, [source], HUB_VARIABLES) as environment:
            reports = ray.remote(num_cpus=0)(WorkerReports).remote()
            _wait_for_workers(_make_trainer(planned, environment, reports), reports, report)


def _make_trainer(planned: PlannedTraining, environment: DriverEnvironment, reports: Any) -> "TrainerThread":
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    pool, scratch = planned.config.pool, tempfile.TemporaryDirectory(prefix="plumbline-training-")
    trainer = TorchTrainer(
        partial(_run_worker, planned.task, environment, reports),
        scaling_config=ScalingConfig(
            num_workers=planned.config.workers,
            use_gpu=pool.num_gpus > 0,
            resources_per_worker={"CPU": pool.num_cpus, **({"GPU": pool.num_gpus} if pool.num_gpus else {})},
            accelerator_type=pool.accelerator_type,
            label_selector=dict(pool.labels) or None,
        ),
        run_config=RunConfig(
            name="training",
            storage_path=scratch.name,
            failure_config=FailureConfig(max_failures=planned.config.cluster.max_attempts - 1),
        ),
    )
    return TrainerThread(trainer, scratch)


class TrainerThread(threading.Thread):
    """Thread that runs Ray Train. In the main thread, Ray Train would handle the signals that end a job."""

    def __init__(self, trainer: Any, scratch: "tempfile.TemporaryDirectory[str]") -> None:
        super().__init__(daemon=True)
        self.trainer = trainer
        self.scratch = scratch
        self.error: BaseException | None = None

    def run(self) -> None:
        with self.scratch:
            try:
                self.trainer.fit()
            except BaseException as error:
                self.error = error


def _wait_for_workers(trainer: TrainerThread, reports: Any, report: Report) -> None:
    """Report the workers' lines until training ends; raise RunnerError if it failed."""
    trainer.start()
    ended = False
    while not ended:
        trainer.join(POLL_SECONDS)
        ended = not trainer.is_alive()
        for line in ray.get(reports.take_lines.remote()):
            report(line)
    fatal_error = ray.get(reports.get_error.remote())
    if fatal_error is not None:
        raise RunnerError(fatal_error)
    if trainer.error is not None:
        raise RunnerError(
            f"training: {format_error(trainer.error)}; run the same command to continue from the last state"
        )


def _run_worker(task: WorkerTask, environment: DriverEnvironment, reports: Any) -> None:
    """Run a worker in a Ray process. Errors raised by plumbline itself are fatal, because a restart would not help."""
    from ray.train import get_context
    from ray.train.torch import get_device

    if ray.get(reports.get_error.remote()) is not None:
        return
    context = get_context()
    rank = WorkerRank(context.get_world_rank(), context.get_world_size(), get_device())
    try:
        environment.apply()
        run_worker(task, rank, lambda line: ray.get(reports.add.remote(line)))
    except PlumblineError as error:
        ray.get(reports.record_error.remote(str(error)))
        raise
