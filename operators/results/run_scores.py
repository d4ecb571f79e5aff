"""A run's scores as numbers, read for one metric and generator at a time; ids are read for few rows only.

So the memory of a report grows neither with the metrics and generators of a run nor with the length of its ids.
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

from plumbline.operators.base.each import Each, one_by_one
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


class PromptTexts(NamedTuple):
    """The texts of a run's prompts, as hashes."""

    prompts: Hashes
    """Hashes of the ids, ascending."""
    texts: Hashes

    def find_texts(self, prompts: Hashes) -> Hashes:
        """Return the text of each of the prompts, or NONE if it is not known."""
        places = among(prompts, self.prompts)
        return np.where(places >= 0, np.append(self.texts, NONE)[places], NONE)

    def edited(self, later: "PromptTexts", prompts: Hashes) -> NDArray[np.bool_]:
        """Return True for each prompt that has another text in a later run; an unknown text counts as the same."""
        own, theirs = self.find_texts(prompts), later.find_texts(prompts)
        return np.asarray((own != theirs) & (own != NONE) & (theirs != NONE))


class SharedPrompts(NamedTuple):
    """The prompts that can be compared between two runs."""

    prompts: Hashes
    """Hashes of ids in both runs, ascending. Their texts are the same, or unknown, as in runs of earlier versions."""
    edited: int
    """Number of ids in both runs whose texts differ."""


class RowIds(NamedTuple):
    """The ids of a row; None for an id that it does not have."""

    image_id: str | None
    prompt_id: str | None
    generator: str


class _Part(NamedTuple):
    """A part's rows as numbers."""

    metrics: list[str]
    """In the order of the rows, as the generators."""
    generators: list[str]
    metric: NDArray[np.int32]
    """Places among `metrics`."""
    generator: NDArray[np.int32]
    prompt: Hashes
    image: Hashes
    score: NDArray[np.float64]
    truncated: NDArray[np.bool_]
    n_null: int


class _Counted(NamedTuple):
    """What is known of a part without its rows."""

    metrics: list[str]
    generators: list[str]
    rows: Mapping[tuple[str, str], int]
    """By metric and generator."""
    spans: Mapping[str, tuple[float, float]]
    """By metric its lowest and its highest score; of one without scores none."""
    truncated: Mapping[str, int]
    n_null: int
    prompts: Hashes
    """Each once."""


class _Parts:
    """Makes parts into numbers, and keeps the first ones, but not where it is sent to another process."""

    def __init__(self, read: Sequence[ReadPart]) -> None:
        self.read = read
        self._kept: dict[int, _Part] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"read": self.read, "_kept": {}}

    def each(self, numbers: Sequence[int]) -> Iterator[_Part]:
        """Parts in this order, a few at once."""
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            for first in range(0, len(numbers), PARTS_AT_ONCE):
                yield from pool.map(self.numbers_of, numbers[first : first + PARTS_AT_ONCE])

    def numbers_of(self, number: int) -> _Part:
        part = self._kept.get(number) or _as_numbers(self.read[number](READ))
        if number < PARTS_KEPT:
            self._kept[number] = part
        return part


def _counted(parts: _Parts, number: int) -> _Counted:
    part = parts.numbers_of(number)
    shape = (len(part.metrics), len(part.generators))
    rows = np.bincount(part.metric * shape[1] + part.generator, minlength=math.prod(shape)).reshape(shape)
    cut = np.bincount(part.metric[part.truncated], minlength=len(part.metrics))
    spans = {}
    for place, metric in enumerate(part.metrics):
        scores = part.score[(part.metric == place) & ~np.isnan(part.score)]
        if len(scores):
            spans[metric] = (float(scores.min()), float(scores.max()))
    return _Counted(
        metrics=part.metrics,
        generators=part.generators,
        rows={
            (part.metrics[metric], part.generators[generator]): int(rows[metric, generator])
            for metric, generator in np.argwhere(rows)
        },
        spans=spans,
        truncated={metric: count for metric, count in zip(part.metrics, cut.tolist(), strict=True) if count},
        n_null=part.n_null,
        prompts=np.unique(part.prompt[part.prompt != NONE]),
    )


