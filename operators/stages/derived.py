"""Base class of stages over images that read only tables of other stages, and the prompts."""

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.answered import incomplete
from plumbline.operators.stages.images import RowKey
from plumbline.operators.stages.programs import ProgramResults
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, cache_upstream, find_text, texts_of

IDS = ("image_id", "prompt_id", "generator", "image_digest")


class Material(NamedTuple):
    """Input of one row."""

    row: Mapping[str, Any]
    """Columns that it shares with the tables it reads: ids and the digest of the image."""
    images: Sequence[Any]
    """Input for each of its images; empty if there is an error."""
    error: RowError | None
    basis: str = ""
    """Digest of the input."""

    @property
    def key(self) -> RowKey:
        return self.row["prompt_id"], self.row["image_digest"], self.basis


class ImageMaterial(NamedTuple):
    """Input for one image and one metric."""

    metric: str
    material: Any


class PreparedMaterials(NamedTuple):
    """Inputs of one metric's table of a shard."""

    materials: Sequence[Material]
    kept: Mapping[RowKey, Mapping[str, Any]]
    """Rows of earlier cells by RowKey."""

    @property
    def new(self) -> Iterator[Material]:
        """Rows that must be computed."""
        return (one for one in self.materials if one.error is None and one.key not in self.kept)

    @property
    def n_kept(self) -> int:
        """Number of rows that are reused."""
        return sum(one.error is None and one.key in self.kept for one in self.materials)


class DerivedStage(Stage):
    """Base of stages that turn tables about images, and the prompts' texts, into a further table, row by row.

    A row with an error passes it on. The tables' metadata has the usage of the model's calls, for all metrics together
    (rows.with_usage).
    """

    over = "images"
    keeps_rows = True

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics = metrics
        self.models = models
        self._texts = cache_upstream(texts_of)

    @abstractmethod
    def materials(
        self, metric: Any, read: Mapping[str, Mapping[str, Any]], text: str | RowError
    ) -> list[Any] | RowError:
        """Return each image's input as plain values, from its row in each table and the prompt's `text`."""

    @abstractmethod
    def make(self, wanted: Sequence[ImageMaterial]) -> ProgramResults[Any]:
        """Return the model's or the arithmetic's result for each input."""

    @abstractmethod
    def columns(self, made: Sequence[Any]) -> dict[str, Any]:
        """Return the columns of a row from the results for its images."""

    def prepare(self, inputs: Inputs) -> Mapping[str, PreparedMaterials]:
        texts = self._texts(inputs.prompts)
        return {name: self._read(name, inputs, texts) for name in inputs.metrics}

    def _read(self, name: str, inputs: Inputs, texts: Mapping[str, str]) -> PreparedMaterials:
        tables = {stage: inputs.upstream[name][stage].read().to_pylist() for stage in self.reads(self.metrics[name])}
        together = (dict(zip(tables, each, strict=True)) for each in zip(*tables.values(), strict=True))
        materials = [self._material(self.metrics[name], read, texts) for read in together]
        return PreparedMaterials(materials, _index_earlier(inputs.earlier.get(name, ())))

    def _material(self, metric: Any, read: Mapping[str, Mapping[str, Any]], texts: Mapping[str, str]) -> Material:
        first, *others = read.values()
        ids = {column: first[column] for column in IDS}
        error = next((rows.row_error(row["error"]) for row in read.values() if row["error"]), None)
        if error is None and any({column: row[column] for column in IDS} != ids for row in others):
            error = incomplete(next(iter(read)), f"is not of the image {first['image_id']} as it is now")
        if error is not None:
            return Material(ids, (), error)
        images = self.materials(metric, read, find_text(texts, first["prompt_id"]))
        if isinstance(images, RowError):
            return Material(ids, (), images)
        return Material(ids, images, None, rows.input_digest(*map(json.dumps, images)))

    def compute(self, prepared: Mapping[str, PreparedMaterials]) -> Mapping[str, pa.Table]:
        """Compute all metrics' rows together, to fill the model's batches."""
        wanted = [
            ImageMaterial(name, image)
            for name, materials in prepared.items()
            for row in materials.new
            for image in row.images
        ]
        ran = self.make(wanted)
        made = iter(ran.results)
        tables = {name: self._table(materials, made) for name, materials in prepared.items()}
        counted = {name: rows.with_usage(table, ran.usage) for name, table in tables.items()}
        return {name: rows.with_kept(table, prepared[name].n_kept) for name, table in counted.items()}

    def _table(self, prepared: PreparedMaterials, made: Iterator[Any]) -> pa.Table:
        records = []
        for material in prepared.materials:
            if material.error is None and material.key in prepared.kept:
                records.append({**prepared.kept[material.key], **material.row})
                continue
            results = [next(made) for _ in material.images]
            error = material.error or next((one for one in results if isinstance(one, RowError)), None)
            columns = {"error": rows.error_value(error)} if error else self.columns(results)
            records.append({**material.row, **columns, "basis": None if error else material.basis})
        return rows.table(records, self.schema)


def _index_earlier(earlier: Sequence[pa.Table]) -> dict[RowKey, Mapping[str, Any]]:
    """Return the rows without an error in earlier tables, newest first."""
    kept: dict[RowKey, Mapping[str, Any]] = {}
    for row in (row for table in reversed(earlier) for row in table.to_pylist()):
        if row["error"] is None:
            kept[row["prompt_id"], row["image_digest"], row["basis"]] = row
    return kept
