"""The rows that are trained on: which shards hold them, in which order they come, and how they become exercises."""

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

from plumbline.operators.base.errors import HopelessRow, SourceError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import Preprocess, prepare_images
from plumbline.operators.images.videos import Clips
from plumbline.pipelines.cells.cells import Shard
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS
from plumbline.pipelines.sources.shards import read_shard, where
from plumbline.pipelines.sources.uris import Uris
from plumbline.plugins.training.exercises import rate
from plumbline.plugins.training.trainee import Trainee


class RatedImage(NamedTuple):
    """An image that people rated, with its prompt."""

    image_id: str | None
    prompt_id: str
    question: str
    """What VQAScore asks about the prompt."""
    share: float
    """Its mean rating, 0 at the scale's least and 1 at its greatest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleShard:
    """A shard with the rows of it that are trained on, or scored."""

    shard: Shard
    rated: Mapping[int, RatedImage] | None = None
    """By place in the shard; None where the rows hold their own texts, and all are taken."""

    @property
    def places(self) -> Sequence[int]:
        return range(self.shard.rows) if self.rated is None else tuple(self.rated)


class TrainingExample(NamedTuple):
    """A row, by its shard's number and its place there."""

    shard: int
    place: int


@dataclass(frozen=True, kw_only=True, eq=False)
class RowOrder:
    """In which order rows come, epoch after epoch: a function of the seed alone, whatever the number of workers.

    The shards are shuffled, and then the rows of each `mixed` of them together, so that few shards are open at once.
    """

    places: Sequence[Sequence[int]]
    """Of each shard, the rows that are taken."""
    seed: int
    mixed: int

    @cached_property
    def rows(self) -> int:
        """In an epoch."""
        return sum(map(len, self.places))

    def at(self, position: int) -> TrainingExample:
        """The row that comes at a position, counted from the first of all."""
        epoch, place = divmod(position, self.rows)
        ends = self._ends(epoch)
        mix = int(np.searchsorted(ends, place, side="right"))
        return TrainingExample(*map(int, self._mix(epoch, mix)[place - (ends[mix - 1] if mix else 0)]))

    @lru_cache(maxsize=2)  # noqa: B019 - an order lives as long as its process
    def _shards(self, epoch: int) -> NDArray[np.int64]:
        """The shards' numbers as an epoch has them."""
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.places))

    @lru_cache(maxsize=2)  # noqa: B019
    def _ends(self, epoch: int) -> NDArray[np.int64]:
        """Where in an epoch each mix of shards ends."""
        sizes = [len(self.places[shard]) for shard in self._shards(epoch)]
        return np.cumsum([sum(sizes[first : first + self.mixed]) for first in range(0, len(sizes), self.mixed)])

    @lru_cache(maxsize=4)  # noqa: B019
    def _mix(self, epoch: int, number: int) -> NDArray[np.int64]:
        """(rows, 2): shard and place of the rows of one mix, shuffled."""
        shards = self._shards(epoch)[number * self.mixed : (number + 1) * self.mixed]
        both = np.array([(shard, place) for shard in shards for place in self.places[shard]], dtype=np.int64)
        return np.random.default_rng([self.seed, epoch, number]).permutation(both)


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """All rows of a training, for any process to read."""

    kind: str
    """`captions`, `questions` or `finetune`."""
    shards: Sequence[ExampleShard]
    texts: tuple[str, ...]
    """The columns with texts, by our names."""
    uris: Uris
    limits: ImageLimits
    clips: Clips

    @property
    def columns(self) -> tuple[str, ...]:
        return (*IMAGE_COLUMNS, *self.texts)

    def read(self, number: int) -> pa.Table:
        """A shard; raises SourceError naming its file."""
        return read_shard(self.shards[number].shard, self.columns)


class ReadRow(NamedTuple):
    """What became of a row."""

    example: TrainingExample
    pixels: Sequence[Any]
    """Of its images; empty where it cannot be read."""
    texts: Mapping[str, Any]
    problem: str | None
    """Why it cannot be read, with file and row."""