class RunScores:
    """A run's scores, read part by part; what is kept of them are the numbers of a few parts.

    It can be sent to other processes, which read the parts for themselves.
    """

    def __init__(self, parts: Sequence[ReadPart], each: Each = one_by_one) -> None:
        """Read every part once."""
        self._parts = _Parts(parts)
        self._reward: Reward | None = None
        self._texts: PromptTexts | None = None
        self._first_rows = [0]
        self._rows: list[Mapping[tuple[str, str], int]] = []
        self.n_null = 0
        """Rows without a score."""
        self.spans: dict[str, tuple[float, float]] = {}
        """By metric that has scores its lowest and its highest."""
        metrics, generators, truncated = dict[str, None](), dict[str, None](), Counter[str]()
        prompts = _Distinct()
        for part in each(_counted, range(len(parts)), shared=self._parts):
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
        """Those that have rows, in the order of the rows."""
        self.generators = list(generators)
        """Likewise."""
        self.prompts: Hashes = prompts.values()
        """Of all prompts, ascending."""
        self.truncated: Mapping[str, int] = {name: truncated[name] for name in self.metrics if truncated[name]}
        """By metric that has any, its rows that were scored on a prompt that was cut."""

    def __len__(self) -> int:
        return self._first_rows[-1]

    def with_reward(self, reward: Reward) -> "RunScores":
        """Return the same scores with one more metric, REWARD: a row for each image that all its parts scored."""
        combined = copy(self)
        combined.metrics, combined._reward = [*self.metrics, REWARD], reward
        return combined

    def with_texts(self, texts: PromptTexts | None) -> "RunScores":
        """Return the same scores with the texts of their prompts, if they are known."""
        known = copy(self)
        known._texts = texts
        return known

    def shared_prompts(self, other: "RunScores") -> SharedPrompts:
        """Return the prompts that can be compared with another run; a prompt with the same id may have been edited."""
        prompts = np.intersect1d(self.prompts, other.prompts, assume_unique=True)
        if self._texts is None or other._texts is None:
            return SharedPrompts(prompts, 0)
        edited = self._texts.edited(other._texts, prompts)
        return SharedPrompts(prompts[~edited], int(edited.sum()))

    def scored_by_all(
        self, metrics: Sequence[str], generator: str | None = None
    ) -> tuple[ScoreColumns, dict[str, NDArray[np.float64]]]:
        """The first metric's rows of the images that all of the metrics scored, and by each metric the scores of these.

        Holds the rows of all of them at once, those of one generator or of all.
        """
        columns = {metric: self.of(metric, generator).scored() for metric in metrics}
        images = reduce(np.intersect1d, [of_metric.image for of_metric in columns.values()])
        chosen = {}
        for metric, of_metric in columns.items():
            order = np.argsort(of_metric.image, kind="stable")
            chosen[metric] = of_metric.where(order[np.searchsorted(of_metric.image, images, sorter=order)])
        return chosen[metrics[0]], {metric: of_metric.score for metric, of_metric in chosen.items()}

    def of(self, metric: str, generator: str | None = None) -> ScoreColumns:
        """The rows of one metric, and of one generator or of all, in their order."""
        if self._reward is not None and metric == REWARD:
            columns, scores = self.scored_by_all(self._reward.parts, generator)
            return columns._replace(score=self._reward.of_all(scores))
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
        for number, part in zip(numbers, self._parts.each(numbers), strict=True):
            chosen = np.flatnonzero(part.metric == part.metrics.index(metric))
            if generator is not None:
                chosen = chosen[part.generator[chosen] == part.generators.index(generator)]
            begin, end = end, end + len(chosen)
            places = np.array([self.generators.index(name) for name in part.generators], np.int32)
            whole.row[begin:end] = self._first_rows[number] + chosen
            whole.generator[begin:end] = places[part.generator[chosen]]
            for name in ("prompt", "image", "score"):
                getattr(whole, name)[begin:end] = getattr(part, name)[chosen]
        return whole

    def by_generator(self, metric: str) -> Iterator[tuple[str, ScoreColumns]]:
        """The rows of one metric, those of one generator at a time."""
        return ((generator, self.of(metric, generator)) for generator in self.generators)

    def ids(self, rows: Sequence[int]) -> list[RowIds]:
        """Whose some rows are; reads the parts that hold them."""
        numbers = np.searchsorted(self._first_rows, rows, side="right") - 1
        known: dict[int, RowIds] = {}
        for number in np.unique(numbers):
            own = [row for row, part in zip(rows, numbers, strict=True) if part == number]
            table = self._parts.read[number](IDS).take([row - self._first_rows[number] for row in own])
            known |= {row: RowIds(**record) for row, record in zip(own, table.to_pylist(), strict=True)}
        return [known[row] for row in rows]


def _as_numbers(table: pa.Table) -> _Part:
    generators, generator = _encoded(table.column("generator"))
    metrics, metric = _encoded(table.column("metric"))
    prompt = _hashes(table.column("prompt_id"))
    image = _hashes(table.column("image_id"))
    named = (image != NONE) & (prompt != NONE)
    mixed = mix_ids(image, prompt, hash_ids(generators)[generator])
    return _Part(
        metrics=metrics,
        generators=generators,
        metric=metric,
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


def _encoded(column: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int32]]:
    """The names in the order of the rows, and the place of each row's among them."""
    plain = column.combine_chunks()
    encoded = plain if pa.types.is_dictionary(plain.type) else plain.dictionary_encode()
    own, places = encoded.dictionary.to_pylist(), pc.unique(encoded.indices).to_pylist()
    names = list(dict.fromkeys(own[place] for place in places))
    codes = {name: code for code, name in enumerate(names)}
    return names, np.array([codes.get(name, -1) for name in own], np.int32)[encoded.indices.to_numpy()]


def _hashes(column: pa.ChunkedArray) -> Hashes:
    hashes = hash_ids(pc.fill_null(column, "").to_numpy())
    return np.where(column.is_valid().to_numpy(), hashes, NONE)


def among(values: Hashes, ascending: Hashes) -> NDArray[np.intp]:
    """The places of values that are among some others, which ascend; -1 of one that is not."""
    if not len(ascending):
        return np.full(len(values), -1)
    places = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.where(ascending[places] == values, places, -1)


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
