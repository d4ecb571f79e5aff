"""A run's scores as NumPy arrays, read for one metric and generator at a time, with ids replaced by hashes.

The memory that a report needs therefore does not depend on the number of metrics and generators, or on the length of
ids. The actual ids are read only for a few rows.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators.base.ordered_maps import OrderedMap, map_sequentially
from plumbline.operators.rewards.combination import REWARD_NAME, Reward
from plumbline.operators.statistics.poisson_bootstrap import hash_ids

ID_COLUMNS = ("image_id", "prompt_id", "generator")
READ_COLUMNS = (*ID_COLUMNS, "metric", "score", "truncated")
"""Columns that are read into arrays."""
MAX_CACHED_PARTS = 16
"""Number of parts, starting with the first, that stay in memory. A part has about 32,000 rows and takes a megabyte."""
PARTS_AT_ONCE = 4
MIN_COLLECTED_HASHES = 1 << 20
"""Minimum number of new hashes to collect before duplicates are removed."""
NO_ID_HASH = np.uint64(0)
"""Hash of a missing prompt id or image id."""
MIXING_FACTOR = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]
ReadPart = Callable[[Sequence[str]], pa.Table]
"""Function that reads the given columns of one part of a run's scores (schema SCORES)."""


class ScoreColumns(NamedTuple):
    """Rows of one metric as arrays of equal length, taking 36 bytes per row."""

    row: NDArray[np.int64]
    """Row numbers within the run's scores."""
    generator: NDArray[np.int32]
    """Indices into the run's `generators`."""
    prompt: Hashes
    """Hashes of the prompts' ids (`hash_ids`)."""
    image: Hashes
    """Hashes of the generator, image and prompt ids combined; NO_ID_HASH if a row has no image id or no prompt id."""
    score: NDArray[np.float64]
    """Scores; nan for rows that failed."""

    def select(self, chosen: NDArray[Any] | slice) -> "ScoreColumns":
        """Return the rows selected by a mask, by indices or by a slice."""
        return ScoreColumns._make(column[chosen] for column in self)

    def select_scored(self) -> "ScoreColumns":
        """Return the rows that have a score, an image id and a prompt id."""
        return self.select(np.isfinite(self.score) & (self.image != NO_ID_HASH))

    def concatenate_with(self, others: "ScoreColumns") -> "ScoreColumns":
        """Return these rows, followed by the rows of `others`."""
        return ScoreColumns._make(np.concatenate([getattr(self, name), getattr(others, name)]) for name in self._fields)

    def list_image_rows(self) -> list[tuple[int, int]]:
        """Return an (image hash, row number) pair for each row."""
        return list(zip(self.image.tolist(), self.row.tolist(), strict=True))


class PromptTexts(NamedTuple):
    """Hashes of the texts of a run's prompts, sorted by the hashes of the prompts' ids."""

    prompts: Hashes
    """Hashes of the ids in ascending order."""
    texts: Hashes
    """Hashes of the texts, in the order of `prompts`."""

    def find_texts(self, prompts: Hashes) -> Hashes:
        """Return the hash of each prompt's text, given the hashes of the prompts' ids; NO_ID_HASH if it is unknown."""
        indices = find_in_sorted(prompts, self.prompts)
        return np.where(indices >= 0, np.append(self.texts, NO_ID_HASH)[indices], NO_ID_HASH)

    def find_edited_prompts(self, later: "PromptTexts", prompts: Hashes) -> NDArray[np.bool_]:
        """Return a mask of the prompts whose text differs in a later run; an unknown text counts as unchanged."""
        own, theirs = self.find_texts(prompts), later.find_texts(prompts)
        return np.asarray((own != theirs) & (own != NO_ID_HASH) & (theirs != NO_ID_HASH))


class SharedPrompts(NamedTuple):
    """Prompts that can be compared between two runs."""

    prompts: Hashes
    """Hashes of the ids that occur in both runs, in ascending order. The texts are equal, or unknown for one of the
    runs.
    """
    edited: int
    """Number of ids that occur in both runs with different texts."""


