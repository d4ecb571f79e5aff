"""Each stage as an actor runs it: read a shard and the cells upstream, call the operator, give tables back."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from operators import entailment, questions, scores
from operators.answers import AnswerOperator, QuestionIndex, index_questions
from operators.errors import RowError
from operators.images import ImageLimits, PreparedImages, identify, image_records
from operators.metrics.clipscore import ClipScoreConfig
from operators.metrics.configs import AskingConfig, WritingConfig
from operators.metrics.vqascore import VqaScoreConfig
from operators.scores import WrittenIndex
from operators.similarities import SimilarityOperator
from pipelines.benchmark import IMAGE_COLUMNS
from pipelines.cells import Cell, Shard, Stage, Work
from pipelines.plan import Node
from pipelines.prompts import read_prompts
from pipelines.shards import read_shard
from pipelines.storage import StorageConfig
from pipelines.store import Store
from pipelines.uris import Uris

REMEMBERED_INDICES = 16
"""Sets of questions that an actor remembers; those of a benchmark are one set for each metric."""
REMEMBERED_SHARDS = 4
"""Whose own prompts an actor remembers: those it works on at once, and not all that it ever saw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageContext:
    """What every stage of a run shares."""

    store: Store
    storage: StorageConfig
    limits: ImageLimits
    uris: Uris
    prompt_shards: tuple[Shard, ...]


