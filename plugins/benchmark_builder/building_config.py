"""Configuration of jobs.build_benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from plumbline.operators.base.bounds import BoundsChecked, Positive, Share, SomeShare
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.logs import LogConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig, PromptColumnsConfig
from plumbline.plugins.benchmark_builder.taxonomy import Taxonomy, Value
from plumbline.plugins.benchmark_builder.writer import TextWriter, WriterOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationConfig(WriterOptions):
    """Prompts that are written from the taxonomy's templates."""

    section: ClassVar[str] = "generation."
    per_sub_skill: Positive = 20
    """Prompts to request for each sub-skill."""
    sub_skills: tuple[str, ...] | None = None
    """Skills and sub-skills, such as `att/count` or `att/count:additive`; null takes all that have a template."""
    controls: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """Values that replace the templates' own, such as `{Words: [20-40]}`."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if empty := [name for name, values in self.controls.items() if not values]:
            raise ConfigError(f"generation.controls.{empty[0]}: expected some values, got none")


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawingConfig(BoundsChecked):
    """Random selection of prompts."""

    section: ClassVar[str] = "drawing."
    count: Positive
    """Prompts to keep."""
    lengths: tuple[int, ...] = (50, 100, 200)
    """Limits in characters of the length classes that are balanced too; [] ignores lengths."""
    seed: int = 0
    """Seed of the draws."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ConfigError(f"drawing.lengths: expected increasing numbers, got {list(self.lengths)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig(BoundsChecked):
    """The prompts of a new benchmark, and how to make them."""

    output: str
    """Folder or cloud prefix of the benchmark."""
    name: str = "own"
    """Name of the benchmark."""
    prompts: str | None = None
    """A file of prompts (.parquet, .csv, .tsv, .json, .jsonl, or .txt with a prompt per line); null reads none."""
    prompt_columns: PromptColumnsConfig = field(default_factory=PromptColumnsConfig)
    """Names of the columns in the file of prompts; prompt_id and skills may be missing."""
    taxonomy: Taxonomy
    tagging: WriterOptions | None = None
    """The model that tags the file's prompts; null keeps the skills in the file."""
    drawing: DrawingConfig | None = None
    """Selection of the file's prompts; null keeps all."""
    generation: GenerationConfig | None = None
    """The model that writes further prompts; null writes none."""
    near_duplicates: SomeShare | None = 0.8
    """Fraction of all their runs of three words that two near-duplicates share; null keeps near-duplicates."""
    parser: str | None = None
    """An installed spaCy pipeline, such as en_core_web_sm, for the depth of prompts in the statistics."""
    reference: str = ""
    """Folder of published files, to compare with Gecko2K's statistics; empty leaves them out."""
    store: str = "store"
    """Folder or cloud prefix of the store with the models' texts, which are never requested twice."""
    models: Mapping[str, AnyModel]
    cluster: ClusterConfig
    storage: StorageConfig = field(default_factory=StorageConfig)
    shard_rows: Positive = 256
    """Prompts of a shard."""
    max_failed: Share = 0.01
    """Largest fraction of untagged prompts, and of requests without a prompt, for exit code 2; above it, 1."""
    dry_run: bool = False
    """Show the models' work, and stop."""
    log: LogConfig = field(default_factory=LogConfig)
    """Log of each cell (docs/observing.md)."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.prompts is None and self.generation is None:
            raise ConfigError("prompts: expected a file of prompts, or generation=llm to have some written")
        if self.prompts is None and (self.tagging is not None or self.drawing is not None):
            raise ConfigError("prompts: tagging and drawing need a file of prompts; name it")

    def writing(self, metric: TextWriter, texts: str) -> SweepConfig:
        """Return a sweep of a model over a table of texts, without images."""
        return SweepConfig(
            store=self.store,
            benchmark=BenchmarkConfig(name=self.name, prompts=texts, images=None, generators={}),
            models=self.models,
            metrics={metric.kind: metric},
            cluster=self.cluster,
            storage=self.storage,
            shard_rows=self.shard_rows,
            max_failed=self.max_failed,
            dry_run=self.dry_run,
            log=self.log,
        )
