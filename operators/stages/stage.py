"""Base classes of stages: their declarations for plans, and the computation of a shard's tables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError, RowError, check_prompt, unknown_prompt
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.rows import FetchUri
from plumbline.operators.images.videos import DEFAULT_CLIPS, Clips
from plumbline.operators.metrics.ablation import Ablation
from plumbline.operators.metrics.metric import Metric, repeats_of
from plumbline.operators.models.calls import Call
from plumbline.operators.models.family import Family

BenchmarkPart = Literal["pack", "skills"]
"""`pack`: the questions that the benchmark ships; `skills`: the skills of its prompts."""

MAX_CACHED_INDICES = 16
"""Indices that a stage caches; for a benchmark's prompts there is one per metric."""


class StaleInput(PlumblineError):
    """A table of another stage was computed from inputs that no longer exist, and must be recomputed."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}; run again")
        self.name = name
        """Name of the table in its Upstream."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Tables that a stage reads, one after the other; two are equal if their names and states are."""

    names: tuple[str, ...]
    read_each: Callable[[], Sequence[pa.Table]] = field(compare=False)
    schema: pa.Schema = field(compare=False)
    state: Hashable = None
    """Distinguishes the tables from others with the same names."""

    def read(self) -> pa.Table:
        """Return all rows of all tables."""
        return pa.concat_tables([self.schema.empty_table(), *self.read_each()])


class Inputs(NamedTuple):
    """Inputs of a stage for one shard."""

    group: str
    """Generator of the images, or benchmark of the prompts."""
    rows: pa.Table
    """The shard's own rows; empty for a stage that reads only tables of other stages."""
    metrics: tuple[str, ...]
    """Metrics whose tables are wanted."""
    upstream: Mapping[str, Mapping[str, Upstream]]
    """Tables by metric and stage, as declared by `reads`."""
    prompts: Upstream
    """`prompt_id` and `text` of all prompts that the shard's images may belong to."""
    earlier: Mapping[str, Sequence[pa.Table]] = {}
    """Tables of earlier cells by metric, newest first, whose rows may be reused."""
    pack: Upstream | None = None
    """Questions (schema QUESTIONS) that the benchmark ships, if it does."""


class StageOptions(NamedTuple):
    """Options shared by the stages of a run; only `clips` can change a result."""

    limits: ImageLimits
    fetch: FetchUri
    image_batch: int = 64
    """Number of images that a model encodes together."""
    decoders: int = 1
    """Number of images that are decoded at once."""
    clips: Clips = DEFAULT_CLIPS
    """Display of rows of several images, and of videos, to models."""


