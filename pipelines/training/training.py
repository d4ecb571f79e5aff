"""A training from its configuration to its checkpoint: what it stands on is pinned, and Ray Train runs its workers."""

import json
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ray

from operators.errors import ConfigError, PlumblineError
from operators.models.checkpoints import ModelConfig, ResolvedModel, resolve_model
from operators.models.parts import digest_file, find_part
from operators.training.checkpoint import begin
from operators.training.loop import Report
from pipelines.cells.cells import digest
from pipelines.judging.metaeval import Findings, write_findings
from pipelines.judging.releases.release import Release
from pipelines.judging.releases.scores import read_scores
from pipelines.running.errors import RunnerError, one_line
from pipelines.running.machines import next_wave
from pipelines.running.session import ray_session
from pipelines.running.surroundings import VARIABLES, Landmark, Surroundings, surroundings
from pipelines.sources.shards import (
    check_columns,
    cut_shards,
    list_files,
    read_footer,
    require_columns,
)
from pipelines.sources.uris import Uris, benchmark_uris
from pipelines.storage import create, locate, readable_errors, write_errors
from pipelines.training.config import POOL, BeginConfig, FinetuneConfig, StageConfig
from pipelines.training.examples import Examples, ExampleShard
from pipelines.training.notices import Notices
from pipelines.training.worker import CHECKPOINT, CONFIG, HELD_OUT, Seat, Task, work

RECIPE, BEGUN = "training.json", "begun"
AGREEMENT = "agreement"
LISTENING_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTraining:
    """A training before anything of it is loaded."""

    config: StageConfig | FinetuneConfig
    task: Task
    release: Release | None
    """What people said of the held-out images."""
    recipe: Mapping[str, Any]
    """All that its result follows from."""
    words: str
    """What is trained on, for a person."""


class Trained(NamedTuple):
    """What a training came to."""

    checkpoint: str
    failed: int
    """Rows that were left out because they could not be read."""
    findings: Findings | None
    """How far VQAScore agrees with people on held-out prompts before and after."""


def plan_training(config: StageConfig | FinetuneConfig) -> PlannedTraining:
    """Pins the checkpoint and the rows; raises ConfigError, ModelError or SourceError for what cannot be trained."""
    if isinstance(config, FinetuneConfig):
        return _plan_finetune(config, resolve_model(config.model, on_gpu=config.pool.num_gpus > 0))
    examples = _table_examples(config)
    chosen = config.model if config.begin is None else _begun(config, config.begin)
    model = resolve_model(chosen, on_gpu=config.pool.num_gpus > 0)
    words = f"{sum(shard.shard.rows for shard in examples.shards)} rows of {config.data}"
    return _planned(config, model, examples, words)


