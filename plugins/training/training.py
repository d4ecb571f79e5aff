"""A planned training run by Ray Train, to its checkpoint and how far that agrees with people."""

import json
import tempfile
import threading
from functools import partial
from typing import Any, NamedTuple

import ray

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.pipelines.base.storage import write_errors
from plumbline.pipelines.judging.metaeval import Findings, write_findings
from plumbline.pipelines.judging.releases.scores import read_scores
from plumbline.pipelines.running.driver_environment import (
    VARIABLES,
    DriverEnvironment,
    VisibilityProbe,
    driver_environment,
)
from plumbline.pipelines.running.errors import RunnerError, one_line
from plumbline.pipelines.running.machines import next_wave
from plumbline.pipelines.running.session import ray_session
from plumbline.plugins.training.loop import Report
from plumbline.plugins.training.planning import PlannedTraining
from plumbline.plugins.training.rated import judge_held_out
from plumbline.plugins.training.training_config import POOL, FinetuneConfig
from plumbline.plugins.training.worker import CHECKPOINT, CONFIG, HELD_OUT, OUTCOME, Seat, Task, work


class Notices:
    """Lines, and why the training cannot go on; run as an actor, so that it outlives the workers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.refusal: str | None = None

    def say(self, line: str) -> None:
        self.lines.append(line)

    def take(self) -> list[str]:
        """The lines that came since the last time."""
        lines, self.lines = self.lines, []
        return lines

    def refuse(self, message: str) -> None:
        """Notes why the training cannot go on, so that it is not begun again in vain."""
        self.refusal = self.refusal or message

    def refused(self) -> str | None:
        return self.refusal


RECIPE = "training.json"
AGREEMENT = "agreement"
LISTENING_SECONDS = 0.5


class Trained(NamedTuple):
    """What a training came to."""

    checkpoint: str
    failed: int
    """Rows that were left out because they could not be read."""
    findings: Findings | None
    """How far VQAScore agrees with people on held-out prompts before and after."""


def run_training(planned: PlannedTraining, report: Report) -> Trained:
    """Trains, or goes on where the same training was ended; what was finished before is not done again.

    Raises ConfigError where the output holds another training, RunnerError where the workers end again and again.
    """
    output = planned.task.output
    checkpoint = output / CHECKPOINT
    _claim(planned)
    if (checkpoint / CONFIG).exists():
        report(f"{checkpoint.url} is trained already")
    else:
        _run_workers(planned, report)
    outcome = json.loads((output / OUTCOME).read())
    return Trained(checkpoint.url, outcome["failed"], _findings(planned))


def _claim(planned: PlannedTraining) -> None:
    """Writes the recipe into the output; raises ConfigError where it holds the training of another one."""
    output = planned.task.output
    recipe = output / RECIPE
    with write_errors(recipe):
        if recipe.create((json.dumps(planned.recipe, indent=2) + "\n").encode()):
            return
        standing = json.loads(recipe.read())
    different = [name for name, value in planned.recipe.items() if standing.get(name) != value]
    if different:
        raise ConfigError(
            f"{output.url}: holds a training with other {' and '.join(different)}; give another output, or remove it"
        )


def _findings(planned: PlannedTraining) -> Findings | None:
    if planned.release is None or not isinstance(planned.config, FinetuneConfig):
        return None
    output = planned.task.output
    scores = output / HELD_OUT
    findings = judge_held_out(planned.config, planned.release, read_scores(scores), scores.url)
    write_findings(findings, output / AGREEMENT)
    return findings


def _run_workers(planned: PlannedTraining, report: Report) -> None:
    """Runs the workers to the end, started again where one of them dies."""
    config, task = planned.config, planned.task
    output = task.output
    with ray_session(config.cluster) as cluster:
        next_wave({POOL: config.pool}, cluster.wait_seconds)
        shard = task.examples.shards[0].shard
        source = VisibilityProbe(f"source {shard.place}", shard.place, shard.size, shard.etag)
        with driver_environment(f"output {output}", output, [source], VARIABLES) as given:
            notices = ray.remote(num_cpus=0)(Notices).remote()
            _listen(_fitting(planned, given, notices), notices, report)


def _fitting(planned: PlannedTraining, given: DriverEnvironment, notices: Any) -> "Fitting":
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    pool, scratch = planned.config.pool, tempfile.TemporaryDirectory(prefix="plumbline-training-")
    trainer = TorchTrainer(
        partial(_work, planned.task, given, notices),
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
    return Fitting(trainer, scratch)


class Fitting(threading.Thread):
    """Ray Train's own wait for its workers, in a thread: in the main one it takes the signals that end a job."""

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


def _listen(fitting: Fitting, notices: Any, report: Report) -> None:
    """Passes on what the workers say until they have ended; raises RunnerError where they did not come to the end."""
    fitting.start()
    ended = False
    while not ended:
        fitting.join(LISTENING_SECONDS)
        ended = not fitting.is_alive()
        for line in ray.get(notices.take.remote()):
            report(line)
    refusal = ray.get(notices.refused.remote())
    if refusal is not None:
        raise RunnerError(refusal)
    if fitting.error is not None:
        raise RunnerError(f"training: {one_line(fitting.error)}; run the same command to go on from the last state")


def _work(task: Task, given: DriverEnvironment, notices: Any) -> None:
    """What Ray Train runs in each worker; an error that a person must act on ends the training for good."""
    from ray.train import get_context
    from ray.train.torch import get_device

    if ray.get(notices.refused.remote()) is not None:
        return
    context = get_context()
    seat = Seat(context.get_world_rank(), context.get_world_size(), get_device())
    try:
        given.apply()
        work(task, seat, lambda line: ray.get(notices.say.remote(line)))
    except PlumblineError as error:
        ray.get(notices.refuse.remote(str(error)))
        raise
