"""Node stages: each reads the inputs that the cells of a shard need, and calls the operator of its stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from plumbline.operators.base import schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.rows import CAPTION_COLUMNS, EDIT_COLUMNS
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.ablation import replace_images
from plumbline.operators.models.families import FAMILIES
from plumbline.operators.stages.graph import list_caption_columns, list_source_metrics
from plumbline.operators.stages.stage import Inputs, RowStage, StageOptions, StaleInputError, UpstreamTables
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.plans.plan import Node
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.edit_columns import append_edit_columns
from plumbline.pipelines.sources.pairs import read_ids, read_pairs
from plumbline.pipelines.sources.prompts import read_prompts
from plumbline.pipelines.sources.question_packs import PackFile, read_pack
from plumbline.pipelines.sources.shards import read_shard
from plumbline.pipelines.sources.uris import UriReader
from plumbline.pipelines.store.cells import Cell, Shard, Work, is_draft
from plumbline.pipelines.store.reused_rows import read_earlier_tables
from plumbline.pipelines.store.store import BrokenCellError, Store

READ_COLUMNS = (*IMAGE_COLUMNS, "error")
"""Columns to read from image tables. In tables written by Plumbline, `error` is the reason why a row has no image.
"""
WINDOW_ROWS = 256
"""Number of rows of a shard that are decoded and computed together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageContext:
    """Inputs shared by all stages of one benchmark."""

    store: Store
    metrics: tuple[str, ...]
    limits: ImageLimits
    clips: Clips
    uris: UriReader
    prompt_shards: tuple[Shard, ...]
    packed: PackFile | None = None
    """The benchmark's own questions, if it has any."""


def load_models(node: Node) -> dict[str, Any]:
    """Load a node's models; return them keyed by the metric options that select them."""
    from plumbline.operators.models.loading import load  # the driver never imports torch

    stage, metrics = STAGES[node.stage], node.metrics.values()
    return {
        key: load(model, stage.choose_needed_call(key, metrics, FAMILIES[model.config.family]))
        for key, model in node.models.items()
    }


def make_stages(node: Node, contexts: Mapping[str, StageContext], *, decoders: int = 1) -> dict[str, "NodeStage"]:
    """Return the node's stages by benchmark. The stages share the models, which are loaded once."""
    loaded = load_models(node)
    nodes = {benchmark: node.select_metrics(context.metrics) for benchmark, context in contexts.items()}
    return {
        benchmark: NodeStage(own, contexts[benchmark], {key: loaded[key] for key in own.models}, decoders=decoders)
        for benchmark, own in nodes.items()
        if own.metrics
    }


