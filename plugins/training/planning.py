"""Plans a training run before any model is loaded: finds its checkpoint and rows, and makes its recipe."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.models.checkpoints.parts import digest_file, find_part, read_fields
from plumbline.operators.models.families.clip_flant5 import ClipFlanT5Model
from plumbline.operators.models.model import ModelConfig, ResolvedModel
from plumbline.operators.models.resolution import check_installed, resolve_model
from plumbline.pipelines.base.storage import convert_read_errors, is_remote
from plumbline.pipelines.metaeval.releases.release import Release
from plumbline.pipelines.sources.shards import (
    ShardSize,
    check_columns,
    list_files,
    read_footer,
    require_columns,
    split_file,
)
from plumbline.pipelines.sources.uris import UriReader, open_benchmark_uris
from plumbline.pipelines.store.cells import digest
from plumbline.plugins.training.checkpoint import assemble_checkpoint
from plumbline.plugins.training.conversations import CONVERSATIONS_SUFFIX as CONVERSATIONS
from plumbline.plugins.training.conversations import split_conversations
from plumbline.plugins.training.examples import Examples, ExampleShard
from plumbline.plugins.training.rated_images import read_rated_shards
from plumbline.plugins.training.training_config import (
    BeginConfig,
    FinetuneConfig,
    StageConfig,
    TextColumnsConfig,
)
from plumbline.plugins.training.worker import CONFIG_FILE, WorkerTask

ASSEMBLED_FOLDER = "begun"
TRAINED_TYPES = ("clip_t5", "llava")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTraining:
    """Plan for a training run, made before any model is loaded."""

    config: StageConfig | FinetuneConfig
    task: WorkerTask
    release: Release | None
    """People's ratings of the held-out images."""
    recipe: Mapping[str, Any]
    """Everything that affects the result."""
    summary: str
    """Description of the training data."""


def plan_training(config: StageConfig | FinetuneConfig) -> PlannedTraining:
    """Resolve the checkpoint and the rows; raise ConfigError, ModelError or SourceError if they cannot be used."""
    if isinstance(config, FinetuneConfig):
        return _plan_finetune(config, resolve_model(config.model, on_gpu=config.pool.num_gpus > 0))
    config, split_summary = _split_turns(config)
    examples = _list_examples(config)
    model_config = config.model if config.begin is None else _assemble_checkpoint(config, config.begin)
    model = resolve_model(model_config, on_gpu=config.pool.num_gpus > 0)
    if (kind := read_fields(model.parts["checkpoint"])["model_type"]) not in TRAINED_TYPES:
        known = " and ".join(TRAINED_TYPES)
        raise ConfigError(f"model.checkpoint {model_config.checkpoint}: cannot train a {kind}; expected {known}")
    summary = f"{sum(shard.shard.rows for shard in examples.shards)} rows of {config.data}{split_summary}"
    return _make_plan(config, model, examples, summary)


def _split_turns(config: StageConfig) -> tuple[StageConfig, str]:
    """Split conversations into one row per turn. Return the configuration for these rows, and a summary.

    Other data are left unchanged. Raises SourceError if more conversations are left out than `max_failed` allows.
    """
    source = config.storage.locate(config.data)
    if not source.path.lower().endswith(CONVERSATIONS):
        return config, ""
    split = split_conversations(source, config.storage.locate(config.output, writable=True), config.kind)
    if split.left_out > config.max_failed * split.records:
        raise SourceError(
            f"{split.reasons[0]}; {split.left_out} of {split.records} conversations cannot be read; correct them, or "
            f"raise max_failed={config.max_failed:g}"
        )
    roots = (*config.uri_roots, source.parent.url)
    return replace(config, data=split.folder, columns=TextColumnsConfig(), uri_roots=roots), f" ({split.summary})"


