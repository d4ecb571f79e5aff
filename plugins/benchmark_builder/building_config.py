"""Configuration of jobs.build_benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from plumbline.operators.base.bounds import BoundsChecked, NonZeroShare, Positive, Share
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.logs import LogConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig, PromptColumnsConfig
from plumbline.plugins.benchmark_builder.taxonomy import ControlValue, Taxonomy
from plumbline.plugins.benchmark_builder.writer import TextWriter, WriterOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationConfig(WriterOptions):
    """Options for having a model write new prompts from the taxonomy's templates."""

    section: ClassVar[str] = "generation."
    per_sub_skill: Positive = 20
    """Number of prompts to request for each sub-skill."""
    sub_skills: tuple[str, ...] | None = None
    """Skills and sub-skills to write prompts for, such as `att/count:additive`; null selects all that have a template.
    """
    controls: Mapping[str, tuple[ControlValue, ...]] = field(default_factory=dict)
    """Values to use for the templates' controls instead of those in the templates, by control: `{Words: [20-40]}`."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if empty := [name for name, values in self.controls.items() if not values]:
            raise ConfigError(
                f"generation.controls.{empty[0]}: expected a list of values, got none; add values, or leave the "
                "control out"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawingConfig(BoundsChecked):
    """Options for selecting prompts at random."""

    section: ClassVar[str] = "drawing."
    count: Positive
    """Number of prompts to keep."""
    lengths: tuple[int, ...] = (50, 100, 200)
    """Boundaries, in characters, of length classes, which are balanced along with the skills; [] ignores length."""
    seed: int = 0
    """Seed of the random selection."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ConfigError(
                f"drawing.lengths: expected increasing numbers, such as [50,100,200], got {list(self.lengths)}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig(BoundsChecked):
    """Options for building a benchmark: its taxonomy, and how its prompts are read, tagged, selected and written."""

    output: str
    """Folder or cloud prefix to write the benchmark to."""
    name: str = "own"
    """Name of the benchmark."""
    prompts: str | None = None
    """File of prompts (.parquet, .csv, .tsv, .json, .jsonl, or .txt with one prompt per line); null if a model
    writes all prompts.
    """
    prompt_columns: PromptColumnsConfig = field(default_factory=PromptColumnsConfig)
    """Column names in the prompt file; the prompt_id and skills columns are optional."""
    taxonomy: Taxonomy
    tagging: WriterOptions | None = None
    """Model that tags the prompts in the file; null keeps the skills from the file."""
    drawing: DrawingConfig | None = None
    """Random selection of prompts from the file; null keeps all of them."""
    generation: GenerationConfig | None = None
    """Model that writes additional prompts; null writes none."""
    near_duplicates: NonZeroShare | None = 0.8
    """Minimum Jaccard similarity of three-word sequences at which two prompts are near-duplicates; null keeps
    near-duplicates.
    """
    parser: str | None = None
    """An installed spaCy pipeline, such as en_core_web_sm, used to measure the depth of prompts for the statistics."""
    reference: str = ""
    """Folder of published files, for a comparison with Gecko2K's statistics; if empty, nothing is compared."""
    store: str = "store"
    """Folder or cloud prefix of the store that keeps the models' texts, so that no text is requested twice."""
    models: Mapping[str, AnyModel]
    cluster: ClusterConfig
    storage: StorageConfig = field(default_factory=StorageConfig)
    shard_rows: Positive = 256
    """Number of prompts per shard."""
    max_failed: Share = 0.01
    """Maximum fraction of failures (untagged prompts and requests without a prompt) for exit code 2; with more
    failures, the exit code is 1.
    """
    dry_run: bool = False
    """Show which model calls are planned, and stop."""
    log: LogConfig = field(default_factory=LogConfig)
    """Log of each cell (docs/observing.md)."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.prompts is None and self.generation is None:
            raise ConfigError(
                "prompts: expected a file of prompts or generation=llm, got neither; set prompts=FILE, or "
                "generation=llm to have a model write prompts"
            )
        if self.prompts is None and (self.tagging is not None or self.drawing is not None):
            raise ConfigError("prompts: expected a file of prompts for tagging and drawing, got none; set prompts=FILE")

    def configure_writer_sweep(self, metric: TextWriter, texts: str) -> SweepConfig:
        """Return the configuration of a sweep that runs a model on a table of texts, without images."""
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
