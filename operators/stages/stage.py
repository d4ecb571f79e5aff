"""What a stage is: a declaration that plans are folded from, and an operator from a shard's rows to tables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError, RowError, check_prompt, unknown_prompt
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.rows import FetchUri
from plumbline.operators.images.videos import STANDARD, Clips
from plumbline.operators.metrics.ablation import Ablation
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.models.calls import Call
from plumbline.operators.models.family import Family

Rows = Literal["prompts", "images"]

REMEMBERED = 16
"""Indices that a stage remembers; those of a benchmark's prompts are one for each metric."""


class StaleInput(PlumblineError):
    """A table upstream stands on what is no more, and is to be computed anew."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}; run again")
        self.name = name
        """Which of the names of its Upstream it has."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Tables that a stage reads, one after the other; two of the same names and state are equal."""

    names: tuple[str, ...]
    read_each: Callable[[], Sequence[pa.Table]] = field(compare=False)
    schema: pa.Schema = field(compare=False)
    state: Hashable = None
    """What tells them from other tables of these names."""

    def read(self) -> pa.Table:
        """All rows; of no tables, none."""
        return pa.concat_tables([self.schema.empty_table(), *self.read_each()])


class Inputs(NamedTuple):
    """What a stage is given of one shard."""

    group: str
    """The generator of the images, or the benchmark of the prompts."""
    rows: pa.Table
    """The shard's own; none for a stage that reads only what others made."""
    metrics: tuple[str, ...]
    """Those whose tables are wanted."""
    upstream: Mapping[str, Mapping[str, Upstream]]
    """By metric and stage, what its declaration says that it reads."""
    prompts: Upstream
    """`prompt_id` and `text` of all prompts that images of the shard may be of."""
    earlier: Mapping[str, Sequence[pa.Table]] = {}
    """By metric, tables of earlier cells, newest first, of which rows may stand that need no computing."""
    pack: Upstream | None = None
    """The questions (schema QUESTIONS) that the benchmark ships, where it does."""


class StageOptions(NamedTuple):
    """What the stages of a run share; of all of it `clips` alone can change a result."""

    limits: ImageLimits
    fetch: FetchUri
    image_batch: int = 64
    """Images that a model encodes together."""
    decoders: int = 1
    """Images that are decoded at once."""
    clips: Clips = STANDARD
    """How rows of several images and videos are looked at."""


class Stage(ABC):
    """One kind of table, made shard by shard for every metric whose chain has the stage.

    The class declares; an instance, with its models loaded, computes.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    """Raised when its results change."""
    schema: ClassVar[pa.Schema]
    over: ClassVar[Rows]
    """Whether it makes a table for every shard of prompts or of images."""
    behind: ClassVar[str | None] = None
    """The stage that one of another package comes behind in the order data flows; None puts it before the scores."""
    needs: ClassVar[type]
    """The protocol that it wants of a metric, at run time too."""
    calls: ClassVar[Mapping[str, Call]] = {}
    """By the key of a metric that names the role of a model, the call that is made of it; its own model first."""
    counted: ClassVar[Literal["questions", "writer", "one"]] = "questions"
    """What a row takes a call for: each question, each request to the metric's writer or judge, or the row itself."""
    optional: ClassVar[frozenset[str]] = frozenset()
    """Those of the keys that a metric may do without."""
    decodes: ClassVar[bool] = False
    """Whether it looks at the images of the shard's rows itself, so that `clips` decide its result."""
    joins: ClassVar[bool] = False
    """Whether its model is shown all images of a view in one question."""
    words: ClassVar[bool] = False
    """Whether its model is given texts in the metric's order of words (Metric.worded)."""
    reads_rows: ClassVar[bool] = True
    """Whether it reads the shard's own rows."""
    keeps_rows: ClassVar[bool] = False
    """Whether rows of earlier cells may stand in a new one."""
    side_by_side: bool = False
    """Whether `compute` is called for several shards at once: its model works on all of their rows together."""

    @classmethod
    def reads(cls, metric: Any) -> tuple[str, ...]:
        """The stages of the metric's chain whose tables it reads; None but the shard's rows by default."""
        return ()

    @classmethod
    def reads_pack(cls, metric: Metric) -> bool:
        """Whether it reads the questions that the benchmark ships."""
        return False

    @classmethod
    def reads_skills(cls, metric: Metric) -> bool:
        """Whether it reads the prompts' skills."""
        return False

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        """All that decides its result, of the metric called `name`, besides its models and what it reads."""
        return {}

    @classmethod
    def ablation(cls, metric: Metric) -> Ablation | None:
        """The metric's, where it is this stage that goes without."""
        return metric.ablation if (cls.decodes if metric.shown else cls.words) else None

    @classmethod
    def calls_of_row(cls, metric: Metric, words: float) -> float:
        """Return the calls that one row takes if a prompt has `words` content words on average."""
        if not cls.calls:
            return 0.0
        writer, questions = metric.expected(words)
        return {"questions": questions, "writer": writer, "one": 1.0}[cls.counted]

    @classmethod
    def roles(cls, metric: Metric) -> dict[str, str]:
        """The roles of its models, by the metric's keys; its own model first, where it has one."""
        return {key: metric.roles[key] for key in cls.calls if key in metric.roles}

    @classmethod
    def trial(cls, key: str, metrics: Collection[Any]) -> Call:
        """The call by which a service that is the key's model is tried before anything is computed."""
        return cls.calls[key]

    @classmethod
    def refusal(cls, metric: Any, family: Family[Any]) -> str | None:
        """What the metric wants of the stage's own model that no model of the family does, if there is such a thing."""
        return None

    @abstractmethod
    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        """`models` are the loaded models by the metrics' keys."""

    @abstractmethod
    def prepare(self, inputs: Inputs) -> Any:
        """Reads and decodes on the CPU; called for the next shard while `compute` works on this one."""

    @abstractmethod
    def compute(self, prepared: Any) -> Mapping[str, pa.Table]:
        """The tables (`schema`), by metric; one row for every row of the shard, or of what it reads."""


class RowStage(Stage):
    """A stage whose rows can be tried one by one, to find the one that ends the process."""

    window: int | None = None
    """How many rows are computed together where that is fewer than of other stages, because each takes long."""

    @abstractmethod
    def refuse(self, inputs: Inputs, error: RowError) -> Any:
        """As `prepare`, for rows that are not to be touched but by their ids."""


def remembered(method: Callable[..., Any]) -> Any:
    """An instance's own memory of what a method made of the last upstreams."""
    return lru_cache(maxsize=REMEMBERED)(method)


def texts_of(prompts: Upstream) -> dict[str, str]:
    """The prompts' texts by prompt_id."""
    table = prompts.read().select(["prompt_id", "text"])
    ids, texts = (column.to_pylist() for column in table.columns)
    return {prompt_id: text or "" for prompt_id, text in zip(ids, texts, strict=True)}


def skills_of(prompts: Upstream) -> dict[str, list[str]]:
    """The prompts' skills by prompt_id."""
    ids, skills = (column.to_pylist() for column in prompts.read().select(["prompt_id", "skills"]).columns)
    return {prompt_id: of_prompt or [] for prompt_id, of_prompt in zip(ids, skills, strict=True)}


def text_of(prompts: Mapping[str, str], prompt_id: str | None) -> str | RowError:
    """Return the text of a prompt, or why it cannot be used."""
    if prompt_id is None or prompt_id not in prompts:
        return unknown_prompt(prompt_id)
    return check_prompt(prompts[prompt_id]) or prompts[prompt_id]
