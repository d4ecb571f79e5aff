"""Base class of stages that look at images: decoding, and reuse of rows from earlier cells."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows
from plumbline.operators.base.batches import BatchSize
from plumbline.operators.base.errors import RowError
from plumbline.operators.images.preparing import Edit, PreparedImages, prepare_images
from plumbline.operators.images.rows import ImageRow, identify, image_records
from plumbline.operators.metrics.metric import View
from plumbline.operators.stages.stage import Inputs, RowStage, StageOptions

RowKey = tuple[str | None, str, str]
"""Everything that a row depends on: prompt_id, digest of the image, and basis."""


class PromptBasis(Protocol):
    """A metric's questions about the images of each prompt."""

    def basis(self, prompt_id: str | None) -> str | None:
        """Return the digest of what is asked about images of this prompt; None if the prompt is unknown."""


class AnyPrompt(NamedTuple):
    """Questions that do not depend on the prompt."""

    def basis(self, prompt_id: str | None) -> str:
        """Return one digest for all prompts: the cell's recipe has the rest."""
        return rows.input_digest()


def basis_with_sources(basis: str | None, sources: str | None) -> str | None:
    """Return a row's basis, extended by the digest of its sources and mask if the stage looks at them."""
    return basis if sources is None or basis is None else rows.input_digest(basis, sources)


def images_of_view(view: View, image: Image.Image, edit: Edit | None) -> list[Image.Image]:
    """Return the images of a view in display order; views with a source need the edit."""
    source = [] if edit is None or view == "result" else [edit.source]
    return source if view == "source" else [*source, image]


class KeptRows(NamedTuple):
    """Rows of earlier cells, by the inputs that they were computed from."""

    table: pa.Table
    places: Mapping[RowKey, int]


class PreparedShard(NamedTuple):
    """A shard's images as a stage computes them."""

    images: PreparedImages
    """The images for which some metric has no result."""
    asked: Mapping[str, Any]
    """Questions about the images, or texts to compare them with, by metric."""
    kept: Mapping[str, KeptRows]
    """Rows of earlier cells, by metric."""
    kept_places: Mapping[str, Mapping[int, int]]
    """Rows of the shard that are among the kept rows, with their places there, by metric."""
    ids: Mapping[int, ImageRow]
    """Ids of those rows of the shard; in the earlier cell the image may have had another id."""


class ImagesStage(RowStage):
    """Base of stages that answer questions about images: a whole shard at once, or row by row."""

    over = "images"
    masks: ClassVar[bool] = False
    """True if the stage ignores the pixels under the masks of edits."""
    keeps_rows = True

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics = metrics
        self.views: tuple[View, ...] = next((metric.views for metric in metrics.values()), ("result",))
        self.model: Any = next((models[key] for key in self.calls if key in models), None)
        self.options = options
        self.image_batch = BatchSize(options.image_batch)
        self._kept: tuple[Mapping[str, Sequence[pa.Table]], Mapping[str, KeptRows]] = ({}, {})

    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        """Return by metric its questions about the shard's images; by default they do not depend on the prompts."""
        return dict.fromkeys(inputs.metrics, AnyPrompt())

    def basis(self, asked: Any, row: ImageRow, place: int) -> str | None:
        """Return the digest of everything except the image that a row of the shard depends on."""
        basis: str | None = asked.basis(row.prompt_id)
        return basis

    @abstractmethod
    def measure(self, images: PreparedImages, asked: Mapping[str, Any]) -> Mapping[str, pa.Table]:
        """Return the tables of these images by metric, with one row per image row, also for errors."""

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> Any:
        """Preprocess one image for the model; `edit` is given if the metrics look at sources."""
        return self.model.preprocess(image)

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> Any:
        """Preprocess the frames of one video; each frame represents this number of seconds."""
        return self.model.preprocess_video(frames, seconds)

    def prepare(self, inputs: Inputs) -> PreparedShard:
        """Decode the images for which some metric has no row in earlier cells."""
        asked = self.asked(inputs)
        kept = self._index_earlier(inputs.earlier)
        places: dict[str, dict[int, int]] = {name: {} for name in kept}
        ids: dict[int, ImageRow] = {}

        def is_kept(place: int, row: ImageRow, image_digest: str, sources: str | None) -> bool:
            for name, rows_of_metric in kept.items():
                key = (
                    row.prompt_id,
                    image_digest,
                    basis_with_sources(self.basis(asked[name], row, place), sources) or "",
                )
                at = rows_of_metric.places.get(key)
                if at is not None:
                    places[name][place], ids[place] = at, row
            return len(kept) == len(asked) and all(place in known for known in places.values())

        images = prepare_images(
            inputs.rows,
            inputs.group,
            preprocess=self.preprocess,
            limits=self.options.limits,
            clips=self.options.clips,
            preprocess_video=self.preprocess_video if self.calls else None,
            preprocess_edit=self.preprocess if any(view != "result" for view in self.views) else None,
            masked=self.masks,
            fetch=self.options.fetch,
            is_known=is_kept,
            decoders=self.options.decoders,
        )
        return PreparedShard(images, asked, kept, places, ids)

    def _index_earlier(self, earlier: Mapping[str, Sequence[pa.Table]]) -> Mapping[str, KeptRows]:
        """Return the rows of earlier cells by metric; they are indexed once for all windows of a shard."""
        known = self._kept
        if known[0] is not earlier:
            known = self._kept = earlier, {name: _index_rows(tables) for name, tables in earlier.items() if tables}
        return known[1]

    def refuse(self, inputs: Inputs, error: RowError) -> PreparedShard:
        refused = PreparedImages()
        for place, record in enumerate(image_records(inputs.rows)):
            refused.add(place, identify(record, inputs.group), None, error)
        return PreparedShard(refused, self.asked(inputs), {}, {}, {})

    def compute(self, prepared: PreparedShard) -> Mapping[str, pa.Table]:
        tables = dict(self.measure(prepared.images, prepared.asked))
        for name, kept in prepared.kept.items():
            places = prepared.kept_places[name]
            rows_kept = _replace_ids(
                kept.table.take(pa.array(places.values(), pa.int64())), map(prepared.ids.get, places)
            )
            completed = _merge_rows(tables[name], prepared.images.places, rows_kept, list(places))
            tables[name] = rows.with_kept(completed, len(places))
        return tables


