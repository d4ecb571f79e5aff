"""The images and prompts that a report shows: the best, the worst, those that metrics or generators disagree on."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plumbline.operators.base.each import Each, one_by_one
from plumbline.operators.base.spilled import Spilled
from plumbline.operators.judging.contradicted_images import ContradictedImage
from plumbline.operators.metrics.metric import direction
from plumbline.operators.results.run_scores import NONE, Hashes, RunScores, ScoreColumns, among, mix_ids
from plumbline.operators.statistics.percentiles import percentile_rank
from plumbline.operators.statistics.poisson_bootstrap import hash_ids, uniform

Floats = NDArray[np.float64]
MOST_PROMPTS = 16
MOST_SIDES = 60
"""Generators side by side; of more, those whose images rank best."""
MOST_COMPARED = 1 << 16
"""So many images have their ranks by all metrics in memory at once; of more, prompts are drawn by their hashes."""


class Side(NamedTuple):
    """An image beside others of its prompt."""

    image: int
    """Its hash."""
    row: int
    """One of its rows in the run's scores."""


class Differing:
    """The ranks by every metric of each generator's first image of a prompt."""

    def __init__(self, scores: RunScores, share: float) -> None:
        """Of this share of the prompts."""
        self._prompts: Hashes = scores.prompts[uniform(scores.prompts) < share]
        self._images = np.full((len(self._prompts), max(len(scores.generators), 1)), NONE)
        self._rows = np.zeros(self._images.shape, np.int64)
        self._ranks: list[Floats] = []

    def add(self, columns: ScoreColumns, ranks: Floats) -> None:
        """A metric's images, each once, with their percentile ranks."""
        if not len(self._prompts):
            return
        place = among(columns.prompt, self._prompts)
        known = np.flatnonzero(place >= 0)
        cells = np.ravel_multi_index((place[known], columns.generator[known]), self._images.shape)
        first, at = np.unique(cells, return_index=True)
        new = self._images.flat[first] == NONE
        self._images.flat[first[new]] = columns.image[known[at[new]]]
        self._rows.flat[first[new]] = columns.row[known[at[new]]]
        shown = self._images.flat[cells] == columns.image[known]
        of_metric = np.full(self._images.shape, np.nan)
        of_metric.flat[cells[shown]] = ranks[known[shown]]
        self._ranks.append(of_metric)

    def chosen(self, most: int) -> list[list[Side]]:
        """Images of the prompts that differ most, no more than `most` in all; of each prompt in the generators' order.

        Prompts of which more generators have an image come first, then those of which the standard deviation of the
        generators' ranks is the largest, its mean over the metrics.
        """
        if not self._ranks or self._images.shape[1] < 2 or not len(self._prompts):
            return []
        ranks = np.stack(self._ranks)
        sides = np.sort(np.argsort(-_mean(ranks, (0, 1)), kind="stable")[: min(MOST_SIDES, most)])
        images, rows, ranks = self._images[:, sides], self._rows[:, sides], ranks[:, :, sides]
        there = (images != NONE).sum(axis=1)
        deviations = np.sqrt(_mean((ranks - _mean(ranks, 2)[:, :, None]) ** 2, 2))
        order = np.lexsort((-_mean(deviations, 0), -there))
        wanted = min(MOST_PROMPTS, most // len(sides)) if len(sides) > 1 else 0
        return [_sides(images[place], rows[place]) for place in order[:wanted] if there[place] > 1]


def _mean(values: Floats, axes: int | tuple[int, ...]) -> Floats:
    """The mean of those that are numbers; 0 of none."""
    numbers = np.isfinite(values)
    total = np.where(numbers, values, 0.0).sum(axis=axes)
    return np.asarray(total / np.maximum(numbers.sum(axis=axes), 1))


def _sides(images: Hashes, rows: NDArray[np.int64]) -> list[Side]:
    return [Side(image, row) for image, row in zip(images.tolist(), rows.tolist(), strict=True) if image != int(NONE)]


MOST_CARDS = 100
LOOKED_AT = 200
"""Images for each place of the gallery."""

MIDDLE = 0.5
"""The percentile rank that separates both ends; all images have it if all scores are equal."""

Kind = Literal["best", "worst", "highest", "lowest", "disagreed", "contradicted"]
"""`highest` and `lowest` are by a metric that ranks nothing. Metrics disagree on some images, and contradict people on
others."""
KIND_WORDS: Mapping[Kind, str] = {
    "best": "best",
    "worst": "worst",
    "highest": "highest",
    "lowest": "lowest",
    "disagreed": "disagreed on",
    "contradicted": "contradicts people",
}
"""The kinds on a page."""


class ImageKey(NamedTuple):
    """Which image it is."""

    generator: str
    image_id: str


class Reason(NamedTuple):
    """Why an image is in the gallery."""

    kind: Kind
    metric: str
    text: str = ""
    """Of a disagreement, how large it is."""


class Pick(NamedTuple):
    """An image chosen for the gallery."""

    key: ImageKey
    prompt_id: str
    scores: Mapping[str, float]
    """By metric."""
    ranks: Mapping[str, float]
    """Percentile ranks among the images of the run, by metric."""
    reasons: tuple[Reason, ...]
    rows: tuple[int, ...] = ()
    """Where it stands in the run's scores, by every metric."""


class Picked(NamedTuple):
    """The images that a report shows."""

    gallery: Sequence[Pick] = ()
    side_by_side: Sequence[Sequence[Pick]] = ()
    """Of each prompt, those of several generators."""
    contradicted: Sequence[Pick] = ()
    """Those on which a metric contradicts people."""

    def every(self) -> list[Pick]:
        """All of them, each once."""
        sides = (pick for picks in self.side_by_side for pick in picks)
        return list({pick.key: pick for pick in (*self.gallery, *sides, *self.contradicted)}.values())


NOTHING_PICKED = Picked()


class Places(NamedTuple):
    """How many images a metric gives for each reason, and whose ranks by all metrics are looked at together."""

    quotas: Mapping[Kind, int]
    ends: tuple[Kind, Kind]
    """The low one first."""
    metrics: frozenset[str]
    """The metrics that give images."""
    images: float
    """A share of the images, drawn by their hashes."""
    prompts: float
    """Likewise; all of their images."""


def places_for(scores: RunScores, metrics: Sequence[str], most: int, *, ranking: bool = True) -> Places:
    """Return the places of a gallery of at most `most` images; the metrics all rank images, or none of them does."""
    n_metrics = len([metric for metric in metrics if metric in scores.spans])
    n_images = len(scores) // max(len(scores.metrics), 1)
    ends: tuple[Kind, Kind] = ("worst", "best") if ranking else ("lowest", "highest")
    return Places(
        quotas=_quotas(max(n_metrics, 1), min(most, MOST_CARDS), ends),
        ends=ends,
        metrics=frozenset(metrics),
        images=MOST_COMPARED / max(n_images, 1),
        prompts=MOST_COMPARED / max(len(scores.prompts) * len(scores.generators), 1),
    )


class SeenImages(NamedTuple):
    """What is kept of the images that a metric scored: some that may be shown, and some that are compared."""

    generators: int
    """That have any."""
    ends: Mapping[Kind, Sequence[tuple[int, int]]]
    """The image's hash and its row, by Places.ends."""
    others: Sequence[tuple[int, int]]
    """Images at neither end, if the ends do not fill their places."""
    drawn: ScoreColumns
    ranks: Floats
    """Percentile ranks of those that were drawn."""


class ImageRanks:
    """The worth of all images by a metric, on disk by generator, where percentile ranks are counted."""

    def __init__(self) -> None:
        self._worths = Spilled()
        self._n_images = 0

    def add(self, columns: ScoreColumns, towards: int) -> None:
        """Add the scored rows of a generator; more is better if `towards` is 1."""
        worth = towards * columns.score[~np.isnan(columns.score)]
        self._worths.append(np.sort(worth))
        self._n_images += len(worth)

    def of(self, worth: Floats) -> Floats:
        """Return the percentile ranks of some images of this worth among all of them."""
        worse, equal = np.zeros(len(worth)), np.zeros(len(worth))
        order = np.argsort(worth)
        for number in range(len(self._worths)):
            column = self._worths.read(number)
            below = np.searchsorted(column, worth[order], "left")
            worse[order] += below
            equal[order] += np.searchsorted(column, worth[order], "right") - below
        return percentile_rank(worse, equal, max(self._n_images, 1))


class ImagesInView:
    """A metric's images as they come, those of one generator after those of another."""

    def __init__(self, towards: int, places: Places) -> None:
        """More is better if `towards` is 1."""
        self._towards, self._places = towards, places
        self._ranks = ImageRanks()
        self._generators = 0
        self._ends: dict[Kind, list[ScoreColumns]] = {kind: [] for kind in places.ends}
        self._drawn: list[ScoreColumns] = []

    def add(self, columns: ScoreColumns) -> None:
        """A generator's rows."""
        self._ranks.add(columns, self._towards)
        columns = each_once(columns)
        if not len(columns.row):
            return
        self._generators += 1
        worth = self._towards * columns.score
        for (kind, ends), order in zip(self._ends.items(), (worth, -worth), strict=True):
            ends.append(columns.where(_first(order, LOOKED_AT * max(self._places.quotas[kind], 1))))
        is_drawn = uniform(columns.image) < self._places.images
        self._drawn.append(columns.where(is_drawn | (uniform(columns.prompt) < self._places.prompts)))

    def seen(self) -> SeenImages | None:
        """What is kept of them; None where none has a score."""
        if not self._generators:
            return None
        drawn = _in_order(self._drawn)
        ends = {kind: self._end(_in_order(columns), kind) for kind, columns in self._ends.items()}
        left = sum(self._places.quotas[kind] - len(chosen) for kind, chosen in ends.items())
        taken = np.array([image for chosen in ends.values() for image, _ in chosen], np.uint64)
        others = drawn.where(~np.isin(drawn.image, taken))
        others = _spread(others.where(np.argsort(uniform(others.image))), self._generators, left)
        ranks = self._ranks.of(self._towards * drawn.score)
        return SeenImages(self._generators, ends, others.places(), drawn, ranks)

    def _end(self, columns: ScoreColumns, kind: Kind) -> list[tuple[int, int]]:
        """Return the images at one end. They are in its half: an image that ties with the middle is at neither end."""
        worth, low = self._towards * columns.score, kind == self._places.ends[0]
        order = np.argsort(worth if low else -worth, kind="stable")
        ranks = self._ranks.of(worth[order])
        half = columns.where(order[ranks < MIDDLE if low else ranks > MIDDLE])
        return _spread(half, len(np.unique(half.generator)), self._places.quotas[kind]).places()


def each_once(columns: ScoreColumns) -> ScoreColumns:
    """The first row of every image that has a score."""
    named = (columns.image != NONE) & ~np.isnan(columns.score)
    columns = columns if named.all() else columns.where(named)
    ordered = np.sort(columns.image)
    if (ordered[1:] == ordered[:-1]).any():
        columns = columns.where(np.sort(np.unique(columns.image, return_index=True)[1]))
    return columns


def _first(order: Floats, count: int) -> NDArray[np.intp]:
    """The places of so many of the lowest, of equal ones the first."""
    if count >= len(order):
        return np.arange(len(order))
    low = np.flatnonzero(order <= np.partition(order, count - 1)[count - 1])
    return np.sort(low[np.argsort(order[low], kind="stable")[:count]])


def _in_order(columns: Sequence[ScoreColumns]) -> ScoreColumns:
    """All of them, by their rows."""
    together = reduce(ScoreColumns.followed_by, columns)
    return together.where(np.argsort(together.row))


class _Choice(NamedTuple):
    """An image that a metric puts into the gallery."""

    image: int
    """Its hash."""
    row: int
    """One of its rows in the run's scores."""
    reason: Reason


def pick_images(
    scores: RunScores,
    seen: Mapping[str, SeenImages | None],
    places: Places,
    most: int,
    falling: Container[str] = (),
    each: Each = one_by_one,
) -> Picked:
    """At most `most` images, and MOST_CARDS: by each metric the best, the worst, and those that the metrics disagree on
    most; and as many of the prompts on which generators differ most.

    `seen` are by metric the images that it scored, kept for these `places`; by the metrics `falling` a lower score is
    better. No prompt is taken twice for one reason, and generators share the places. Of more than MOST_COMPARED images,
    disagreement is looked for among about so many, drawn by their hashes.
    """
    most = min(most, MOST_CARDS)
    scored = {metric: images for metric, images in seen.items() if images is not None}
    if not scored or most < 1:
        return NOTHING_PICKED
    compared, differing = _Compared(places.images), Differing(scores, places.prompts)
    for metric, of_metric in scored.items():
        compared.add(metric, of_metric.drawn, of_metric.ranks)
        differing.add(of_metric.drawn, of_metric.ranks)
    chosen: dict[tuple[Kind, str], list[_Choice]] = {
        (kind, metric): [_Choice(image, row, Reason(kind, metric)) for image, row in of_metric.ends[kind]]
        for metric, of_metric in scored.items()
        for kind in of_metric.ends
    }
    disputed = places.quotas.get("disagreed", 0)
    chosen |= {("disagreed", metric): compared.disputed(metric, disputed) for metric in scored}
    reasons: dict[int, list[Reason]] = {}
    rows: dict[int, int] = {}
    for choices in zip_longest(*(chosen[kind, metric] for kind in places.quotas for metric in scored)):
        for choice in filter(None, choices):  # the first of every kind and metric before any's second
            reasons.setdefault(choice.image, []).append(choice.reason)
            rows.setdefault(choice.image, choice.row)
    for image, row in (other for of_metric in scored.values() for other in of_metric.others):
        reasons.setdefault(image, [])
        rows.setdefault(image, row)
    gallery = list(reasons)[:most]
    sides = differing.chosen(most)
    rows = {side.image: side.row for prompt in sides for side in prompt} | rows
    wanted = dict.fromkeys([*gallery, *(side.image for prompt in sides for side in prompt)])
    picks = _picks({image: reasons.get(image, ()) for image in wanted}, rows, scores, list(scored), falling, each)
    return Picked([picks[image] for image in gallery], [[picks[side.image] for side in prompt] for prompt in sides])


def pick_contradicted(
    images: Sequence[ContradictedImage],
    scores: RunScores,
    metrics: Sequence[str],
    falling: Container[str] = (),
    each: Each = one_by_one,
) -> list[Pick]:
    """These images, but for those that the run does not have any more, with what all metrics say of them."""
    if not images:
        return []
    ids = (hash_ids([getattr(image, name) for image in images]) for name in ("image_id", "prompt_id", "generator"))
    reasons: dict[int, list[Reason]] = {}
    for image, mixed in zip(images, mix_ids(*ids).tolist(), strict=True):
        reasons.setdefault(mixed, []).append(Reason("contradicted", image.metric, image.why))
    return list(_picks(reasons, {}, scores, metrics, falling, each).values())


def _quotas(n_metrics: int, most: int, ends: tuple[Kind, Kind]) -> dict[Kind, int]:
    """Return how many images each metric gives for each reason: the worst teach most, and only metrics that rank can
    disagree.
    """
    share, (low, high) = most / n_metrics, ends
    if low == "lowest":
        return {low: max(1, round(0.5 * share)), high: max(0, int(share) - max(1, round(0.5 * share)))}
    if n_metrics == 1:
        worst = max(1, round(0.6 * share))
        return {low: worst, "disagreed": 0, high: max(0, int(share) - worst)}
    worst = max(1, int(0.45 * share))
    best = max(1, int(0.25 * share))
    return {low: worst, "disagreed": max(1, int(share) - worst - best), high: best}


class _Compared:
    """The ranks by every metric of a share of the images, which are drawn by their hashes."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._images: ScoreColumns | None = None
        """Each once, in the order in which they were seen."""
        self._ranks: dict[str, pd.Series] = {}

    def add(self, metric: str, columns: ScoreColumns, ranks: Floats) -> None:
        drawn = uniform(columns.image) < self._share
        columns = columns.where(drawn)
        self._ranks[metric] = pd.Series(ranks[drawn], columns.image)
        if self._images is None:
            self._images = columns
        else:
            new = columns.where(~np.isin(columns.image, self._images.image))
            self._images = self._images.followed_by(new)

    def disputed(self, metric: str, count: int) -> list[_Choice]:
        """The images of which a metric's rank is the farthest from the other metrics' median, the farthest first."""
        if self._images is None or len(self._ranks) < 2:
            return []
        ranks = pd.DataFrame({name: own.reindex(self._images.image) for name, own in self._ranks.items()})
        apart = (ranks[metric] - ranks.drop(columns=metric).median(axis=1)).abs().to_numpy()
        known = np.flatnonzero(apart > 0)
        farthest = known[np.argsort(-apart[known], kind="stable")]
        generators = len(np.unique(self._images.generator[known]))
        return [
            _Choice(image, row, Reason("disagreed", metric, _disagreement_text(ranks.loc[image], metric)))
            for image, row in _spread(self._images.where(farthest), generators, count).places()
        ]


def _disagreement_text(ranks: pd.Series, metric: str) -> str:
    others = float(ranks.drop(metric).median())
    return f"percentile rank {ranks[metric]:.0%} by {metric}, {others:.0%} by the other metrics"


def _spread(ordered: ScoreColumns, generators: int, count: int) -> ScoreColumns:
    """The first `count` images, each prompt once, and none of so many generators before its turn."""
    share = -(-count // generators) if generators else 0
    taken: Counter[int] = Counter()
    places: dict[int, int] = {}
    looked_at = ordered.where(slice(LOOKED_AT * max(count, 1)))
    named = zip(looked_at.prompt.tolist(), looked_at.generator.tolist(), strict=True)
    for place, (prompt, generator) in enumerate(named):
        if len(places) < count and prompt not in places and taken[generator] < share:
            places[prompt] = place
            taken[generator] += 1
    return looked_at.where(np.array([*places.values()], np.intp))


class _Asked(NamedTuple):
    """Of which images is to be found what metrics say of them."""

    scores: RunScores
    images: Hashes
    """Ascending."""
    ranking: Sequence[str]
    """The metrics that rank images."""
    falling: Container[str]


class _Found(NamedTuple):
    """What a metric says of some images."""

    rows: Sequence[tuple[int, int]]
    """Images and all of their rows."""
    scores: Mapping[int, tuple[float, float]]
    """Their scores and percentile ranks."""


def _find(asked: _Asked, metric: str) -> _Found:
    ranks, rows, known = ImageRanks(), list[tuple[int, int]](), list[ScoreColumns]()
    for _, columns in asked.scores.by_generator(metric):
        rows += columns.where(among(columns.image, asked.images) >= 0).places()
        if metric in asked.ranking:
            ranks.add(columns, direction(metric, asked.falling))
            columns = each_once(columns)
            known.append(columns.where(among(columns.image, asked.images) >= 0))
    if not known:
        return _Found(rows, {})
    images = reduce(ScoreColumns.followed_by, known)
    given = zip(images.score.tolist(), ranks.of(direction(metric, asked.falling) * images.score).tolist(), strict=True)
    return _Found(rows, dict(zip(images.image.tolist(), given, strict=True)))


def _picks(
    reasons: Mapping[int, Sequence[Reason]],
    row_of: Mapping[int, int],
    scores: RunScores,
    ranking: Sequence[str],
    falling: Container[str],
    each: Each,
) -> dict[int, Pick]:
    """By its hash each chosen image that the run has, with what all metrics say of it; `ranking` are those that rank
    images, and `row_of` has rows that are known.
    """
    rows: dict[int, list[int]] = {image: [] for image in reasons}
    values: dict[int, dict[str, tuple[float, float]]] = {image: {} for image in reasons}
    asked = _Asked(scores, np.sort(np.array(list(reasons), np.uint64)), ranking, falling)
    for metric, found in zip(scores.metrics, each(_find, scores.metrics, shared=asked), strict=True):
        for image, row in found.rows:
            rows[image].append(row)
        for image, given in found.scores.items():
            values[image][metric] = given
    known = [image for image in reasons if rows[image]]
    ids = scores.ids([row_of.get(image, min(rows[image])) for image in known])
    return {
        image: Pick(
            key=ImageKey(whose.generator, str(whose.image_id)),
            prompt_id=str(whose.prompt_id),
            scores={metric: values[image][metric][0] for metric in ranking if metric in values[image]},
            ranks={metric: values[image][metric][1] for metric in ranking if metric in values[image]},
            reasons=tuple(reasons[image]),
            rows=tuple(sorted(rows[image])),
        )
        for image, whose in zip(known, ids, strict=True)
    }