class NodeStage:
    """The stage of a node for one benchmark, which computes the cells of one shard after another."""

    def __init__(self, node: Node, context: StageContext, models: Mapping[str, Any], *, decoders: int = 1) -> None:
        """Create a stage that decodes up to `decoders` images concurrently."""
        self.node, self.context = node, context
        options = StageOptions(context.limits, context.uris.read, decoders=decoders, clips=context.clips)
        if node.model is not None:
            options = options._replace(image_batch=node.model.config.image_batch)
        self.stage = STAGES[node.stage](node.metrics, models, options)
        self.side_by_side = self.stage.side_by_side

    @property
    def can_split_rows(self) -> bool:
        """True if the stage can try rows one by one."""
        return isinstance(self.stage, RowStage)

    def read_windows(self, work: Work, cells: Sequence[Cell], size: int = WINDOW_ROWS) -> Sequence[Inputs]:
        """Read the inputs of the cells, split into windows of `size` rows that are prepared and computed separately.

        A stage that does not compute row by row gets a single window, unless it works on images.
        """
        inputs, count = self._read_inputs(work, cells), work.shard.rows
        if isinstance(self.stage, RowStage) and self.stage.window is not None:
            size = min(size, self.stage.window)
        if count <= size or not (self.can_split_rows or self.stage.row_kind == "images"):
            return [inputs]
        firsts = range(0, count, size)
        if isinstance(self.stage, RowStage):
            return [inputs._replace(rows=inputs.rows.slice(first, size)) for first in firsts]
        tables = {
            (metric, stage): upstream.read()
            for metric, by_stage in inputs.upstream.items()
            for stage, upstream in by_stage.items()
            if STAGES[stage].row_kind
            == "images"  # the others are not sliced, because they do not have one row per image
        }

        def slice_upstream(metric: str, stage: str, upstream: UpstreamTables, first: int) -> UpstreamTables:
            if (metric, stage) not in tables:
                return upstream
            rows = tables[metric, stage].slice(first, size)
            return replace(upstream, read_each=lambda: [rows], state=(upstream.state, first))

        return [
            inputs._replace(
                upstream={
                    metric: {stage: slice_upstream(metric, stage, each, first) for stage, each in by_stage.items()}
                    for metric, by_stage in inputs.upstream.items()
                }
            )
            for first in firsts
        ]

    def prepare(self, inputs: Inputs) -> Any:
        """Decode a window. This can run while `compute` works on the previous window."""
        try:
            return self.stage.prepare(inputs)
        except StaleInputError as error:
            raise BrokenCellError(error.name, str(error)) from error

    def refuse(self, inputs: Inputs, error: RowError) -> Any:
        """Prepare rows that are to fail with this error, reading only their ids."""
        assert isinstance(self.stage, RowStage), "its rows can be tried one by one"
        return self.stage.refuse(inputs, error)

    def compute(self, prepared: Any) -> Mapping[str, pa.Table]:
        """Return the tables of the cells, by metric."""
        return self.stage.compute(prepared)

    def _read_inputs(self, work: Work, cells: Sequence[Cell]) -> Inputs:
        """Return the inputs that the stage declares. Tables are only read when the stage uses them."""
        shard, store, packed = work.shard, self.context.store, self.context.packed

        def open_upstream(stage: str, paths: Sequence[str]) -> UpstreamTables:
            drafts = tuple(is_draft(path, work.outcomes) for path in paths)

            def read_each() -> list[pa.Table]:
                return [store.read(path, draft=draft) for path, draft in zip(paths, drafts, strict=True)]

            return UpstreamTables(tuple(paths), read_each, STAGES[stage].schema, state=drafts)

        # the prompts in the rows, if there are any, otherwise the benchmark's
        prompt_shards = (shard,) if shard.contains_prompts else self.context.prompt_shards
        names = tuple(f"{prompts.group}/{prompts.name}" for prompts in prompt_shards)
        pack: UpstreamTables | None = None  # the questions that the benchmark ships
        if packed is not None:
            read = partial(read_pack, packed, shard.group)
            url = packed.place.url
            pack = UpstreamTables((url,), lambda: [read().questions], schemas.QUESTIONS, state=packed.digest)
        return Inputs(
            group=shard.group,
            rows=self._read_rows(shard),
            metrics=tuple(cell.metric for cell in cells),
            upstream={
                cell.metric: {stage: open_upstream(stage, paths) for stage, paths in cell.inputs.items()}
                for cell in cells
            },
            prompts=UpstreamTables(
                names, lambda: [read_prompts(prompts) for prompts in prompt_shards], schemas.PROMPTS
            ),
            pack=pack,
            earlier={cell.metric: read_earlier_tables(cell, self.context.limits, store.read_cell) for cell in cells},
        )

    def _read_rows(self, shard: Shard) -> pa.Table:
        if not isinstance(self.stage, RowStage):
            return pa.table({})
        if self.stage.row_kind == "prompts":
            return read_prompts(shard)
        if self.stage.row_kind == "pairs":
            edits = bool(list_source_metrics(self.node.metrics))
            return read_pairs(shard, READ_COLUMNS, edited_from=self.context.prompt_shards if edits else None)
        if not self.stage.looks_at_images():
            return read_ids(shard, READ_COLUMNS)
        sources, captions = list_source_metrics(self.node.metrics), list_caption_columns(self.node.metrics)
        if sources or captions:
            images = read_shard(shard, (*READ_COLUMNS, *(EDIT_COLUMNS if sources else CAPTION_COLUMNS)))
            images = append_edit_columns(images, self.context.prompt_shards)
        else:
            images = read_shard(shard, READ_COLUMNS)
        metric = next(iter(self.node.metrics.values()))  # metrics with different ablations are in different nodes
        return replace_images(images, metric.image_ablation)
