"""Base classes for stages: the declarations that plans need, and the computation of a shard's tables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError, RowError, check_prompt, make_unknown_prompt_error
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.rows import FetchUri
from plumbline.operators.images.videos import DEFAULT_CLIPS, Clips
from plumbline.operators.metrics.ablation import Ablation
from plumbline.operators.metrics.metric import Metric, count_repeats
from plumbline.operators.models.calls import Call
from plumbline.operators.models.family import Family

BenchmarkPart = Literal["pack", "skills"]
"""`pack`: the questions that the benchmark ships; `skills`: the skills of its prompts."""

RowKind = Literal["prompts", "pairs", "images"]
"""Kind of the rows in a shard. A row of `pairs` is an image together with another generator's image of its prompt."""

MAX_CACHED_INDICES = 16
"""Maximum number of indices that a stage caches; a benchmark's prompts need one per metric."""


class StaleInputError(PlumblineError):
    """Error for a table of another stage that must be recomputed, because its questions have been rewritten."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}; run again")
        self.name = name
        """Name of the stale table in its UpstreamTables."""


@dataclass(frozen=True, slots=True)
class UpstreamTables:
    """Tables that a stage reads, loaded when they are needed and joined into one table.

    Two instances are equal if their names and states are equal.
    """

    names: tuple[str, ...]
    read_each: Callable[[], Sequence[pa.Table]] = field(compare=False)
    schema: pa.Schema = field(compare=False)
    state: Hashable = None
    """Value that distinguishes these tables from other tables with the same names."""

    def read(self) -> pa.Table:
        """Return the rows of all tables as one table."""
        return pa.concat_tables([self.schema.empty_table(), *self.read_each()])


class Inputs(NamedTuple):
    """The tables that a stage reads for one shard: the shard's rows, other stages' tables and earlier cells."""

    group: str
    """The generator of the images, or the benchmark of the prompts."""
    rows: pa.Table
    """The shard's own rows; empty for a stage that only reads tables of other stages."""
    metrics: tuple[str, ...]
    """Metrics for which a table is requested."""
    upstream: Mapping[str, Mapping[str, UpstreamTables]]
    """Input tables by metric and stage, as declared by `list_input_stages`."""
    prompts: UpstreamTables
    """Columns `prompt_id` and `text` of all prompts that the shard's images may belong to."""
    earlier: Mapping[str, Sequence[pa.Table]] = {}
    """Tables of earlier cells by metric, newest first. Their rows may be reused."""
    pack: UpstreamTables | None = None
    """Questions (schema QUESTIONS) that the benchmark ships, if any."""


class StageOptions(NamedTuple):
    """Options that the stages of a run share; only `clips` can change a result."""

    limits: ImageLimits
    fetch: FetchUri
    image_batch: int = 64
    """Number of images that a model encodes at once."""
    decoders: int = 1
    """Number of images that are decoded concurrently."""
    clips: Clips = DEFAULT_CLIPS
    """Presentation of videos, and of rows with several images, to models."""


