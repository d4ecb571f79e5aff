"""Base class for image stages that read only the prompts and the tables of other stages."""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.metric import make_incomplete_cell_error
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.stages.images import RowKey
from plumbline.operators.stages.programs import ProgramResults, generate, run_programs
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, cache_upstream, find_text, read_prompt_texts

ID_COLUMNS = ("image_id", "prompt_id", "generator", "image_digest")


class DerivedRow(NamedTuple):
    """One row of a derived table: its inputs, or a row with the same inputs from an earlier cell."""

    ids: Mapping[str, Any]
    """Id columns (ID_COLUMNS), which the row shares with its input tables."""
    images: Sequence[Any] = ()
    """Input for each image of the row; empty if there is nothing to compute."""
    error: RowError | None = None
    digest: str | None = None
    """Digest of all inputs of the row, by which a row with the same inputs is found in an earlier cell."""
    reused: Mapping[str, Any] | None = None
    """Row from an earlier cell that has the same inputs."""


class DerivedStage(Stage):
    """Base class for stages that turn tables about images and the texts of prompts into another table, row by row.

    An error in an input row becomes the error of the resulting row.
    """

    row_kind = "images"
    keeps_rows = True

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics = metrics
        self.models = models
        self._texts = cache_upstream(read_prompt_texts)

    @abstractmethod
    def make_image_inputs(
        self, metric: Any, read: Mapping[str, Mapping[str, Any]], text: str | RowError
    ) -> list[Any] | RowError:
        """Return the input for each image of a row as plain values, or an error if the row cannot be computed.

        `read` maps each stage that this stage reads to the row of its table. `text` is the text of the prompt, or an
        error if it cannot be used.
        """

    def program(self, metric: Any, image: Any) -> Writing[Any]:
        """Return a program that makes the metric's requests for one image; `image` is the image's input.

        It is not called if `run_images` is overridden.
        """
        raise NotImplementedError

    @abstractmethod
    def columns(self, results: Sequence[Any]) -> dict[str, Any]:
        """Return one row's values for the stage's columns, by name, given the results for the row's images."""

    def run_images(self, images: Sequence[tuple[Any, Any]]) -> ProgramResults[Any]:
        """Return the result for each item of `images`, a pair of a metric and the input for one image."""
        model = self.models[next(iter(self.calls))]
        return run_programs([self.program(metric, image) for metric, image in images], partial(generate, model))

    def prepare(self, inputs: Inputs) -> Mapping[str, list[DerivedRow]]:
        texts = self._texts(inputs.prompts)
        prepared = {}
        for name in inputs.metrics:
            metric = self.metrics[name]
            tables = {
                stage: inputs.upstream[name][stage].read().to_pylist() for stage in self.list_input_stages(metric)
            }
            earlier = {  # from the oldest to the newest, so that a newer row replaces an older one of the same key
                (row["prompt_id"], row["image_digest"], row["basis"]): row
                for table in reversed(inputs.earlier.get(name, ()))
                for row in table.to_pylist()
                if row["error"] is None
            }
            joined = (dict(zip(tables, each, strict=True)) for each in zip(*tables.values(), strict=True))
            prepared[name] = [self._prepare_row(metric, read, texts, earlier) for read in joined]
        return prepared

    def _prepare_row(
        self,
        metric: Any,
        read: Mapping[str, Mapping[str, Any]],
        texts: Mapping[str, str],
        earlier: Mapping[RowKey, Mapping[str, Any]],
    ) -> DerivedRow:
        first, *others = read.values()
        ids = {column: first[column] for column in ID_COLUMNS}
        error = next((rows.read_row_error(row["error"]) for row in read.values() if row["error"]), None)
        if error is None and any(row[column] != first[column] for row in others for column in ID_COLUMNS):
            error = make_incomplete_cell_error(
                next(iter(read)), f"does not match the current image {first['image_id']}"
            )
        images = error or self.make_image_inputs(metric, read, find_text(texts, first["prompt_id"]))
        if isinstance(images, RowError):
            return DerivedRow(ids, error=images)
        digest = rows.digest_inputs(*map(json.dumps, images))
        reused = earlier.get((first["prompt_id"], first["image_digest"], digest))
        return DerivedRow(ids, () if reused else images, digest=digest, reused=reused)

    def compute(self, prepared: Mapping[str, list[DerivedRow]]) -> Mapping[str, pa.Table]:
        """Return each metric's table; the rows of all metrics are computed together, to fill the model's batches."""
        ran = self.run_images(
            [
                (self.metrics[name], image)
                for name, of_metric in prepared.items()
                for row in of_metric
                for image in row.images
            ]
        )
        left = iter(ran.results)
        tables = {}
        for name, of_metric in prepared.items():
            records = []
            for row in of_metric:
                results = [next(left) for _ in row.images]
                error = row.error or next((result for result in results if isinstance(result, RowError)), None)
                if row.reused is not None:
                    records.append({**row.reused, **row.ids})
                elif error is not None:
                    records.append({**row.ids, "error": rows.error_to_dict(error)})
                else:
                    records.append({**row.ids, **self.columns(results), "basis": row.digest})
            table = rows.attach_usage(rows.table(records, self.schema), ran.usage)
            tables[name] = rows.attach_kept_count(table, sum(row.reused is not None for row in of_metric))
        return tables
