"""The rows of a training run: their shards and order, and how they become exercises (texts with an answer to learn)."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base.errors import SourceError, UnprocessableRowError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import Preprocess, prepare_images
from plumbline.operators.images.videos import Clips
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.shards import describe_row, read_shard
from plumbline.pipelines.sources.uris import UriReader
from plumbline.pipelines.store.cells import Shard
from plumbline.plugins.training.exercises import make_rating_exercises
from plumbline.plugins.training.trainee import Trainee


class RatedImage(NamedTuple):
    """An image that people have rated, with its prompt."""

    image_id: str | None
    prompt_id: str
    question: str
    """VQAScore's question about the prompt."""
    target: float
    """The image's mean rating, mapped from the rating scale to [0, 1]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleShard:
    """A shard, and the rows in it that are used for training or evaluation."""

    shard: Shard
    rated: Mapping[int, RatedImage] | None = None
    """Rated images by row index. None if the rows contain their own texts; all rows are used then."""

    @property
    def row_indices(self) -> Sequence[int]:
        return range(self.shard.rows) if self.rated is None else tuple(self.rated)


class TrainingExample(NamedTuple):
    """A row, identified by the number of its shard and its index in the shard."""

    shard: int
    row: int


@dataclass(frozen=True, kw_only=True, eq=False)
class RowOrder:
    """Random order of the rows in each epoch. It depends on the seed, but not on the number of workers.

    The shards are shuffled and split into groups of `mixed` shards. The rows of each group are shuffled together, so
    that only a few shards are open at once.
    """

    row_indices: Sequence[Sequence[int]]
    """Indices of the rows to use, for each shard."""
    seed: int
    mixed: int

    @cached_property
    def rows(self) -> int:
        """Number of rows in an epoch."""
        return sum(map(len, self.row_indices))

    def find_row(self, position: int) -> TrainingExample:
        """Return the row at a position, counted from the first row of the first epoch."""
        epoch, index = divmod(position, self.rows)
        ends = self._find_ends(epoch)
        mix = int(np.searchsorted(ends, index, side="right"))
        return TrainingExample(*map(int, self._shuffle_shard_group(epoch, mix)[index - (ends[mix - 1] if mix else 0)]))

    @lru_cache(maxsize=2)  # noqa: B019 - an order lives as long as its process
    def _shuffle_shards(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.row_indices))

    @lru_cache(maxsize=2)  # noqa: B019
    def _find_ends(self, epoch: int) -> NDArray[np.int64]:
        """Return the end position of each mix in an epoch. A mix is a group of shards that are shuffled together."""
        sizes = [len(self.row_indices[shard]) for shard in self._shuffle_shards(epoch)]
        return np.cumsum([sum(sizes[first : first + self.mixed]) for first in range(0, len(sizes), self.mixed)])

    @lru_cache(maxsize=4)  # noqa: B019
    def _shuffle_shard_group(self, epoch: int, number: int) -> NDArray[np.int64]:
        """Return the shuffled rows of a group of `mixed` shards: an array (rows, 2) of shard and index in the shard."""
        shards = self._shuffle_shards(epoch)[number * self.mixed : (number + 1) * self.mixed]
        examples = np.array([(shard, index) for shard in shards for index in self.row_indices[shard]], dtype=np.int64)
        return np.random.default_rng([self.seed, epoch, number]).permutation(examples)


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """All rows of a training run, and the settings for reading them in any process."""

    kind: str
    """Kind of training: `captions` (stage 1), `questions` (stage 2) or `finetune`."""
    shards: Sequence[ExampleShard]
    texts: tuple[str, ...]
    """Names of the text columns after renaming: `caption`, or `question` and `answer`."""
    uris: UriReader
    limits: ImageLimits
    clips: Clips

    @property
    def columns(self) -> tuple[str, ...]:
        return (*IMAGE_COLUMNS, *self.texts)

    def read(self, number: int) -> pa.Table:
        """Read the shard with this number; raise SourceError with the file's name if it cannot be read."""
        return read_shard(self.shards[number].shard, self.columns)


class LoadedRow(NamedTuple):
    """A row's images and texts, or the reason why it cannot be read."""

    example: TrainingExample
    pixels: Sequence[Any]
    """Preprocessed images; empty if the row cannot be read."""
    texts: Mapping[str, Any]
    problem: str | None
    """Reason why the row cannot be read, with file and row; None if it can be read."""


