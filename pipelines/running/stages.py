"""Each stage as an actor runs it: read a shard and the cells upstream, call the operator, give tables back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from operators import entailment, questions, rows, scores
from operators.answers import AnswerOperator, QuestionIndex, index_questions
from operators.errors import RowError
from operators.images import Held, ImageLimits, ImageRow, PreparedImages, identify, image_records, nothing_held
from operators.metrics.clipscore import ClipScoreConfig
from operators.metrics.configs import AskingConfig, WritingConfig
from operators.metrics.vqascore import VqaScoreConfig
from operators.scores import WrittenIndex, covers
from operators.similarities import SimilarityOperator, text_basis
from pipelines.cells.cells import Cell, Shard, Stage, Work
from pipelines.cells.earlier import KeptRows, completed, kept_questions, kept_rows
from pipelines.cells.plan import Node
from pipelines.cells.store import BrokenCell, Store
from pipelines.sources.benchmark import IMAGE_COLUMNS
from pipelines.sources.prompts import read_prompts
from pipelines.sources.shards import read_shard
from pipelines.sources.uris import Uris
from pipelines.storage import StorageConfig

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
        from operators.models.loading import load  # the driver never imports torch

        assert node.model is not None
        self.metrics = {name: metric for name, metric in node.metrics.items() if isinstance(metric, WritingConfig)}
        self.context = context
        self.model = load(node.model, "generate")

    def prepare(self, work: Work, cells: Sequence[Cell]) -> pa.Table:
        return read_prompts(work.shard, self.context.storage)

    def compute(self, prepared: pa.Table, cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        """All metrics' questions at once, so that the model's batches are full."""
        with ThreadPoolExecutor(len(cells)) as pool:
            tables = pool.map(lambda cell: self._write(prepared, cell), cells)
            return {cell.metric: table for cell, table in zip(cells, tables, strict=True)}

    def _write(self, prompts: pa.Table, cell: Cell) -> pa.Table:
        kept = kept_questions(cell, self.context.store.read_cell)
        return questions.write(prompts, self.metrics[cell.metric], self.model, kept)


class EntailmentStage:
    """Prompts and questions to probabilities of entailment."""

    side_by_side: ClassVar[bool] = False

    def __init__(self, node: Node, context: StageContext) -> None:
        from operators.models.loading import load  # the driver never imports torch

        assert node.model is not None
        self.context = context
        self.model = load(node.model, "entailment")

    def prepare(self, work: Work, cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        store = self.context.store
        return {cell.metric: _read_all(store, cell.inputs, _drafts(cell.inputs, work)) for cell in cells}

    def compute(self, prepared: Mapping[str, pa.Table], cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        return {name: entailment.entail(table, self.model) for name, table in prepared.items()}


class PreparedShard(NamedTuple):
    """A shard's images as a stage computes them."""

    images: PreparedImages
    """Those that some cell lacks."""
    reads: Mapping[str, Any]
    """By metric, what is asked about the images, or compared with them."""
    kept: Mapping[str, KeptRows]
    """By metric, what earlier cells hold."""
    found: Mapping[str, dict[int, int]]
    """By metric, the rows of the shard that are among what is kept, with their places there."""


class ImageOperator(Protocol):
    """An operator on a shard's images."""

    def prepare(self, images: pa.Table, generator: str, held: Held) -> PreparedImages:
        """Decodes and preprocesses on the CPU those that are not held."""


