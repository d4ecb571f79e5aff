"""Base class for stages that look at images: decodes them, and reuses rows from earlier cells."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows
from plumbline.operators.base.batches import BatchSize
from plumbline.operators.base.errors import RowError
from plumbline.operators.images.preparing import Edit, PreparedImages, prepare_images
from plumbline.operators.images.rows import ImageRow, list_image_records, read_image_row
from plumbline.operators.metrics.metric import View
from plumbline.operators.stages.stage import Inputs, RowKind, RowStage, StageOptions

RowKey = tuple[str | None, str, str]
"""Everything that determines a row: prompt_id, digest of the image, and digest of the other inputs (column `basis`)."""


class QuestionsByPrompt(Protocol):
    """Protocol for a metric's questions about images, which may depend on the prompt."""

    def digest(self, prompt_id: str | None) -> str | None:
        """Return the digest of the questions about images of this prompt, or None if the prompt is unknown."""


class PromptIndependentQuestions:
    """Stand-in for the questions of a metric that measures every image in the same way, whatever its prompt."""

    def digest(self, prompt_id: str | None) -> str:
        return rows.digest_inputs()  # the same for all prompts: the cell's recipe has everything else


def select_images_of_view(view: View, image: Image.Image, edit: Edit | None) -> list[Image.Image]:
    """Return the images of a view in display order; if a view shows two images, the second one is from `edit`."""
    source = [] if edit is None or view == "result" else [edit.source]
    if view in ("edit_pair", "swapped_edit_pair"):
        assert edit is not None and edit.original is not None, "a table of pairs of edits has the images before them"
        return [edit.original, *([*source, image] if view == "edit_pair" else [image, *source])]
    if view == "swapped_pair":
        return [image, *source]
    return source if view == "source" else [*source, image]


