"""Options of an evaluation, and the images, models and digests that follow from them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.bounds import BoundsChecked, Positive, Seconds
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.table import AnyMetric
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.plans.plan import Node, make_metric_recipes
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.question_packs import check_choices, digest_pack, read_pack
from plumbline.pipelines.sources.shards import ShardSize
from plumbline.pipelines.sources.sources import open_sources
from plumbline.pipelines.store.cells import digest
from plumbline.plugins.training_loop.generated_images import WantedImage


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig(BoundsChecked):
    """Options of an evaluation inside a training loop."""

    benchmark: BenchmarkConfig
    """Benchmark with the prompts; its images are not read."""
    models: Mapping[str, AnyModel]
    """Models by role."""
    metrics: Mapping[str, AnyMetric]
    """Metrics by name."""
    folder: str = "evaluation"
    """Folder or cloud prefix for the results of all steps."""
    seeds: Positive = 1
    """Number of images per prompt."""
    batch: Positive = 8
    """Number of images per call of the pipeline."""
    worst: Positive = 6
    """Number of images that are kept for each metric and step: those with the worst scores."""
    on_gpu: bool = False
    """True to run the models of the metrics on this machine's GPU, which the training uses as well."""
    tracker_timeout: Seconds = 30.0
    """Seconds for which a step waits for a tracker that is chosen by its name."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.benchmark.prompts is None:
            raise ConfigError(
                "benchmark.prompts: expected a file with prompts to generate images from; set prompts=PATH"
            )
        if self.benchmark.columns.edit_columns:
            raise ConfigError(
                f"benchmark: {self.benchmark.name} has edited images, but images are generated from texts; choose "
                "another benchmark"
            )


class OpenedEvaluation(NamedTuple):
    """The loaded models and the prompts of an evaluation."""

    scorer: Scorer
    prompts: pa.Table
    """Table with the schema PROMPTS."""
    settings: Mapping[str, Any]
    """Everything that must be equal for two steps to be comparable."""


def open_evaluation(config: EvaluationConfig, options: Mapping[str, Any]) -> OpenedEvaluation:
    """Read the prompts and load the models; `options` are the arguments of the pipeline.

    Raises ConfigError, SourceError or ModelError if a file or a model is missing or invalid.
    """
    texts = config.benchmark
    cache = ImageFileCache(None, texts)
    prompts = open_sources(texts, config.storage, shard_size=ShardSize(), cache=cache).prompts
    if not len(prompts):
        raise ConfigError(f"benchmark.prompts {texts.prompts}: expected prompts, found none; add some")
    file = texts.find_pack_file(config.storage)
    pack = None if file is None else read_pack(file, texts.name)
    scorer_config = ScorerConfig(models=config.models, metrics=config.metrics, on_gpu=config.on_gpu)
    scorer = Scorer(scorer_config, pack=None if pack is None else pack.questions)
    if file is not None and pack is not None:
        check_choices(scorer.metrics, pack.choices, file.place.url)
    settings = {
        "benchmark": texts.name,
        "prompts": digest(prompts.select(["prompt_id", "text"]).to_pylist()),
        "images": len(prompts) * config.seeds,
        "metrics": _digest_metrics(config, scorer, "" if pack is None else digest_pack(pack)),
        "pipeline_options": {name: repr(value) for name, value in sorted(options.items())},
    }
    return OpenedEvaluation(scorer, prompts, settings)


def _digest_metrics(config: EvaluationConfig, scorer: Scorer, pack: str) -> dict[str, str]:
    """Return the digest of each metric's recipe. A sweep with the same metric and models has the same digest."""
    nodes = [
        Node(
            name=node.name,
            stage=node.stage.name,
            models={key: resolve_model(config.models[role], on_gpu=config.on_gpu) for key, role in node.roles.items()},
            metrics=node.metrics,
        )
        for node in (loaded.node for loaded in scorer.nodes)
    ]
    return {
        name: make_metric_recipes(name, metric, nodes, Clips(), pack)["scores"].digest
        for name, metric in scorer.metrics.items()
    }


def list_wanted_images(prompts: pa.Table, seeds: int) -> list[WantedImage]:
    """Return the images to generate at each step, `seeds` for each prompt. An image's seed depends only on its id."""
    wanted = []
    for prompt_id, text in zip(*(prompts.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True):
        for number in range(seeds):
            image_id = f"{prompt_id}-{number}"
            seed = int.from_bytes(hashlib.sha256(image_id.encode()).digest()[:4])
            wanted.append(WantedImage(image_id, prompt_id, text or "", seed))
    return wanted