class ImagesStage(ABC):
    """Images and what is asked about them to what a model says: all of a shard, or row by row."""

    side_by_side: ClassVar[bool] = False
    schema: ClassVar[pa.Schema]
    operator: ImageOperator

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self._shard = _shard_reader(context)
        self._kept = lru_cache(maxsize=REMEMBERED_SHARDS)(self._read_kept)

    @abstractmethod
    def _reads(self, work: Work, cells: Sequence[Cell]) -> Mapping[str, Any]:
        """By metric, what is asked about the shard's images."""

    @abstractmethod
    def _basis(self, metric: str, reads: Any, prompt_id: str | None) -> str | None:
        """What a metric's row of this prompt stands on; None where the prompt is not there."""

    @abstractmethod
    def _measure(self, prepared: PreparedShard, cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        """The tables of the images left, by metric."""

    def prepare(self, work: Work, cells: Sequence[Cell]) -> PreparedShard:
        return self._prepare(read_shard(work.shard, self.context.storage, IMAGE_COLUMNS), work, cells)

    def prepare_row(self, work: Work, cells: Sequence[Cell], row: int) -> PreparedShard:
        return self._prepare(self._shard(work.shard).slice(row, 1), work, cells)

    def refuse_row(self, work: Work, cells: Sequence[Cell], row: int, error: RowError) -> PreparedShard:
        (record,) = image_records(self._shard(work.shard).slice(row, 1))
        refused = PreparedImages([], [], [], [], [])
        refused.add(0, identify(record, work.shard.group), None, error)
        return PreparedShard(refused, self._reads(work, cells), {}, {})

    def compute(self, prepared: PreparedShard, cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        tables = dict(self._measure(prepared, cells))
        for metric, kept in prepared.kept.items():
            tables[metric] = completed(tables[metric], prepared.images.places, kept, prepared.found[metric])
        return tables

    def _prepare(self, images: pa.Table, work: Work, cells: Sequence[Cell]) -> PreparedShard:
        """Decodes the images of which some cell has no row among what earlier cells hold."""
        reads = self._reads(work, cells)
        kept = {cell.metric: self._kept(cell) for cell in cells if cell.earlier}
        found: dict[str, dict[int, int]] = {metric: {} for metric in kept}

        def held(place: int, row: ImageRow, image_digest: str) -> bool:
            for metric, its in kept.items():
                basis = self._basis(metric, reads[metric], row.prompt_id)
                key = (row.image_id, row.prompt_id, image_digest, basis or "")
                if key in its.places:
                    found[metric][place] = its.places[key]
            return len(kept) == len(cells) and all(place in places for places in found.values())

        prepared = self.operator.prepare(images, work.shard.group, held if kept else nothing_held)
        return PreparedShard(prepared, reads, kept, found)

    def _read_kept(self, cell: Cell) -> KeptRows:
        return kept_rows(cell, self.context.limits, self.context.store.read_cell, self.schema)


class AnswersStage(ImagesStage):
    """Images and questions to answers."""

    schema = rows.ANSWERS
    operator: AnswerOperator

    def __init__(self, node: Node, context: StageContext) -> None:
        from operators.models.loading import load  # the driver never imports torch

        assert node.model is not None
        super().__init__(context)
        self.metrics = {name: metric for name, metric in node.metrics.items() if isinstance(metric, AskingConfig)}
        self.operator = AnswerOperator(
            load(node.model, "likelihood"),
            image_batch=node.model.image_batch,
            limits=context.limits,
            fetch=context.uris.read,
            matcher=load(node.matcher, "embedding") if node.matcher is not None else None,
        )
        self._index = lru_cache(maxsize=REMEMBERED_INDICES)(self._read_index)

    def _reads(self, work: Work, cells: Sequence[Cell]) -> dict[str, QuestionIndex]:
        return {cell.metric: self._index(cell.metric, cell.inputs, _drafts(cell.inputs, work)) for cell in cells}

    def _basis(self, metric: str, reads: QuestionIndex, prompt_id: str | None) -> str | None:
        return reads[prompt_id].basis if prompt_id is not None and prompt_id in reads else None

    def _measure(self, prepared: PreparedShard, cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        return self.operator.answer(prepared.images, prepared.reads)

    def _read_index(self, metric: str, paths: tuple[str, ...], drafts: frozenset[str]) -> QuestionIndex:
        return index_questions(_read_all(self.context.store, paths, drafts, rows.QUESTIONS), self.metrics[metric])


class SimilaritiesStage(ImagesStage):
    """Images and prompts to similarities."""

    schema = rows.SIMILARITIES
    operator: SimilarityOperator

    def __init__(self, node: Node, context: StageContext) -> None:
        from operators.models.loading import load  # the driver never imports torch

        assert node.model is not None
        super().__init__(context)
        self.metrics = {name: metric for name, metric in node.metrics.items() if isinstance(metric, ClipScoreConfig)}
        self.operator = SimilarityOperator(
            load(node.model, "similarity"),
            image_batch=node.model.image_batch,
            limits=context.limits,
            fetch=context.uris.read,
            rules={metric.pixels for metric in self.metrics.values()},
        )
        self._own_texts = lru_cache(maxsize=REMEMBERED_SHARDS)(lambda shard: _texts([shard], context))
        self._texts = lru_cache(maxsize=1)(lambda: _texts(context.prompt_shards, context))

    def _reads(self, work: Work, cells: Sequence[Cell]) -> dict[str, Mapping[str, str]]:
        """The prompts of a shard's images: its own, where its rows hold them, or else the benchmark's."""
        texts = self._own_texts(work.shard) if work.shard.holds_prompts else self._texts()
        return {cell.metric: texts for cell in cells}

    def _basis(self, metric: str, reads: Mapping[str, str], prompt_id: str | None) -> str | None:
        return text_basis(prompt_id, reads, self.metrics[metric])

    def _measure(self, prepared: PreparedShard, cells: Sequence[Cell]) -> Mapping[str, pa.Table]:
        return self.operator.compare(
            prepared.images, prepared.reads[cells[0].metric], {cell.metric: self.metrics[cell.metric] for cell in cells}
        )


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
        if not isinstance(self.metrics[cell.metric], WritingConfig):
            return table, None
        written = self._written(tuple(prompts), _drafts(prompts, work))
        if not written.stands_under(table):
            raise BrokenCell(measured, f"{measured}: answers to questions that have been written anew since; run again")
        return table, written

    def _read_written(self, paths: tuple[str, ...], drafts: frozenset[str]) -> WrittenIndex:
        """Cells of questions, each with that of its entailments after it where the metric reads any."""
        tables = {path: self.store.read(path, draft=path in drafts) for path in paths}
        entailed = {path: asked for asked, path in pairwise(paths) if path.startswith("entailment/")}
        for path, asked in entailed.items():
            if not covers(tables[path], tables[asked]):
                raise BrokenCell(path, f"{path}: of questions that have been written anew since; run again")
        questions = [rows.QUESTIONS.empty_table(), *(table for path, table in tables.items() if path not in entailed)]
        entailments = pa.concat_tables([tables[path] for path in entailed]) if entailed else None
        return WrittenIndex(pa.concat_tables(questions), entailments)

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


def _drafts(paths: Sequence[str], work: Work) -> frozenset[str]:
    """Which of the cells a cell stands on are drafts."""
    return frozenset(path for path in paths if path in work.outcomes and work.outcomes[path].state == "draft")


def _read_all(store: Store, paths: Sequence[str], drafts: frozenset[str], schema: pa.Schema | None = None) -> pa.Table:
    """The cells' rows one after the other; of no cells, no rows of the schema."""
    tables = [store.read(path, draft=path in drafts) for path in paths]
    return pa.concat_tables(tables) if schema is None else pa.concat_tables([schema.empty_table(), *tables])