class StageRunner(Protocol):
    """One node's work on one shard, in two halves that overlap between shards."""

    side_by_side: ClassVar[bool]
    """Whether `compute` is called for several shards at once: its model works on all of their rows together."""

    def prepare(self, work: Work, cells: Sequence[Cell]) -> Any:
        """Reads and decodes; called for the next shard while `compute` works on this one."""

    def compute(self, prepared: Any, cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        """The tables of the cells, by metric."""


@runtime_checkable
class RowByRow(Protocol):
    """A stage that can work on a shard one row at a time, to find the row that ends its process."""

    def prepare_row(self, work: Work, cells: Sequence[Cell], row: int) -> Any:
        """As `prepare`, for one row of the shard."""

    def refuse_row(self, work: Work, cells: Sequence[Cell], row: int, error: RowError) -> Any:
        """As `prepare_row` for a row that is not to be touched but by its ids."""


class QuestionsStage:
    """Prompts to questions, by template."""

    side_by_side: ClassVar[bool] = False

    def __init__(self, node: Node, context: StageContext) -> None:
        self.metrics = {name: metric for name, metric in node.metrics.items() if isinstance(metric, VqaScoreConfig)}
        self.context = context

    def prepare(self, work: Work, cells: Sequence[Cell]) -> pa.Table:
        return read_prompts(work.shard, self.context.storage)

    def compute(self, prepared: pa.Table, cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        return {cell.metric: questions.ask(prepared, self.metrics[cell.metric]) for cell in cells}


class WrittenQuestionsStage:
    """Prompts to questions that a language model writes."""

    side_by_side: ClassVar[bool] = True

    def __init__(self, node: Node, context: StageContext) -> None:
        from operators.models.loading import load_generate  # the driver never imports torch

        assert node.model is not None
        self.metrics = {name: metric for name, metric in node.metrics.items() if isinstance(metric, WritingConfig)}
        self.context = context
        self.model = load_generate(node.model)

    def prepare(self, work: Work, cells: Sequence[Cell]) -> pa.Table:
        return read_prompts(work.shard, self.context.storage)

    def compute(self, prepared: pa.Table, cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        """All metrics' questions at once, so that the model's batches are full."""
        with ThreadPoolExecutor(len(cells)) as pool:
            tables = pool.map(lambda cell: questions.write(prepared, self.metrics[cell.metric], self.model), cells)
            return {cell.metric: table for cell, table in zip(cells, tables, strict=True)}


class EntailmentStage:
    """Prompts and questions to probabilities of entailment."""

    side_by_side: ClassVar[bool] = False

    def __init__(self, node: Node, context: StageContext) -> None:
        from operators.models.loading import load_entailment  # the driver never imports torch

        assert node.model is not None
        self.context = context
        self.model = load_entailment(node.model)

    def prepare(self, work: Work, cells: Sequence[Cell]) -> tuple[pa.Table, Mapping[str, pa.Table]]:
        prompts = read_prompts(work.shard, self.context.storage)
        return prompts, {cell.metric: _read_inputs(self.context.store, cell.inputs, work) for cell in cells}

    def compute(
        self, prepared: tuple[pa.Table, Mapping[str, pa.Table]], cells: Sequence[Cell]
    ) -> Mapping[str, pa.Table]:
        prompts, asked = prepared
        return {name: entailment.entail(prompts, table, self.model) for name, table in asked.items()}


class AnswersStage:
    """Images and questions to answers."""

    side_by_side: ClassVar[bool] = False

    def __init__(self, node: Node, context: StageContext) -> None:
        from operators.models.loading import load_embedder, load_likelihood  # the driver never imports torch

        assert node.model is not None
        self.context = context
        self.metrics = {name: metric for name, metric in node.metrics.items() if isinstance(metric, AskingConfig)}
        self.operator = AnswerOperator(
            load_likelihood(node.model),
            image_batch=node.model.image_batch,
            limits=context.limits,
            fetch=context.uris.read,
            matcher=load_embedder(node.matcher) if node.matcher is not None else None,
        )
        self._index = lru_cache(maxsize=REMEMBERED_INDICES)(self._read_index)
        self._shard = _shard_reader(context)

    def prepare(self, work: Work, cells: Sequence[Cell]) -> tuple[PreparedImages, dict[str, QuestionIndex]]:
        images = read_shard(work.shard, self.context.storage, IMAGE_COLUMNS)
        return self.operator.prepare(images, work.shard.group), self._asked(work, cells)

    def prepare_row(
        self, work: Work, cells: Sequence[Cell], row: int
    ) -> tuple[PreparedImages, dict[str, QuestionIndex]]:
        image = self._shard(work.shard).slice(row, 1)
        return self.operator.prepare(image, work.shard.group), self._asked(work, cells)

    def refuse_row(
        self, work: Work, cells: Sequence[Cell], row: int, error: RowError
    ) -> tuple[PreparedImages, dict[str, QuestionIndex]]:
        return _refused(self._shard(work.shard), work.shard, row, error), self._asked(work, cells)

    def _asked(self, work: Work, cells: Sequence[Cell]) -> dict[str, QuestionIndex]:
        return {cell.metric: self._index(cell.metric, cell.inputs, _drafts(cell.inputs, work)) for cell in cells}

    def compute(
        self, prepared: tuple[PreparedImages, dict[str, QuestionIndex]], cells: Sequence[Cell]
    ) -> Mapping[str, pa.Table]:
        return self.operator.answer(*prepared)

    def _read_index(self, metric: str, paths: tuple[str, ...], drafts: frozenset[str]) -> QuestionIndex:
        return index_questions(_read_all(self.context.store, paths, drafts), self.metrics[metric])


class SimilaritiesStage:
    """Images and prompts to similarities."""

    side_by_side: ClassVar[bool] = False

    def __init__(self, node: Node, context: StageContext) -> None:
        from operators.models.loading import load_similarity  # the driver never imports torch

        assert node.model is not None
        self.context = context
        self.metrics = {name: metric for name, metric in node.metrics.items() if isinstance(metric, ClipScoreConfig)}
        self.operator = SimilarityOperator(
            load_similarity(node.model),
            image_batch=node.model.image_batch,
            limits=context.limits,
            fetch=context.uris.read,
            rules={metric.pixels for metric in self.metrics.values()},
        )
        self._shard = _shard_reader(context)
        self._own_texts = lru_cache(maxsize=REMEMBERED_SHARDS)(lambda shard: _texts([shard], context))
        self.texts = _texts(context.prompt_shards, context)

    def prepare(self, work: Work, cells: Sequence[Cell]) -> tuple[PreparedImages, Mapping[str, str]]:
        images = read_shard(work.shard, self.context.storage, IMAGE_COLUMNS)
        return self.operator.prepare(images, work.shard.group), self._texts_of(work.shard)

    def prepare_row(self, work: Work, cells: Sequence[Cell], row: int) -> tuple[PreparedImages, Mapping[str, str]]:
        image = self._shard(work.shard).slice(row, 1)
        return self.operator.prepare(image, work.shard.group), self._texts_of(work.shard)

    def refuse_row(
        self, work: Work, cells: Sequence[Cell], row: int, error: RowError
    ) -> tuple[PreparedImages, Mapping[str, str]]:
        return _refused(self._shard(work.shard), work.shard, row, error), self._texts_of(work.shard)

    def compute(
        self, prepared: tuple[PreparedImages, Mapping[str, str]], cells: Sequence[Cell]
    ) -> Mapping[str, pa.Table]:
        return self.operator.compare(*prepared, {cell.metric: self.metrics[cell.metric] for cell in cells})

    def _texts_of(self, shard: Shard) -> Mapping[str, str]:
        """The prompts of a shard's images: its own, where its rows hold them, or else the benchmark's."""
        return self._own_texts(shard) if shard.holds_prompts else self.texts


class ScoresStage:
    """Answers or similarities to scores."""

    side_by_side: ClassVar[bool] = False

    def __init__(self, node: Node, context: StageContext) -> None:
        self.metrics = node.metrics
        self.store = context.store
        self._written = lru_cache(maxsize=REMEMBERED_INDICES)(self._read_written)

    def prepare(self, work: Work, cells: Sequence[Cell]) -> Mapping[str, tuple[pa.Table, WrittenIndex | None]]:
        return {cell.metric: self._inputs(cell, work) for cell in cells}

    def _inputs(self, cell: Cell, work: Work) -> tuple[pa.Table, WrittenIndex | None]:
        """What was measured, and for a metric with elements the questions that its other inputs hold."""
        measured, *prompts = cell.inputs
        table = _read_all(self.store, (measured,), _drafts((measured,), work))
        return table, self._written(tuple(prompts), _drafts(prompts, work)) if prompts else None

    def _read_written(self, paths: tuple[str, ...], drafts: frozenset[str]) -> WrittenIndex:
        asked = tuple(path for path in paths if path.startswith("questions/"))
        entailed = tuple(path for path in paths if path.startswith("entailment/"))
        entailments = _read_all(self.store, entailed, drafts) if entailed else None
        return WrittenIndex(_read_all(self.store, asked, drafts), entailments)

    def compute(
        self, prepared: Mapping[str, tuple[pa.Table, WrittenIndex | None]], cells: Sequence[Cell]
    ) -> Mapping[str, pa.Table]:
        return {name: self._score(name, *inputs) for name, inputs in prepared.items()}

    def _score(self, name: str, table: pa.Table, written: WrittenIndex | None) -> pa.Table:
        metric = self.metrics[name]
        if isinstance(metric, WritingConfig):
            assert written is not None
            return scores.score_elements(table, written, name, metric)
        return scores.score(table, name, metric)


Stages = QuestionsStage | WrittenQuestionsStage | EntailmentStage | AnswersStage | SimilaritiesStage | ScoresStage
STAGES: Mapping[Stage, type[Stages]] = {
    "questions": WrittenQuestionsStage,
    "entailment": EntailmentStage,
    "answers": AnswersStage,
    "similarities": SimilaritiesStage,
    "scores": ScoresStage,
}


def start_stage(node: Node, context: StageContext) -> StageRunner:
    """The node's stage with its model loaded."""
    return (
        QuestionsStage(node, context)
        if node.stage == "questions" and node.model is None
        else STAGES[node.stage](node, context)
    )


def _shard_reader(context: StageContext) -> Callable[[Shard], pa.Table]:
    """Reads a shard's images, remembering the last one."""
    return lru_cache(maxsize=1)(lambda shard: read_shard(shard, context.storage, IMAGE_COLUMNS))


def _texts(shards: Sequence[Shard], context: StageContext) -> dict[str, str]:
    """The prompts' texts by prompt_id."""
    tables = [read_prompts(shard, context.storage) for shard in shards]
    records = [record for table in tables for record in table.select(["prompt_id", "text"]).to_pylist()]
    return {record["prompt_id"]: record["text"] or "" for record in records}


def _refused(images: pa.Table, shard: Shard, row: int, error: RowError) -> PreparedImages:
    (record,) = image_records(images.slice(row, 1))
    return PreparedImages([identify(record, shard.group)], [error], [])


def _drafts(paths: Sequence[str], work: Work) -> frozenset[str]:
    """Which of the cells a cell stands on are drafts."""
    return frozenset(path for path in paths if path in work.outcomes and work.outcomes[path].state == "draft")


def _read_inputs(store: Store, paths: Sequence[str], work: Work) -> pa.Table:
    return _read_all(store, paths, _drafts(paths, work))


def _read_all(store: Store, paths: Sequence[str], drafts: frozenset[str]) -> pa.Table:
    """The cells' rows one after the other."""
    return pa.concat_tables([store.read(path, draft=path in drafts) for path in paths], promote_options="default")
