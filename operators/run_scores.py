"""A run's scores as they are compared: one metric's at a time, as numbers; of few rows alone the ids are read.

So what a report holds grows neither with the metrics of a run nor with the length of its ids.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators.rewards.combination import REWARD, Reward
from plumbline.operators.statistics.poisson_bootstrap import hash_ids

IDS = ("image_id", "prompt_id", "generator")
READ = (*IDS, "metric", "score", "truncated")
"""The columns that are made into numbers."""
PARTS_KEPT = 16
"""So many of a run's first parts are kept as numbers; a part has some 32,000 rows, and then takes a megabyte."""
PARTS_AT_ONCE = 4
HASHES_AT_ONCE = 1 << 20
"""So many are gathered at least, before those that are the same are taken out."""
NONE = np.uint64(0)
"""Stands for the prompt, or the image, of a row that names none."""
MIX = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]
ReadPart = Callable[[Sequence[str]], pa.Table]
"""Reads these columns of a part of a run's scores (schema SCORES)."""


class ScoreColumns(NamedTuple):
    """The rows of one metric, 36 bytes each."""

    row: NDArray[np.int64]
    """Their places in the run's scores."""
    generator: NDArray[np.int32]
    """Places in the run's `generators`."""
    prompt: Hashes
    """Of the ids (`hash_ids`)."""
    image: Hashes
    """Of generator, image and prompt together; NONE where image or prompt is not named."""
    score: NDArray[np.float64]
    """nan where there is none."""

    def where(self, chosen: NDArray[Any] | slice) -> "ScoreColumns":
        """Some of the rows."""
        return ScoreColumns(
            row=self.row[chosen],
            generator=self.generator[chosen],
            prompt=self.prompt[chosen],
            image=self.image[chosen],
            score=self.score[chosen],
        )

    def scored(self) -> "ScoreColumns":
        """Those that have a score and say of which image and prompt it is."""
        return self.where(np.isfinite(self.score) & (self.image != NONE))

    def followed_by(self, others: "ScoreColumns") -> "ScoreColumns":
        """These rows and then others."""
        return ScoreColumns(
            row=np.concatenate([self.row, others.row]),
            generator=np.concatenate([self.generator, others.generator]),
            prompt=np.concatenate([self.prompt, others.prompt]),
            image=np.concatenate([self.image, others.image]),
            score=np.concatenate([self.score, others.score]),
        )

    def places(self) -> list[tuple[int, int]]:
        """The image and the row of each."""
        return list(zip(self.image.tolist(), self.row.tolist(), strict=True))


class RowIds(NamedTuple):
    """Whose a row is; None what it does not name."""

    image_id: str | None
    prompt_id: str | None
    generator: str


class _Part(NamedTuple):
    """A part's rows as numbers."""

    metric: NDArray[np.int32]
    generator: NDArray[np.int32]
    prompt: Hashes
    image: Hashes
    score: NDArray[np.float64]
    truncated: NDArray[np.bool_]
    n_null: int