class RowIds(NamedTuple):
    """The image, prompt and generator ids of a row; None for an id that is missing."""

    image_id: str | None
    prompt_id: str | None
    generator: str


class _Part(NamedTuple):
    """The rows of one part of a run's scores (about 32,000 rows), as arrays."""

    metrics: list[str]
    """Metrics in order of appearance, like `generators`."""
    generators: list[str]
    metric: NDArray[np.int32]
    """Indices into `metrics`."""
    generator: NDArray[np.int32]
    prompt: Hashes
    image: Hashes
    score: NDArray[np.float64]
    truncated: NDArray[np.bool_]
    n_null: int


class _PartTotals(NamedTuple):
    metrics: list[str]
    generators: list[str]
    rows: Mapping[tuple[str, str], int]
    """Number of rows for each metric and generator."""
    spans: Mapping[str, tuple[float, float]]
    """Lowest and highest score of each metric that has scores."""
    truncated: Mapping[str, int]
    n_null: int
    prompts: Hashes
    """Distinct hashes of the part's prompts."""


class _PartReader:
    """Reader of a run's scores, which returns each part as arrays.

    The first MAX_CACHED_PARTS parts of the run stay in memory, and are not pickled.
    """

    def __init__(self, read: Sequence[ReadPart]) -> None:
        self.read = read
        self._kept: dict[int, _Part] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"read": self.read, "_kept": {}}

    def iterate_parts(self, numbers: Sequence[int]) -> Iterator[_Part]:
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            for first in range(0, len(numbers), PARTS_AT_ONCE):
                yield from pool.map(self.load_part, numbers[first : first + PARTS_AT_ONCE])

    def load_part(self, number: int) -> _Part:
        part = self._kept.get(number) or _make_part(self.read[number](READ_COLUMNS))
        if number < MAX_CACHED_PARTS:
            self._kept[number] = part
        return part


def _compute_part_totals(parts: _PartReader, number: int) -> _PartTotals:
    part = parts.load_part(number)
    shape = (len(part.metrics), len(part.generators))
    rows = np.bincount(part.metric * shape[1] + part.generator, minlength=math.prod(shape)).reshape(shape)
    truncated = np.bincount(part.metric[part.truncated], minlength=len(part.metrics))
    spans = {}
    for number, metric in enumerate(part.metrics):
        scores = part.score[(part.metric == number) & ~np.isnan(part.score)]
        if len(scores):
            spans[metric] = (float(scores.min()), float(scores.max()))
    return _PartTotals(
        metrics=part.metrics,
        generators=part.generators,
        rows={
            (part.metrics[metric], part.generators[generator]): int(rows[metric, generator])
            for metric, generator in np.argwhere(rows)
        },
        spans=spans,
        truncated={metric: count for metric, count in zip(part.metrics, truncated.tolist(), strict=True) if count},
        n_null=part.n_null,
        prompts=np.unique(part.prompt[part.prompt != NO_ID_HASH]),
    )