def _assemble_checkpoint(config: StageConfig, parts: BeginConfig) -> ModelConfig:
    if is_remote(config.output):
        raise ConfigError(
            f"output {config.output}: expected a local folder, because begin= writes a checkpoint there; choose "
            "another output"
        )
    check_installed(config.model)
    folder = Path(config.storage.locate(config.output).path) / ASSEMBLED_FOLDER
    if not (folder / CONFIG_FILE).exists():
        language, tower = (
            find_part(source, None, digest_file) for source in (parts.language_model, parts.vision_tower)
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
            assemble_checkpoint(
                language, tower, Path(draft) / ASSEMBLED_FOLDER, family=config.model.family, seed=config.seed
            )
            (Path(draft) / ASSEMBLED_FOLDER).replace(folder)
    unset: dict[str, Any] = {"revision": None, "tokenizer": None}
    if isinstance(config.model, ClipFlanT5Model):
        unset |= {"vision_tower": None, "vision_tower_revision": None}
    return replace(config.model, checkpoint=str(folder), **unset)


def _plan_finetune(config: FinetuneConfig, model: ResolvedModel) -> PlannedTraining:
    assert model.profile is not None, "CLIP-FlanT5 is a VQA model"
    rated = read_rated_shards(config, model.profile)
    trained, held_out = (_make_examples(config, shards) for shards in (rated.trained, rated.held_out))
    counts = [sum(len(shard.row_indices) for shard in examples.shards) for examples in (trained, held_out)]
    low, high = rated.range
    summary = f"{counts[0]} images rated from {low:g} to {high:g}, {counts[1]} of other prompts held out"
    return _make_plan(config, model, trained, summary, held_out, rated.release)


def _make_plan(
    config: StageConfig | FinetuneConfig,
    model: ResolvedModel,
    examples: Examples,
    summary: str,
    held_out: Examples | None = None,
    release: Release | None = None,
) -> PlannedTraining:
    rows = sum(len(shard.row_indices) for shard in examples.shards)
    stage = config.pace.make_stage(rows)
    task = WorkerTask(
        model=model,
        examples=examples,
        held_out=held_out,
        stage=stage,
        trained=config.trained,
        blend=config.blend if isinstance(config, FinetuneConfig) else 1.0,
        seed=config.seed,
        mixed=config.mixed,
        save_every=config.save_every,
        max_failed=int(config.max_failed * stage.steps * stage.size),
        output=config.storage.locate(config.output, writable=True),
        threads=config.pool.threads,
        sharded=isinstance(config, StageConfig) and config.sharded,
    )
    recipe = {
        "kind": config.kind,
        "model": model.list_key_properties(),
        "trained": sorted(config.trained),
        "stage": asdict(stage),
        "blend": task.blend,
        "seed": config.seed,
        "workers": config.workers,
        "sharded": task.sharded,
        "mixed": config.mixed,
        "rows": digest([[shard.shard.describe_source(), _list_ratings(shard)] for shard in examples.shards]),
        "limits": config.limits.list_key_properties(),
        "clips": asdict(config.clips),
    }
    summary = f"{config.kind}: {summary}; {stage.steps} steps of {stage.size} images on {config.workers} workers"
    return PlannedTraining(
        config=config, task=task, release=release, recipe=json.loads(json.dumps(recipe)), summary=summary
    )


def _list_ratings(shard: ExampleShard) -> list[Any]:
    return [[index, image.question, image.target] for index, image in (shard.rated or {}).items()]


def _make_examples(config: FinetuneConfig, shards: Sequence[ExampleShard]) -> Examples:
    return Examples(
        kind=config.kind,
        shards=shards,
        texts=(),
        uris=open_benchmark_uris(config.benchmark, config.storage, config.limits),
        limits=config.limits,
        clips=config.clips,
    )


def _list_examples(config: StageConfig) -> Examples:
    """Return the rows in the data's Parquet files.

    Raises ConfigError or SourceError if there are no rows, or if a column is missing.
    """
    place = config.storage.locate(config.data)
    with convert_read_errors(place, "data"):
        files = list_files(place, config.kind, (".parquet",)).tables
    if not files:
        raise ConfigError(f"data {place.url}: expected Parquet files; check the path")
    columns = {name: getattr(config.columns, name) for name in ("image", "uri", *config.texts)}
    names = tuple((name, column) for name, column in columns.items() if name != column)
    shards = []
    for file in files:
        footer = read_footer(file)
        schema = footer.schema.to_arrow_schema()
        require_columns(schema, config.texts, names, "columns", file.url)
        if not {columns["image"], columns["uri"]} & set(schema.names):
            require_columns(schema, ["image"], names, "columns", file.url)
        check_columns(schema, list(columns.values()), (), file.url)
        shards += [ExampleShard(shard=shard) for shard in split_file(file, footer, names, ShardSize(config.shard_rows))]
    if not shards:
        raise ConfigError(f"data {place.url}: expected Parquet files with rows, found no rows; check the path")
    folder = place.url.rpartition("/")[0] if place.path.endswith(".parquet") else place.url
    return Examples(
        kind=config.kind,
        shards=shards,
        texts=config.texts,
        uris=UriReader(
            roots=(folder, *config.uri_roots),
            storage=config.storage,
            max_bytes=config.limits.max_bytes,
            roots_name="the data's folder",
            option="uri_roots",
        ),
        limits=config.limits,
        clips=config.clips,
    )