class RunScores:
    """A run's scores, read part by part; what is kept of them are the numbers of a few parts."""

    def __init__(self, parts: Sequence[ReadPart]) -> None:
        """Reads every part once."""
        self.metrics: list[str] = []
        """Those that have rows, in the order of the rows."""
        self.generators: list[str] = []
        """Likewise."""
        self.n_null = 0
        """Rows without a score."""
        self._parts = parts
        self._reward: Reward | None = None
        self._kept: dict[int, _Part] = {}
        self._first_rows = [0]
        self._counts: list[dict[int, int]] = []
        truncated: dict[int, int] = {}
        prompts = _Distinct()
        for part in self._each(range(len(parts))):
            self.n_null += part.n_null
            self._first_rows.append(self._first_rows[-1] + len(part.metric))
            self._counts.append(_counted(part.metric))
            for metric, count in _counted(part.metric[part.truncated]).items():
                truncated[metric] = truncated.get(metric, 0) + count
            prompts.add(part.prompt)
        self.prompts: Hashes = prompts.values()
        """Of all prompts, ascending."""
        self.truncated: Mapping[str, int] = {self.metrics[code]: truncated[code] for code in sorted(truncated)}
        """By metric that has any, its rows that were scored on a prompt that was cut."""

    def __len__(self) -> int:
        return self._first_rows[-1]

    def with_reward(self, reward: Reward) -> "RunScores":
        """The same scores and one metric more, REWARD: a row for each image that all its parts scored."""
        combined = copy(self)
        combined.metrics, combined._reward = [*self.metrics, REWARD], reward
        return combined

    def scored_by_all(self, metrics: Sequence[str]) -> tuple[ScoreColumns, dict[str, NDArray[np.float64]]]:
        """The first metric's rows of the images that all of the metrics scored, and by each metric the scores of these.

        Holds the rows of all of them at once.
        """
        columns = {metric: self.of(metric).scored() for metric in metrics}
        images = reduce(np.intersect1d, [of_metric.image for of_metric in columns.values()])
        chosen = {}
        for metric, of_metric in columns.items():
            order = np.argsort(of_metric.image, kind="stable")
            chosen[metric] = of_metric.where(order[np.searchsorted(of_metric.image, images, sorter=order)])
        return chosen[metrics[0]], {metric: of_metric.score for metric, of_metric in chosen.items()}

    def of(self, metric: str) -> ScoreColumns:
        """The rows of one metric, in their order."""
        if self._reward is not None and metric == REWARD:
            columns, scores = self.scored_by_all(self._reward.parts)
            return columns._replace(score=self._reward.of_all(scores))
        code = self.metrics.index(metric) if metric in self.metrics else -1
        numbers = [number for number, counts in enumerate(self._counts) if code in counts]
        size = sum(self._counts[number][code] for number in numbers)
        whole = ScoreColumns(
            row=np.empty(size, np.int64),
            generator=np.empty(size, np.int32),
            prompt=np.empty(size, np.uint64),
            image=np.empty(size, np.uint64),
            score=np.empty(size, np.float64),
        )
        end = 0
        for number, part in zip(numbers, self._each(numbers), strict=True):
            chosen = np.flatnonzero(part.metric == code)
            begin, end = end, end + len(chosen)
            whole.row[begin:end] = self._first_rows[number] + chosen
            for name in whole._fields[1:]:
                getattr(whole, name)[begin:end] = getattr(part, name)[chosen]
        return whole

    def ids(self, rows: Sequence[int]) -> list[RowIds]:
        """Whose some rows are; reads the parts that hold them."""
        numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        known: dict[int, RowIds] = {}
        for number in np.unique(numbers):
            own = [row for row, part in zip(rows, numbers, strict=True) if part == number]
            table = self._parts[number](IDS).take([row - self._first_rows[number] for row in own])
            known |= {row: RowIds(**record) for row, record in zip(own, table.to_pylist(), strict=True)}
        return [known[row] for row in rows]

    def _each(self, numbers: Sequence[int]) -> Iterator[_Part]:
        """Parts in this order, those that are not kept read a few at once."""
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            for first in range(0, len(numbers), PARTS_AT_ONCE):
                window = numbers[first : first + PARTS_AT_ONCE]
                tables = pool.map(lambda number: self._parts[number](READ), [n for n in window if n not in self._kept])
                for number in window:
                    part = self._kept.get(number) or self._as_numbers(next(tables))
                    if number < PARTS_KEPT:
                        self._kept[number] = part
                    yield part

    def _as_numbers(self, table: pa.Table) -> _Part:
        generators, generator = _encoded(table.column("generator"), self.generators)
        prompt = _hashes(table.column("prompt_id"))
        image = _hashes(table.column("image_id"))
        named = (image != NONE) & (prompt != NONE)
        mixed = mix_ids(image, prompt, hash_ids(generators)[generator])
        return _Part(
            metric=_encoded(table.column("metric"), self.metrics)[1],
            generator=generator,
            prompt=prompt,
            image=np.where(named, mixed, NONE),
            score=table.column("score").to_numpy().astype(np.float64, copy=False),
            truncated=pc.fill_null(table.column("truncated"), False).to_numpy(),
            n_null=table.column("score").null_count,
        )


def mix_ids(image: Hashes, prompt: Hashes, generator: Hashes) -> Hashes:
    """The hashes of images, from those of their ids."""
    mixed = ((image * MIX + prompt) * MIX + generator) * MIX
    return np.asarray(mixed ^ (mixed >> np.uint64(32)))


def _encoded(column: pa.ChunkedArray, names: list[str]) -> tuple[list[str], NDArray[np.int32]]:
    """The names, to which those of the column are added that are new, and the place of each row's among them."""
    plain = column.combine_chunks()
    encoded = plain if pa.types.is_dictionary(plain.type) else plain.dictionary_encode()
    own = encoded.dictionary.to_pylist()
    for place in pc.unique(encoded.indices).to_pylist():
        if own[place] not in names:
            names.append(own[place])
    places = {name: place for place, name in enumerate(names)}
    return names, np.array([places.get(name, -1) for name in own], np.int32)[encoded.indices.to_numpy()]


def _hashes(column: pa.ChunkedArray) -> Hashes:
    hashes = hash_ids(pc.fill_null(column, "").to_numpy())
    return np.where(column.is_valid().to_numpy(), hashes, NONE)


def _counted(values: NDArray[np.int32]) -> dict[int, int]:
    return dict(zip(*(counts.tolist() for counts in np.unique(values, return_counts=True)), strict=True))


class _Distinct:
    """The different ones of hashes that come in parts: looked for again whenever twice as many have come."""

    def __init__(self) -> None:
        self._known: Hashes = np.zeros(0, np.uint64)
        self._new: list[Hashes] = []
        self._n_new = 0

    def add(self, hashes: Hashes) -> None:
        self._new.append(hashes)
        self._n_new += len(hashes)
        if self._n_new > len(self._known) + HASHES_AT_ONCE:
            self._merge()

    def _merge(self) -> None:
        known = np.unique(np.concatenate([self._known, *self._new]))
        self._known, self._new, self._n_new = known[known != NONE], [], 0

    def values(self) -> Hashes:
        self._merge()
        return self._known