class RunScores:
    """A run's scores, read part by part; only a few parts stay in memory.

    Processes that receive a copy of the scores read the parts again.
    """

    def __init__(self, parts: Sequence[ReadPart], each: OrderedMap = map_sequentially) -> None:
        self._parts = _PartReader(parts)
        self._reward: Reward | None = None
        self._texts: PromptTexts | None = None
        self._first_rows = [0]
        self._rows: list[Mapping[tuple[str, str], int]] = []
        self.n_null = 0
        """Number of rows without a score."""
        self.spans: dict[str, tuple[float, float]] = {}
        """Lowest and highest score of each metric that has scores."""
        metrics, generators, truncated = dict[str, None](), dict[str, None](), Counter[str]()
        prompts = _DistinctHashes()
        for part in each(_compute_part_totals, range(len(parts)), shared=self._parts):
            metrics |= dict.fromkeys(part.metrics)
            generators |= dict.fromkeys(part.generators)
            truncated.update(part.truncated)
            self.n_null += part.n_null
            self._rows.append(part.rows)
            self._first_rows.append(self._first_rows[-1] + sum(part.rows.values()))
            for metric, (low, high) in part.spans.items():
                lowest, highest = self.spans.get(metric, (low, high))
                self.spans[metric] = (min(low, lowest), max(high, highest))
            prompts.add(part.prompts)
        self.metrics = list(metrics)
        """Metrics that have rows, in order of appearance."""
        self.generators = list(generators)
        """Generators that have rows, in order of appearance."""
        self.prompts: Hashes = prompts.collect()
        """Hashes of all prompts in ascending order."""
        self.truncated: Mapping[str, int] = {name: truncated[name] for name in self.metrics if truncated[name]}
        """Number of rows that were scored on a truncated prompt, for each metric that has such rows."""

    def __len__(self) -> int:
        return self._first_rows[-1]

    def with_reward(self, reward: Reward) -> "RunScores":
        """Return the same scores with an additional metric, the reward.

        The reward has a row for each image that has a score on every metric in the reward.
        """
        combined = copy(self)
        combined.metrics, combined._reward = [*self.metrics, REWARD_NAME], reward
        return combined

    def with_texts(self, texts: PromptTexts | None) -> "RunScores":
        """Return the same scores with the hashes of the prompts' texts, if they are known."""
        known = copy(self)
        known._texts = texts
        return known

    def find_shared_prompts(self, other: "RunScores") -> SharedPrompts:
        """Return the prompts that can be compared with another run; prompts whose text was edited are excluded."""
        prompts = np.intersect1d(self.prompts, other.prompts, assume_unique=True)
        if self._texts is None or other._texts is None:
            return SharedPrompts(prompts, 0)
        edited = self._texts.find_edited_prompts(other._texts, prompts)
        return SharedPrompts(prompts[~edited], int(edited.sum()))

    def select_scored_by_all(
        self, metrics: Sequence[str], generator: str | None = None
    ) -> tuple[ScoreColumns, dict[str, NDArray[np.float64]]]:
        """Return the images of one generator, or of all, that have a score on every given metric.

        The rows of all these metrics are in memory at the same time.

        Returns:
            The first metric's rows for these images, and the scores on each metric in the same order.
        """
        columns = {metric: self.select_rows(metric, generator).select_scored() for metric in metrics}
        images = reduce(np.intersect1d, [of_metric.image for of_metric in columns.values()])
        chosen = {}
        for metric, of_metric in columns.items():
            order = np.argsort(of_metric.image, kind="stable")
            chosen[metric] = of_metric.select(order[np.searchsorted(of_metric.image, images, sorter=order)])
        return chosen[metrics[0]], {metric: of_metric.score for metric, of_metric in chosen.items()}

    def select_rows(self, metric: str, generator: str | None = None) -> ScoreColumns:
        """Return one metric's rows, for one generator or for all, in the order of the run."""
        if self._reward is not None and metric == REWARD_NAME:
            columns, scores = self.select_scored_by_all(self._reward.parts, generator)
            return columns._replace(score=self._reward.compute_all(scores))
        wanted = [(metric, name) for name in self.generators if generator in (name, None)]
        sizes = [sum(rows.get(pair, 0) for pair in wanted) for rows in self._rows]
        numbers = [number for number, size in enumerate(sizes) if size]
        whole = ScoreColumns(
            row=np.empty(sum(sizes), np.int64),
            generator=np.empty(sum(sizes), np.int32),
            prompt=np.empty(sum(sizes), np.uint64),
            image=np.empty(sum(sizes), np.uint64),
            score=np.empty(sum(sizes), np.float64),
        )
        end = 0
        for number, part in zip(numbers, self._parts.iterate_parts(numbers), strict=True):
            chosen = np.flatnonzero(part.metric == part.metrics.index(metric))
            if generator is not None:
                chosen = chosen[part.generator[chosen] == part.generators.index(generator)]
            begin, end = end, end + len(chosen)
            indices = np.array([self.generators.index(name) for name in part.generators], np.int32)
            whole.row[begin:end] = self._first_rows[number] + chosen
            whole.generator[begin:end] = indices[part.generator[chosen]]
            for name in ("prompt", "image", "score"):
                getattr(whole, name)[begin:end] = getattr(part, name)[chosen]
        return whole

    def iterate_generators(self, metric: str) -> Iterator[tuple[str, ScoreColumns]]:
        return ((generator, self.select_rows(metric, generator)) for generator in self.generators)

    def read_ids(self, rows: Sequence[int]) -> list[RowIds]:
        """Return the ids of the rows with these row numbers, in the same order."""
        numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        known: dict[int, RowIds] = {}
        for number in np.unique(numbers):
            own = [row for row, part in zip(rows, numbers, strict=True) if part == number]
            table = self._parts.read[number](ID_COLUMNS).take([row - self._first_rows[number] for row in own])
            known |= {row: RowIds(**record) for row, record in zip(own, table.to_pylist(), strict=True)}
        return [known[row] for row in rows]


