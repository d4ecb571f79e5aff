"""What the stages share that go over images and read only what other stages made of them, with the prompts."""

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.answered import incomplete
from plumbline.operators.stages.images import RowKey
from plumbline.operators.stages.programs import Ran
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, remembered, text_of, texts_of

IDS = ("image_id", "prompt_id", "generator", "image_digest")


class Material(NamedTuple):
    """What one row is made of."""

    row: Mapping[str, Any]
    """The columns that it has in common with what is read: its ids and the digest of its image."""
    images: Sequence[Any]
    """What is read of each of its images; none where there is an error."""
    error: RowError | None
    basis: str = ""
    """The digest of what is read."""

    @property
    def key(self) -> RowKey:
        return self.row["prompt_id"], self.row["image_digest"], self.basis


class ImageMaterial(NamedTuple):
    """Something that is to be made of one image, for one metric."""

    metric: str
    material: Any


class PreparedMaterials(NamedTuple):
    """What one metric's table of a shard is made of."""

    materials: Sequence[Material]
    kept: Mapping[RowKey, Mapping[str, Any]]
    """Rows of earlier cells, by what they stand on."""

    @property
    def new(self) -> Iterator[Material]:
        """Those of which there is no row yet."""
        return (one for one in self.materials if one.error is None and one.key not in self.kept)

    @property
    def n_kept(self) -> int:
        """How many rows stand as they are."""
        return sum(one.error is None and one.key in self.kept for one in self.materials)


class DerivedStage(Stage):
    """Tables of other stages over images, row by row, and the prompts' texts, to a further one.

    A row with an error passes it on. The tables' metadata has what the model's calls took, for all the metrics together
    (rows.with_usage).
    """

    over = "images"
    reads_rows = False
    keeps_rows = True

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics = metrics
        self.models = models
        self._texts = remembered(texts_of)

    @abstractmethod
    def materials(
        self, metric: Any, read: Mapping[str, Mapping[str, Any]], text: str | RowError
    ) -> list[Any] | RowError:
        """What is read of each image of a row, as plain values, from the row of each table and the prompt's `text`."""

    @abstractmethod
    def make(self, wanted: Sequence[ImageMaterial]) -> Ran[Any]:
        """What the model, or the arithmetic, makes of each."""

    @abstractmethod
    def columns(self, made: Sequence[Any]) -> dict[str, Any]:
        """The columns that what was made of a row's images fills."""

    def prepare(self, inputs: Inputs) -> Mapping[str, PreparedMaterials]:
        texts = self._texts(inputs.prompts)
        return {name: self._read(name, inputs, texts) for name in inputs.metrics}

    def _read(self, name: str, inputs: Inputs, texts: Mapping[str, str]) -> PreparedMaterials:
        tables = {stage: inputs.upstream[name][stage].read().to_pylist() for stage in self.reads(self.metrics[name])}
        together = (dict(zip(tables, each, strict=True)) for each in zip(*tables.values(), strict=True))
        materials = [self._material(self.metrics[name], read, texts) for read in together]
        return PreparedMaterials(materials, _kept_rows(inputs.earlier.get(name, ())))

    def _material(self, metric: Any, read: Mapping[str, Mapping[str, Any]], texts: Mapping[str, str]) -> Material:
        first, *others = read.values()
        ids = {column: first[column] for column in IDS}
        error = next((rows.row_error(row["error"]) for row in read.values() if row["error"]), None)
        if error is None and any({column: row[column] for column in IDS} != ids for row in others):
            error = incomplete(next(iter(read)), f"is not of the image {first['image_id']} as it is now")
        if error is not None:
            return Material(ids, (), error)
        images = self.materials(metric, read, text_of(texts, first["prompt_id"]))
        if isinstance(images, RowError):
            return Material(ids, (), images)
        return Material(ids, images, None, rows.basis_of(*map(json.dumps, images)))

    def compute(self, prepared: Mapping[str, PreparedMaterials]) -> Mapping[str, pa.Table]:
        """All metrics' rows at once, so that the model's batches are full."""
        wanted = [
            ImageMaterial(name, image)
            for name, of_metric in prepared.items()
            for row in of_metric.new
            for image in row.images
        ]
        ran = self.make(wanted)
        made = iter(ran.results)
        tables = {name: self._table(of_metric, made) for name, of_metric in prepared.items()}
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


def _kept_rows(earlier: Sequence[pa.Table]) -> dict[RowKey, Mapping[str, Any]]:
    """The rows without an error of tables of earlier cells, newest first."""
    kept: dict[RowKey, Mapping[str, Any]] = {}
    for row in (row for table in reversed(earlier) for row in table.to_pylist()):
        if row["error"] is None:
            kept[row["prompt_id"], row["image_digest"], row["basis"]] = row
    return kept