class PixelsStage(ImagesStage):
    """A stage that measures pixels without a model: its preprocessing returns the measurements of an image."""

    column: ClassVar[str]
    """Column of the table with the measurements of a row's images."""

    def measure(self, images: PreparedImages, asked: Mapping[str, AnyPrompt]) -> Mapping[str, pa.Table]:
        measured = iter(images.pixels)
        records = []
        for row, digest, source, error, count in zip(
            images.rows, images.digests, images.sources, images.errors, images.counts, strict=True
        ):
            measurements = [next(measured)._asdict() for _ in range(count)]
            columns = {self.column: measurements} if error is None else {"error": rows.error_value(error)}
            basis = basis_with_sources(AnyPrompt().basis(row.prompt_id), source)
            records.append(row.row(**columns, image_digest=digest, basis=basis))
        return dict.fromkeys(asked, rows.table(records, self.schema))


def _index_rows(earlier: Sequence[pa.Table]) -> KeptRows:
    """Return the rows of the tables of earlier cells, newest first, with the places of rows without an error."""
    table = pa.concat_tables([each.replace_schema_metadata(None) for each in reversed(earlier)])
    keys = [table.column(name).to_pylist() for name in ("prompt_id", "image_digest", "basis")]
    sound = table.column("error").is_null().to_pylist()
    places = {key: place for place, key in enumerate(zip(*keys, strict=True)) if sound[place]}
    return KeptRows(table, places)


def _replace_ids(table: pa.Table, ids: Iterable[ImageRow | None]) -> pa.Table:
    """Return the rows with the ids that their images have now."""
    for name, values in zip(ImageRow._fields, zip(*ids, strict=True), strict=False):
        place = table.column_names.index(name)
        table = table.set_column(place, table.field(place), pa.array(values, pa.string()))
    return table


def _merge_rows(computed: pa.Table, places: Sequence[int], kept: pa.Table, kept_places: Sequence[int]) -> pa.Table:
    """Return a shard's rows in order: kept ones at `kept_places`, and those `computed` at the other `places`."""
    both = pa.concat_tables([kept, computed.replace_schema_metadata(None)])
    at = {place: row + len(kept) for row, place in enumerate(places)}
    at |= {place: row for row, place in enumerate(kept_places)}
    ordered = both.take(pa.array([at[place] for place in sorted(at)], pa.int64()))
    return ordered.replace_schema_metadata(computed.schema.metadata)
