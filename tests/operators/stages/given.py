"""Inputs for testing a stage without a store."""

from typing import Any

import pyarrow as pa

from plumbline.operators.base import schemas
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import PreparedImages, prepare_images
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.stages.entailment import EntailmentStage
from plumbline.operators.stages.images import ImagesStage
from plumbline.operators.stages.questions import write_questions
from plumbline.operators.stages.scores import PreparedScores, ScoresStage, WrittenIndex
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, UpstreamTables
from tests.operators.tiny import refuse_fetch


def make_options(*, image_batch: int = 100) -> StageOptions:
    return StageOptions(ImageLimits(), refuse_fetch, image_batch=image_batch)


def make_upstream(table: pa.Table) -> UpstreamTables:
    return UpstreamTables(("given",), lambda: [table], table.schema)


def make_inputs(metric: str, *, shard_rows: pa.Table | None = None, **tables: pa.Table) -> Inputs:
    """Return a stage's inputs for one metric; `tables` are the tables that the metric reads, keyed by stage."""
    read = {stage: make_upstream(table) for stage, table in tables.items()}
    prompts = make_upstream(schemas.PROMPTS.empty_table())
    return Inputs("gen", shard_rows if shard_rows is not None else pa.table({}), (metric,), {metric: read}, prompts)


def run_stage(stage: Stage, given: Inputs) -> pa.Table:
    (table,) = stage.compute(stage.prepare(given)).values()
    return table


def decode(stage: ImagesStage, images: pa.Table, *, decoders: int = 1) -> PreparedImages:
    return prepare_images(
        images, "gen", preprocess=stage.preprocess, limits=ImageLimits(), fetch=refuse_fetch, decoders=decoders
    )


def ask(prompts: pa.Table, metric: Any) -> pa.Table:
    """Return the table of a metric's questions about the prompts; the metric must not need a question writer."""
    return write_questions(prompts, metric, None)


def compute_entailment(questions: pa.Table, model: Any) -> pa.Table:
    return run_stage(EntailmentStage({}, {"nli": model}, make_options()), make_inputs("metric", questions=questions))


def score(measured: pa.Table, name: str, metric: Metric, written: WrittenIndex | None = None) -> pa.Table:
    """Return the metric's scores, computed from a stage's table and from the written questions, if any."""
    return ScoresStage({name: metric}, {}, make_options()).compute({name: PreparedScores(measured, written)})[name]