@dataclass(kw_only=True)
class RowReader:
    """Reads rows and decodes their images; the last few shards are kept."""

    examples: Examples
    preprocess: Preprocess
    keep: int
    decoders: int = 1
    tables: dict[int, pa.Table] = field(default_factory=dict)
    """The shards that are kept, the newest last."""

    def read(self, wanted: Sequence[TrainingExample]) -> list[ReadRow]:
        """The rows in their order; raises SourceError for a whole shard that cannot be read."""
        read: dict[TrainingExample, ReadRow] = {}
        for number, rows_of_shard in groupby(sorted(wanted), key=lambda example: example.shard):
            for row in self._read_shard(number, [example.place for example in rows_of_shard]):
                read[row.example] = row
        return [read[example] for example in wanted]

    def _read_shard(self, number: int, places: Sequence[int]) -> list[ReadRow]:
        table = self._table(number).take(pa.array(places, pa.int64()))
        texts = table.select([name for name in self.examples.texts if name in table.column_names]).to_pylist()
        shard = self.examples.shards[number].shard
        prepared = prepare_images(
            _with_prompt(table),
            shard.group,
            preprocess=self.preprocess,
            limits=self.examples.limits,
            clips=self.examples.clips,
            fetch=self.examples.uris.read,
            decoders=self.decoders,
        )
        pixels = iter(prepared.pixels)
        read = []
        for place, text, error, count in zip(places, texts, prepared.errors, prepared.counts, strict=True):
            images = [next(pixels) for _ in range(count)]
            lacking = [name for name, value in text.items() if not isinstance(value, str) or not value.strip()]
            problem = error.message if error is not None else f"no text in {lacking[0]!r}" if lacking else None
            said = None if problem is None else f"{where(shard, place)}: {problem}"
            read.append(ReadRow(TrainingExample(number, place), images if problem is None else [], text, said))
        return read

    def _table(self, number: int) -> pa.Table:
        table = self.tables.pop(number) if number in self.tables else self.examples.read(number)
        self.tables[number] = table
        while len(self.tables) > self.keep:
            del self.tables[next(iter(self.tables))]
        return table


def _with_prompt(table: pa.Table) -> pa.Table:
    """Training tables name no prompts, and images are refused without."""
    if "prompt_id" in table.column_names:
        return table
    return table.append_column("prompt_id", pa.array([""] * len(table)))


class Batches:
    """The batches of one worker, each read while the step before it is taken."""

    def __init__(
        self, reader: RowReader, trainee: Trainee, order: RowOrder, *, size: int, number: int, count: int
    ) -> None:
        """`size` rows are a batch of all `count` workers, of which this is the one with this number, from 0."""
        self.reader = reader
        self.trainee = trainee
        self.order = order
        self.share = size // count
        self.size = size
        self.number = number
        self.problems: list[str] = []
        """Why rows of the last batch were left out."""
        self.pool = ThreadPoolExecutor(1)
        self.ahead: tuple[int, Future[list[ReadRow]]] | None = None

    def batch(self, step: int) -> Any:
        """The worker's share of the batch of a step; raises SourceError where none of its rows can be read."""
        step_ahead, ahead = self.ahead or (None, None)
        read = ahead.result() if ahead is not None and step_ahead == step else self._read(step)
        self.ahead = (step + 1, self.pool.submit(self._read, step + 1))
        self.problems = [row.problem for row in read if row.problem is not None]
        pixels, exercises = self._exercises(step, read)
        if not exercises:
            raise SourceError(f"no row of a worker's {len(read)} in step {step} can be read; first {self.problems[0]}")
        return self.trainee.batch(pixels, exercises)

    def _positions(self, step: int) -> range:
        first = step * self.size + self.number * self.share
        return range(first, first + self.share)

    def _read(self, step: int) -> list[ReadRow]:
        return self.reader.read([self.order.at(position) for position in self._positions(step)])

    def _exercises(self, step: int, read: Sequence[ReadRow]) -> tuple[list[Any], list[Any]]:
        """Return the images of the rows, and the exercises on them; rows that the network cannot take are problems."""
        pixels: list[Any] = []
        exercises: list[Any] = []
        for position, row in zip(self._positions(step), read, strict=True):
            try:
                made = [
                    exercise
                    for image, own in enumerate(row.pixels, len(pixels))
                    for exercise in self._image_exercises(image, own, row, position)
                ]
            except HopelessRow as refused:
                shard = self.reader.examples.shards[row.example.shard].shard
                self.problems.append(f"{where(shard, row.example.place)}: {refused.error.message}")
                continue
            pixels += row.pixels
            exercises += made
        return pixels, exercises

    def _image_exercises(self, image: int, pixels: Any, row: ReadRow, position: int) -> list[Any]:
        match self.reader.examples.kind:
            case "captions":
                rng = Random(f"{self.order.seed}/{position}")
                return [self.trainee.caption(image, pixels, row.texts["caption"], rng)]
            case "questions":
                return [self.trainee.ask(image, pixels, row.texts["question"], row.texts["answer"])]
        rated = self.reader.examples.shards[row.example.shard].rated
        assert rated is not None, "finetuning reads rated images"
        image_rated = rated[row.example.place]
        return rate(self.trainee.likelihood.tokenizer, image, image_rated.question, image_rated.share)