@dataclass(kw_only=True)
class RowReader:
    """Reader that decodes the images of rows and keeps the most recent shards in memory."""

    examples: Examples
    preprocess: Preprocess
    keep: int
    decoders: int = 1
    tables: dict[int, pa.Table] = field(default_factory=dict)
    """Shards in memory by number. The most recently used shard is the last."""

    def read(self, examples: Sequence[TrainingExample]) -> list[LoadedRow]:
        """Return the rows in order; raise SourceError if a whole shard cannot be read."""
        read: dict[TrainingExample, LoadedRow] = {}
        for number, group in groupby(sorted(examples), key=lambda example: example.shard):
            for row in self._read_shard(number, [example.row for example in group]):
                read[row.example] = row
        return [read[example] for example in examples]

    def _read_shard(self, number: int, row_indices: Sequence[int]) -> list[LoadedRow]:
        table = self._load_table(number).take(pa.array(row_indices, pa.int64()))
        texts = table.select([name for name in self.examples.texts if name in table.column_names]).to_pylist()
        shard = self.examples.shards[number].shard
        prepared = prepare_images(
            _add_prompt_ids(table),
            shard.group,
            preprocess=self.preprocess,
            limits=self.examples.limits,
            clips=self.examples.clips,
            fetch=self.examples.uris.read,
            decoders=self.decoders,
        )
        pixels = iter(prepared.pixels)
        rows = []
        for index, text, error, count in zip(row_indices, texts, prepared.errors, prepared.counts, strict=True):
            images = [next(pixels) for _ in range(count)]
            missing = [name for name, value in text.items() if not isinstance(value, str) or not value.strip()]
            reason = error.message if error is not None else f"no text in {missing[0]!r}" if missing else None
            problem = None if reason is None else f"{describe_row(shard, index)}: {reason}"
            rows.append(LoadedRow(TrainingExample(number, index), images if problem is None else [], text, problem))
        return rows

    def _load_table(self, number: int) -> pa.Table:
        table = self.tables.pop(number) if number in self.tables else self.examples.read(number)
        self.tables[number] = table
        while len(self.tables) > self.keep:
            del self.tables[next(iter(self.tables))]
        return table


def _add_prompt_ids(table: pa.Table) -> pa.Table:
    """Add a column of empty prompt ids if it is missing, because `prepare_images` requires the column."""
    if "prompt_id" in table.column_names:
        return table
    return table.append_column("prompt_id", pa.array([""] * len(table)))


class Batches:
    """The batches of one worker. The next batch is read while a step is computed."""

    def __init__(
        self, reader: RowReader, trainee: Trainee, order: RowOrder, *, size: int, number: int, count: int
    ) -> None:
        """Divide batches of `size` rows among `count` workers; `number` is this worker's index, from 0."""
        self.reader = reader
        self.trainee = trainee
        self.order = order
        self.share = size // count
        self.size = size
        self.number = number
        self.problems: list[str] = []
        """Reasons why rows were left out of the last batch."""
        self.pool = ThreadPoolExecutor(1)
        self.ahead: tuple[int, Future[list[LoadedRow]]] | None = None

    def read_batch(self, step: int) -> Any:
        """Return this worker's part of the batch for a step; raise SourceError if none of its rows can be read."""
        step_ahead, ahead = self.ahead or (None, None)
        rows = ahead.result() if ahead is not None and step_ahead == step else self._read(step)
        self.ahead = (step + 1, self.pool.submit(self._read, step + 1))
        self.problems = [row.problem for row in rows if row.problem is not None]
        pixels: list[Any] = []
        exercises: list[Any] = []
        for position, row in zip(self._list_positions(step), rows, strict=True):
            try:
                row_exercises = [
                    exercise
                    for image, own in enumerate(row.pixels, len(pixels))
                    for exercise in self._make_exercises(image, own, row, position)
                ]
            except UnprocessableRowError as refused:
                shard = self.reader.examples.shards[row.example.shard].shard
                self.problems.append(f"{describe_row(shard, row.example.row)}: {refused.error.message}")
                continue
            pixels += row.pixels
            exercises += row_exercises
        if not exercises:
            raise SourceError(
                f"none of a worker's {len(rows)} rows in step {step} can be read; first problem: {self.problems[0]}"
            )
        return self.trainee.make_batch(pixels, exercises)

    def _list_positions(self, step: int) -> range:
        first = step * self.size + self.number * self.share
        return range(first, first + self.share)

    def _read(self, step: int) -> list[LoadedRow]:
        return self.reader.read([self.order.find_row(position) for position in self._list_positions(step)])

    def _make_exercises(self, image: int, pixels: Any, row: LoadedRow, position: int) -> list[Any]:
        match self.reader.examples.kind:
            case "captions":
                rng = Random(f"{self.order.seed}/{position}")
                return [self.trainee.make_caption_exercise(image, pixels, row.texts["caption"], rng)]
            case "questions":
                return [self.trainee.make_question_exercise(image, pixels, row.texts["question"], row.texts["answer"])]
        rated = self.reader.examples.shards[row.example.shard].rated
        assert rated is not None, "finetuning reads rated images"
        own = rated[row.example.row]
        return make_rating_exercises(self.trainee.likelihood.tokenizer, image, own.question, own.target)