def _make_part(table: pa.Table) -> _Part:
    generators, generator = _encode_names(table.column("generator"))
    metrics, metric = _encode_names(table.column("metric"))
    prompt = _hash_column(table.column("prompt_id"))
    image = _hash_column(table.column("image_id"))
    named = (image != NO_ID_HASH) & (prompt != NO_ID_HASH)
    mixed = mix_ids(image, prompt, hash_ids(generators)[generator])
    return _Part(
        metrics=metrics,
        generators=generators,
        metric=metric,
        generator=generator,
        prompt=prompt,
        image=np.where(named, mixed, NO_ID_HASH),
        score=table.column("score").to_numpy().astype(np.float64, copy=False),
        truncated=pc.fill_null(table.column("truncated"), False).to_numpy(),
        n_null=table.column("score").null_count,
    )


def mix_ids(image: Hashes, prompt: Hashes, generator: Hashes) -> Hashes:
    """Return one hash per image, combined from the hashes of its image id, prompt id and generator."""
    mixed = ((image * MIXING_FACTOR + prompt) * MIXING_FACTOR + generator) * MIXING_FACTOR
    return np.asarray(mixed ^ (mixed >> np.uint64(32)))


def _encode_names(column: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int32]]:
    plain = column.combine_chunks()
    encoded = plain if pa.types.is_dictionary(plain.type) else plain.dictionary_encode()
    own, indices = encoded.dictionary.to_pylist(), pc.unique(encoded.indices).to_pylist()
    names = list(dict.fromkeys(own[index] for index in indices))
    codes = {name: code for code, name in enumerate(names)}
    return names, np.array([codes.get(name, -1) for name in own], np.int32)[encoded.indices.to_numpy()]


def _hash_column(column: pa.ChunkedArray) -> Hashes:
    hashes = hash_ids(pc.fill_null(column, "").to_numpy())
    return np.where(column.is_valid().to_numpy(), hashes, NO_ID_HASH)


def find_in_sorted(values: Hashes, ascending: Hashes) -> NDArray[np.intp]:
    """Return the index of each value in a sorted array, or -1 if it does not occur."""
    if not len(ascending):
        return np.full(len(values), -1)
    indices = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.where(ascending[indices] == values, indices, -1)


class _DistinctHashes:
    """Accumulator of distinct hashes. Duplicates are removed whenever the number of hashes has roughly doubled."""

    def __init__(self) -> None:
        self._known: Hashes = np.zeros(0, np.uint64)
        self._new: list[Hashes] = []
        self._n_new = 0

    def add(self, hashes: Hashes) -> None:
        self._new.append(hashes)
        self._n_new += len(hashes)
        if self._n_new > len(self._known) + MIN_COLLECTED_HASHES:
            self._remove_duplicates()

    def _remove_duplicates(self) -> None:
        known = np.unique(np.concatenate([self._known, *self._new]))
        self._known, self._new, self._n_new = known[known != NO_ID_HASH], [], 0

    def collect(self) -> Hashes:
        self._remove_duplicates()
        return self._known