class Stage(ABC):
    """One kind of table, computed shard by shard for every metric whose chain has the stage.

    The class declares what plans need; an instance has loaded models and computes. A stage that reads the shard's own
    rows is a RowStage.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    """Raise it when results change."""
    schema: ClassVar[pa.Schema]
    over: ClassVar[Literal["prompts", "images"]]
    """Rows of the stage's shards: prompts or images."""
    behind: ClassVar[str | None] = None
    """For a stage of a plugin or another package: the stage that it follows in the order data flows. None puts it
    before the scores."""
    needs: ClassVar[type]
    """Runtime-checkable protocol that metrics of the stage must have."""
    calls: ClassVar[Mapping[str, Call]] = {}
    """Calls of models by the metric's option that names the model's role; the stage's own model comes first."""
    call_unit: ClassVar[Literal["questions", "writer", "judge", "row"]] = "questions"
    """Unit of model calls: each question, each request to the metric's writer, each repeated request to its judge, or
    each row."""
    optional: ClassVar[frozenset[str]] = frozenset()
    """Options of `calls` that a metric may lack."""
    shuffles_words: ClassVar[bool] = False
    """True if the stage, or its own model, gets texts in the metric's order of words (Metric.apply_word_order)."""
    keeps_rows: ClassVar[bool] = False
    """True if rows of earlier cells may be reused in a new cell."""
    side_by_side: bool = False
    """True if `compute` may be called for several shards at once, as the model batches their rows together."""

    @classmethod
    def reads(cls, metric: Any) -> tuple[str, ...]:
        """Return the stages of the metric's chain whose tables it reads."""
        return ()

    @classmethod
    def reads_of_benchmark(cls, metric: Any) -> tuple[BenchmarkPart, ...]:
        """Return the parts of the benchmark that decide the stage's result, besides its rows and their prompts."""
        return ()

    @classmethod
    def looks_at_images(cls) -> bool:
        """Return True if the stage decodes the images of the shard's rows, so that `clips` decide its result."""
        return issubclass(cls, RowStage) and cls.over == "images"

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        """Return the options of the metric called `name` that decide the result, besides models and inputs."""
        return {}

    @classmethod
    def ablation(cls, metric: Metric) -> Ablation | None:
        """Return the metric's ablation if it affects this stage."""
        if metric.image_ablation:
            return metric.ablation if cls.looks_at_images() else None
        has_model = not cls.calls or next(iter(cls.calls)) in metric.roles
        return metric.ablation if cls.shuffles_words and has_model else None

    @classmethod
    def calls_of_row(cls, metric: Metric, words: float) -> float:
        """Return the model calls of one row if a prompt has `words` content words on average."""
        if not cls.calls:
            return 0.0
        writer, questions = metric.estimate_calls(words)
        calls = {"questions": questions, "writer": writer, "judge": repeats_of(metric) * writer, "row": 1.0}
        return calls[cls.call_unit]

    @classmethod
    def roles(cls, metric: Metric) -> dict[str, str]:
        """Return the roles of its models by the metric's options; its own model comes first if it has one."""
        return {key: metric.roles[key] for key in cls.calls if key in metric.roles}

    @classmethod
    def trial_call(cls, key: str, metrics: Collection[Any]) -> Call:
        """Return the call that tests a service with the model of `key` before anything is computed."""
        return cls.calls[key]

    @classmethod
    def unsupported_option(cls, metric: Any, family: Family[Any]) -> str | None:
        """Return the metric's requirement that no model of the family meets, if there is one."""
        return None

    @abstractmethod
    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        """Keep the loaded models, which have the metrics' options as keys."""

    @abstractmethod
    def prepare(self, inputs: Inputs) -> Any:
        """Read and decode on the CPU, for the next shard, while `compute` is running."""

    @abstractmethod
    def compute(self, prepared: Any) -> Mapping[str, pa.Table]:
        """Return the tables (`schema`) by metric, with one row for each row of the shard or of its inputs.

        Their metadata has the usage of model calls, for all metrics together (rows.with_usage).
        """


class RowStage(Stage):
    """A stage that reads the shard's own rows. They can be tried one by one to find a row that ends the process."""

    window: int | None = None
    """Maximum number of rows to compute together, if each takes long."""

    @abstractmethod
    def refuse(self, inputs: Inputs, error: RowError) -> Any:
        """Do as `prepare` does, for rows that get this error: read nothing but their ids."""


def cache_upstream(method: Callable[..., Any]) -> Any:
    """Cache a method's results for the last upstreams, in the instance that calls it."""
    return lru_cache(maxsize=MAX_CACHED_INDICES)(method)


def texts_of(prompts: Upstream) -> dict[str, str]:
    """Return the prompts' texts by prompt_id."""
    table = prompts.read().select(["prompt_id", "text"])
    ids, texts = (column.to_pylist() for column in table.columns)
    return {prompt_id: text or "" for prompt_id, text in zip(ids, texts, strict=True)}


def read_skills(prompts: Upstream) -> dict[str, list[str]]:
    """Return the prompts' skills by prompt_id."""
    ids, skills = (column.to_pylist() for column in prompts.read().select(["prompt_id", "skills"]).columns)
    return {prompt_id: listed or [] for prompt_id, listed in zip(ids, skills, strict=True)}


def find_text(prompts: Mapping[str, str], prompt_id: str | None) -> str | RowError:
    """Return the text of a prompt, or why it cannot be used."""
    if prompt_id is None or prompt_id not in prompts:
        return unknown_prompt(prompt_id)
    return check_prompt(prompts[prompt_id]) or prompts[prompt_id]
