"""What a benchmark is made of, and how."""

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
    """How many are asked for of each."""
    sub_skills: tuple[str, ...] | None = None
    """Skills and sub-skills, as `att/count` or `att/count:additive`; null takes all that have a template."""
    controls: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """Values that take the place of the templates' own, as `{Words: [20-40]}`."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if empty := [name for name, values in self.controls.items() if not values]:
            raise ConfigError(f"generation.controls.{empty[0]}: expected some values, got none")


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawingConfig(BoundsChecked):
    """Which of the prompts that were read are kept."""

    section: ClassVar[str] = "drawing."
    count: Positive
    """How many prompts are kept."""
    lengths: tuple[int, ...] = (50, 100, 200)
    """Characters between which lengths are balanced too; [] leaves lengths alone."""
    seed: int = 0
    """Of the draws."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ConfigError(f"drawing.lengths: expected growing numbers, got {list(self.lengths)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig(BoundsChecked):
    """A benchmark's prompts in the making."""

    output: str
    """Folder or cloud prefix of the benchmark."""
    name: str = "own"
    """What it is called."""
    prompts: str | None = None
    """A file of prompts (.parquet, .csv, .tsv, .json, .jsonl, or .txt with one a line); null reads none."""
    prompt_columns: PromptColumnsConfig = field(default_factory=PromptColumnsConfig)
    """What the file of prompts calls its columns; prompt_id and skills may be absent."""
    taxonomy: Taxonomy
    tagging: WriterOptions | None = None
    """Who tags the prompts that are read; null keeps the skills that the file has."""
    drawing: DrawingConfig | None = None
    """Which prompts are kept; null keeps all."""
    generation: GenerationConfig | None = None
    """Who writes further prompts; null writes none."""
    near_duplicates: SomeShare | None = 0.8
    """The share of all their runs of three words that two prompts have in common to be one; null keeps both."""
    parser: str | None = None
    """An installed spaCy pipeline, such as en_core_web_sm, for the depth of prompts in the statistics."""
    reference: str = ""
    """The folder of published files, for Gecko2K's statistics beside; empty leaves them out."""
    store: str = "store"
    """Folder or cloud prefix of the store that keeps what models wrote, which is never asked for again."""
    models: Mapping[str, AnyModel]
    cluster: ClusterConfig
    storage: StorageConfig = field(default_factory=StorageConfig)
    shard_rows: Positive = 256
    """Prompts that are worked on together."""
    max_failed: Share = 0.01
    """Share of prompts without tags, and of requests without a prompt, up to which the exit code is 2 instead of 1."""
    dry_run: bool = False
    """Show what models would be asked, and stop."""
    log: LogConfig = field(default_factory=LogConfig)
    """What is written of each cell while the job goes on (docs/observing.md)."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.prompts is None and self.generation is None:
            raise ConfigError("prompts: expected a file of prompts, or generation=llm to have some written")
        if self.prompts is None and (self.tagging is not None or self.drawing is not None):
            raise ConfigError("prompts: tagging and drawing are of prompts that are read; name their file")

    def writing(self, metric: TextWriter, texts: str) -> SweepConfig:
        """What has the model write about a table of texts: a sweep without images."""
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