class Stage(ABC):
    """A step that computes one kind of table, shard by shard, for every metric whose chain contains the step.

    The class declares what plans need; an instance holds the loaded models and computes tables. Stages that read the
    shard's own rows are RowStages.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    """Version of the results; increase it when they change."""
    schema: ClassVar[pa.Schema]
    row_kind: ClassVar[RowKind]
    """Kind of the rows in the stage's shards."""
    previous_stage: ClassVar[str | None] = None
    """Stage that a stage from a plugin or another package follows in the data flow. None places it just before the
    scores.
    """
    metric_type: ClassVar[type]
    """Class or runtime-checkable protocol of the metrics that can use the stage."""
    calls: ClassVar[Mapping[str, Call]] = {}
    """Model calls, by the metric's option that names the model's role; the stage's own model comes first."""
    call_unit: ClassVar[Literal["questions", "writer", "judge", "row"]] = "questions"
    """Unit that costs one model call: a question, a request to the metric's writer, a repeated request to its judge, or
    a row.
    """
    optional_calls: ClassVar[frozenset[str]] = frozenset()
    """Keys of `calls` that a metric may leave out."""
    shuffles_words: ClassVar[bool] = False
    """True if the stage or its model receives texts whose words are reordered by Metric.apply_word_order."""
    keeps_rows: ClassVar[bool] = False
    """True if a new cell may reuse rows of earlier cells."""
    side_by_side: bool = False
    """True if `compute` may be called for several shards concurrently, because the model batches their rows together.
    """

    @classmethod
    def list_input_stages(cls, metric: Any) -> tuple[str, ...]:
        """Return the names of the stages, in the metric's chain, whose tables this stage reads."""
        return ()

    @classmethod
    def list_benchmark_parts(cls, metric: Any) -> tuple[BenchmarkPart, ...]:
        """Return the parts of the benchmark that affect the result, besides the rows and their prompts."""
        return ()

    @classmethod
    def looks_at_images(cls) -> bool:
        """Return True if the stage decodes the images of the shard's rows, so that `clips` affects the result."""
        return issubclass(cls, RowStage) and cls.row_kind != "prompts"

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        """Return the options of the metric called `name` that determine the result, besides its models and inputs."""
        return {}

    @classmethod
    def ablation(cls, metric: Metric) -> Ablation | None:
        """Return the metric's ablation if it changes this stage's result, otherwise None."""
        if metric.image_ablation:
            return metric.ablation if cls.looks_at_images() else None
        has_model = not cls.calls or next(iter(cls.calls)) in metric.roles
        return metric.ablation if cls.shuffles_words and has_model else None

    @classmethod
    def estimate_calls_per_row(cls, metric: Metric, words: float) -> float:
        """Estimate the model calls per row, for prompts with `words` content words on average."""
        if not cls.calls:
            return 0.0
        writer, questions = metric.estimate_calls(words)
        calls = {"questions": questions, "writer": writer, "judge": count_repeats(metric) * writer, "row": 1.0}
        return calls[cls.call_unit]

    @classmethod
    def roles(cls, metric: Metric) -> dict[str, str]:
        """Return the roles of this stage's models, keyed by the metric option that names each model.

        The stage's own model comes first.
        """
        return {key: metric.roles[key] for key in cls.calls if key in metric.roles}

    @classmethod
    def choose_needed_call(cls, key: str, metrics: Collection[Any], family: Family[Any]) -> Call:
        """Return the call that a model of this family must serve if it is the `key` model of these metrics."""
        return cls.calls[key]

    @classmethod
    def choose_trial_call(cls, key: str, metrics: Collection[Any]) -> Call:
        """Return the call that is sent to a service as a test before the sweep begins.

        `key` is the key of the service's model in `calls`, and `metrics` are the metrics that use it.
        """
        return cls.calls[key]

    @classmethod
    def explain_unsuitable_model(cls, metric: Any, family: Family[Any]) -> str | None:
        """Return the reason why a model of this family cannot serve the metric, or None if it can.

        The reason completes a message, such as "returns cosine, not match".
        """
        return None

    @abstractmethod
    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        """Store the metrics by name, and the loaded models by the metric option that names their role."""

    @abstractmethod
    def prepare(self, inputs: Inputs) -> Any:
        """Return a shard's rows, read and decoded on the CPU; called for the next shard while `compute` is running."""

    @abstractmethod
    def compute(self, prepared: Any) -> Mapping[str, pa.Table]:
        """Return a table (`schema`) for each metric, with one row for each row of the shard or of its inputs.

        The tables' metadata contains the usage of model calls, summed over all metrics (rows.attach_usage).
        """


class RowStage(Stage):
    """A stage that reads the shard's own rows. Rows can be tried one by one to find one that kills the process."""

    window: int | None = None
    """Maximum number of rows to compute together, for stages whose rows take long."""

    @abstractmethod
    def refuse(self, inputs: Inputs, error: RowError) -> Any:
        """Return an input for `compute` that gives every row this error. Only the rows' ids are read, no images."""


def cache_upstream(method: Callable[..., Any]) -> Any:
    """Return a function that caches the results of `method` for the MAX_CACHED_INDICES most recent arguments."""
    return lru_cache(maxsize=MAX_CACHED_INDICES)(method)


def read_prompt_texts(prompts: UpstreamTables) -> dict[str, str]:
    """Return a dictionary from prompt_id to the prompt's text."""
    table = prompts.read().select(["prompt_id", "text"])
    ids, texts = (column.to_pylist() for column in table.columns)
    return {prompt_id: text or "" for prompt_id, text in zip(ids, texts, strict=True)}


def read_skills(prompts: UpstreamTables) -> dict[str, list[str]]:
    """Return a dictionary from prompt_id to the names of the prompt's skills."""
    ids, skills = (column.to_pylist() for column in prompts.read().select(["prompt_id", "skills"]).columns)
    return {prompt_id: listed or [] for prompt_id, listed in zip(ids, skills, strict=True)}


def find_text(prompts: Mapping[str, str], prompt_id: str | None) -> str | RowError:
    """Return the text of a prompt, or an error if it cannot be used."""
    if prompt_id is None or prompt_id not in prompts:
        return make_unknown_prompt_error(prompt_id)
    return check_prompt(prompts[prompt_id]) or prompts[prompt_id]