class EarlierRows:
    """Index of one metric's rows in earlier cells, by prompt, image and other inputs (RowKey)."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        """Index the rows that have no error; `tables` must be sorted from newest to oldest."""
        # From the oldest to the newest, so that a newer row replaces an older one of the same key.
        self.table = pa.concat_tables([each.replace_schema_metadata(None) for each in reversed(tables)])
        keys = zip(
            *(self.table.column(name).to_pylist() for name in ("prompt_id", "image_digest", "basis")), strict=True
        )
        valid = self.table.column("error").is_null().to_pylist()
        self.numbers: dict[RowKey, int] = {key: number for number, key in enumerate(keys) if valid[number]}

    def select_reused(self, found: Mapping[int, tuple[int, ImageRow]]) -> "ReusedRows":
        """Return the earlier rows that a shard can reuse, with the ids that the images have in this shard.

        `found` maps each position in the shard to the index of the earlier row and the image's ids in the shard.
        """
        table = self.table.take(pa.array([number for number, _ in found.values()], pa.int64()))
        for field, name in enumerate(ImageRow._fields):
            column = table.column_names.index(name)
            ids = pa.array([row[field] for _, row in found.values()], pa.string())
            table = table.set_column(column, table.field(column), ids)
        return ReusedRows(table, list(found))


class ReusedRows(NamedTuple):
    """A table of rows from earlier cells, and their positions in the shard; they are not computed again."""

    table: pa.Table
    positions: Sequence[int]
    """Position of each row in the shard."""


class PreparedShard(NamedTuple):
    """A shard's decoded images, the metrics' questions about them, and rows that are reused from earlier cells."""

    images: PreparedImages
    """The images for which at least one metric has no result yet."""
    questions: Mapping[str, Any]
    """Questions about the images, or texts to compare them with, by metric."""
    reused: Mapping[str, ReusedRows]
    """Rows reused from earlier cells, by metric."""


class ImagesStage(RowStage):
    """Base class for stages that answer questions about images, for a whole shard at once or row by row."""

    row_kind: ClassVar[RowKind] = "images"
    masks: ClassVar[bool] = False
    """True if the stage ignores the pixels covered by the masks of edits."""
    keeps_rows = True

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics = metrics
        self.views: tuple[View, ...] = next((metric.views for metric in metrics.values()), ("result",))
        self.model: Any = next((models[key] for key in self.calls if key in models), None)
        self.options = options
        self.image_batch = BatchSize(options.image_batch)
        self._earlier: tuple[Mapping[str, Sequence[pa.Table]], Mapping[str, EarlierRows]] = ({}, {})

    def read_questions(self, inputs: Inputs) -> Mapping[str, Any]:
        """Return each metric's questions about the shard's images; by default they do not depend on the prompts."""
        return dict.fromkeys(inputs.metrics, PromptIndependentQuestions())

    def compute_input_digest(self, questions: Any, row: ImageRow, position: int, sources: str | None) -> str | None:
        """Return the digest of a row's inputs except the image itself; None if the prompt is unknown.

        `position` is the row's position in the shard. `sources` is the digest of its sources and mask, if the stage
        uses them.
        """
        digest: str | None = questions.digest(row.prompt_id)
        return digest if sources is None or digest is None else rows.digest_inputs(digest, sources)

    @abstractmethod
    def measure(self, images: PreparedImages, questions: Mapping[str, Any]) -> Mapping[str, pa.Table]:
        """Return a table for each metric, with one row per image row, including rows with errors."""

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> Any:
        """Return one image in the form that the model reads; `edit` is given if the metrics use sources."""
        return self.model.preprocess(image)

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> Any:
        """Return a video in the form that the model reads; each frame stands for the given number of seconds."""
        return self.model.preprocess_video(frames, seconds)

    def prepare(self, inputs: Inputs) -> PreparedShard:
        """Return the shard with the decoded images for which at least one metric has no row in earlier cells."""
        questions = self.read_questions(inputs)
        if self._earlier[0] is not inputs.earlier:  # indexed once for all windows of a shard
            indices = {name: EarlierRows(tables) for name, tables in inputs.earlier.items() if tables}
            self._earlier = inputs.earlier, indices
        earlier = self._earlier[1]
        found: dict[str, dict[int, tuple[int, ImageRow]]] = {name: {} for name in earlier}

        def is_known(position: int, row: ImageRow, image_digest: str, sources: str | None) -> bool:
            for name, index in earlier.items():
                digest = self.compute_input_digest(questions[name], row, position, sources)
                number = index.numbers.get((row.prompt_id, image_digest, digest or ""))
                if number is not None:
                    found[name][position] = number, row
            return len(earlier) == len(questions) and all(position in known for known in found.values())

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
            is_known=is_known,
            decoders=self.options.decoders,
        )
        return PreparedShard(
            images, questions, {name: earlier[name].select_reused(rows_of) for name, rows_of in found.items()}
        )

    def refuse(self, inputs: Inputs, error: RowError) -> PreparedShard:
        refused = PreparedImages()
        for position, record in enumerate(list_image_records(inputs.rows)):
            refused.add(position, read_image_row(record, inputs.group), None, error)
        return PreparedShard(refused, self.read_questions(inputs), {})

    def compute(self, prepared: PreparedShard) -> Mapping[str, pa.Table]:
        tables = dict(self.measure(prepared.images, prepared.questions))
        for name, reused in prepared.reused.items():
            computed = tables[name]
            both = pa.concat_tables([reused.table, computed.replace_schema_metadata(None)])
            # A row that another metric lacked was computed for all metrics; the reused row takes precedence.
            number_of = {position: len(reused.table) + row for row, position in enumerate(prepared.images.row_numbers)}
            number_of |= {position: row for row, position in enumerate(reused.positions)}
            in_order = both.take(pa.array([number_of[position] for position in sorted(number_of)], pa.int64()))
            counted = in_order.replace_schema_metadata(computed.schema.metadata)
            tables[name] = rows.attach_kept_count(counted, len(reused.positions))
        return tables

    def tabulate(
        self,
        images: PreparedImages,
        questions: Any,
        results: Iterable[Any],
        columns: Callable[[Sequence[Any]], Mapping[str, Any]],
    ) -> pa.Table:
        """Return a metric's table, with a row for each row of the shard.

        Args:
            images: The prepared images.
            questions: The metric's questions about the images.
            results: The result for each preprocessed image. A RowError becomes the error of the image's row.
            columns: Returns the columns of a row, given the results for its images.
        """
        records, left = [], iter(results)
        for row, position, image_digest, source, error, count in zip(
            images.rows, images.row_numbers, images.digests, images.sources, images.errors, images.counts, strict=True
        ):
            of_row = [next(left) for _ in range(count)]
            failed = error or next((result for result in of_row if isinstance(result, RowError)), None)
            if failed is not None:
                record = row.make_row(error=rows.error_to_dict(failed), image_digest=image_digest)
            else:
                digest = self.compute_input_digest(questions, row, position, source)
                record = row.make_row(**columns(of_row), image_digest=image_digest, basis=digest)
            records.append(record)
        return rows.table(records, self.schema)


class PixelsStage(ImagesStage):
    """Base class for stages that measure pixels without a model: their preprocessing returns the measurements."""

    column: ClassVar[str]
    """Column of the table that contains the measurements of a row's images."""

    def measure(
        self, images: PreparedImages, questions: Mapping[str, PromptIndependentQuestions]
    ) -> Mapping[str, pa.Table]:
        def make_columns(measured: Sequence[Any]) -> dict[str, Any]:
            return {self.column: [measurements._asdict() for measurements in measured]}

        return dict.fromkeys(
            questions, self.tabulate(images, PromptIndependentQuestions(), images.pixels, make_columns)
        )