def _begun(config: StageConfig, parts: BeginConfig) -> ModelConfig:
    """The model with the checkpoint that the parts make, which is written into the output."""
    folder = Path(locate(config.output, config.storage).path) / BEGUN
    if config.output.startswith("s3://"):
        raise ConfigError(f"output {config.output}: a training that begins with parts wants a folder for them")
    if not (folder / CONFIG).exists():
        language, tower = (
            find_part(source, None, digest_file) for source in (parts.language_model, parts.vision_tower)
        )
        with tempfile.TemporaryDirectory(dir=_made(folder.parent)) as draft:
            begin(language, tower, Path(draft) / BEGUN, seed=config.seed)
            (Path(draft) / BEGUN).replace(folder)
    return replace(
        config.model,
        checkpoint=str(folder),
        revision=None,
        tokenizer=None,
        vision_tower=None,
        vision_tower_revision=None,
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _plan_finetune(config: FinetuneConfig, model: ResolvedModel) -> PlannedTraining:
    from pipelines.training.rated import read_rated  # takes pandas' and the protocols' imports

    assert model.kind is not None, "CLIP-FlanT5 has a kind"
    rated = read_rated(config, model.kind)
    trained, held_out = (_rated_examples(config, shards) for shards in (rated.trained, rated.held_out))
    counts = [sum(len(shard.places) for shard in examples.shards) for examples in (trained, held_out)]
    low, high = rated.range
    words = f"{counts[0]} images rated from {low:g} to {high:g}, {counts[1]} of other prompts held out"
    return _planned(config, model, trained, words, held_out, rated.release)


def _planned(
    config: StageConfig | FinetuneConfig,
    model: ResolvedModel,
    examples: Examples,
    words: str,
    held_out: Examples | None = None,
    release: Release | None = None,
) -> PlannedTraining:
    rows = sum(len(shard.places) for shard in examples.shards)
    stage = config.pace.stage(rows)
    task = Task(
        model=model,
        examples=examples,
        held_out=held_out,
        stage=stage,
        trained=config.trained,
        seed=config.seed,
        mixed=config.mixed,
        save_every=config.save_every,
        most_failed=int(config.max_failed * stage.steps * stage.size),
        output=locate(config.output, config.storage).url,
        storage=config.storage,
        threads=config.pool.threads,
    )
    recipe = {
        "kind": config.kind,
        "model": model.semantic(),
        "trained": sorted(config.trained),
        "stage": asdict(stage),
        "seed": config.seed,
        "workers": config.workers,
        "mixed": config.mixed,
        "rows": digest([[shard.shard.source(), _rated_content(shard)] for shard in examples.shards]),
        "limits": config.limits.semantic(),
        "clips": asdict(config.clips),
    }
    words = f"{config.kind}: {words}; {stage.steps} steps of {stage.size} images on {config.workers} workers"
    return PlannedTraining(
        config=config, task=task, release=release, recipe=json.loads(json.dumps(recipe)), words=words
    )


def _rated_content(shard: ExampleShard) -> list[Any]:
    return [[place, image.question, image.share] for place, image in (shard.rated or {}).items()]


def _rated_examples(config: FinetuneConfig, shards: Sequence[ExampleShard]) -> Examples:
    return Examples(
        kind=config.kind,
        shards=shards,
        texts=(),
        uris=benchmark_uris(config.benchmark, config.storage, config.limits),
        storage=config.storage,
        limits=config.limits,
        clips=config.clips,
    )


def _table_examples(config: StageConfig) -> Examples:
    """The rows of the data's Parquet files; raises ConfigError or SourceError for one that lacks a column."""
    location = locate(config.data, config.storage)
    with readable_errors(location, "data"):
        files = list(list_files(location, config.kind, (".parquet",)))
    if not files:
        raise ConfigError(f"data {location.url}: expected Parquet files, found none")
    columns = {name: getattr(config.columns, name) for name in ("image", "uri", *config.texts)}
    names = tuple((name, column) for name, column in columns.items() if name != column)
    shards = []
    for file in files:
        footer = read_footer(file, config.storage)
        schema = footer.schema.to_arrow_schema()
        require_columns(schema, config.texts, names, "columns", file.url)
        if not {columns["image"], columns["uri"]} & set(schema.names):
            require_columns(schema, ["image"], names, "columns", file.url)
        check_columns(schema, list(columns.values()), (), file.url)
        shards += [ExampleShard(shard=shard) for shard in cut_shards(file, footer, names, config.shard_rows)]
    if not shards:
        raise ConfigError(f"data {location.url}: its files hold no rows")
    folder = location.url.rpartition("/")[0] if location.path.endswith(".parquet") else location.url
    return Examples(
        kind=config.kind,
        shards=shards,
        texts=config.texts,
        uris=Uris(roots=(folder, *config.uri_roots), storage=config.storage, max_bytes=config.limits.max_bytes),
        storage=config.storage,
        limits=config.limits,
        clips=config.clips,
    )


def run_training(planned: PlannedTraining, report: Report) -> Trained:
    """Trains, or goes on where the same training was ended; what was finished before is not done again.

    Raises ConfigError where the output holds another training, RunnerError where the workers end again and again.
    """
    output = locate(planned.task.output, planned.task.storage)
    checkpoint = output.below(CHECKPOINT)
    _claim(planned)
    failed = 0
    if output.fs.exists(checkpoint.at(CONFIG)):
        report(f"{checkpoint.url} is trained already")
    else:
        failed = _run_workers(planned, report)
    return Trained(checkpoint.url, failed, _findings(planned))


def _claim(planned: PlannedTraining) -> None:
    """Writes the recipe into the output; raises ConfigError where it holds the training of another one."""
    output = locate(planned.task.output, planned.task.storage)
    path = output.at(RECIPE)
    with write_errors(path):
        if create(output, path, (json.dumps(planned.recipe, indent=2) + "\n").encode()):
            return
        standing = json.loads(output.fs.cat_file(path))
    different = [name for name, value in planned.recipe.items() if standing.get(name) != value]
    if different:
        raise ConfigError(
            f"{output.url}: holds a training with other {' and '.join(different)}; give another output, or remove it"
        )


def _findings(planned: PlannedTraining) -> Findings | None:
    if planned.release is None or not isinstance(planned.config, FinetuneConfig):
        return None
    from pipelines.training.rated import judge_held_out

    output = locate(planned.task.output, planned.task.storage)
    scores = output.below(HELD_OUT)
    findings = judge_held_out(planned.config, planned.release, read_scores(scores), scores.url)
    write_findings(findings, output.below(AGREEMENT))
    return findings


def _run_workers(planned: PlannedTraining, report: Report) -> int:
    """Runs the workers to the end; gives the rows that were left out in this run."""
    config, task = planned.config, planned.task
    output = locate(task.output, task.storage)
    with ray_session(config.cluster) as cluster:
        next_wave({POOL: config.pool}, cluster.wait_seconds)
        shard = task.examples.shards[0].shard
        source = Landmark(place=f"source {shard.url}", url=shard.url, size=shard.size, etag=shard.etag)
        with surroundings(f"output {output.url}", output, [source], task.storage, VARIABLES) as given:
            notices = ray.remote(num_cpus=0)(Notices).remote()
            failed = _listen(_fitting(planned, given, notices), notices, report)
            refusal = ray.get(notices.refused.remote())
    if refusal is not None:
        raise RunnerError(refusal)
    return failed


def _fitting(planned: PlannedTraining, given: Surroundings, notices: Any) -> "Fitting":
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


def _listen(fitting: Fitting, notices: Any, report: Report) -> int:
    """Passes on what the workers say until they have ended; gives the number of rows that were left out."""
    fitting.start()
    left_out, ended = 0, False
    while not ended:
        fitting.join(LISTENING_SECONDS)
        ended = not fitting.is_alive()
        for line in ray.get(notices.take.remote()):
            left_out += line.startswith("left out: ")
            report(line)
    refusal = ray.get(notices.refused.remote())
    if fitting.error is not None and refusal is None:
        raise RunnerError(f"training: {one_line(fitting.error)}; run the same command to go on from the last state")
    return left_out


def _work(task: Task, given: Surroundings, notices: Any) -> None:
    """What Ray Train runs in each worker; an error that a person must act on ends the training for good."""
    from ray.train import get_context
    from ray.train.torch import get_device

    if ray.get(notices.refused.remote()) is not None:
        return
    context = get_context()
    seat = Seat(context.get_world_rank(), context.get_world_size(), get_device())
    try:
        given.enter()
        work(task, seat, lambda line: ray.get(notices.say.remote(line)))
    except PlumblineError as error:
        ray.get(notices.refuse.remote(str(error)))
        raise
