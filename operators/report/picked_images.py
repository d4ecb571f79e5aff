"""The images and prompts that a report shows: the best, the worst, those that metrics or generators disagree on."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plumbline.operators.judging.contradicted_images import ContradictedImage
from plumbline.operators.metrics.metric import direction
from plumbline.operators.run_scores import NONE, Hashes, RunScores, ScoreColumns, mix_ids
from plumbline.operators.statistics.poisson_bootstrap import hash_ids, uniform

Floats = NDArray[np.float64]
MOST_PROMPTS = 16
MOST_SIDES = 12
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

    def __init__(self, scores: RunScores) -> None:
        generators = max(len(scores.generators), 1)
        share = MOST_COMPARED / max(len(scores.prompts) * generators, 1)
        self._prompts: Hashes = scores.prompts[uniform(scores.prompts) < share]
        self._images = np.full((len(self._prompts), generators), NONE)
        self._rows = np.zeros(self._images.shape, np.int64)
        self._ranks: list[Floats] = []

    def add(self, columns: ScoreColumns, ranks: Floats) -> None:
        """A metric's images, each once, with the share of images that score worse."""
        if not len(self._prompts):
            return
        place = np.minimum(np.searchsorted(self._prompts, columns.prompt), len(self._prompts) - 1)
        known = np.flatnonzero(self._prompts[place] == columns.prompt)
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

Kind = Literal["best", "worst", "disagreed", "contradicted"]
"""Those that metrics disagree on, and those on which a metric contradicts people."""


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
    """By metric, the share of images that score worse, ties half."""
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


class _Seen(NamedTuple):
    """The images that a metric scored, each once."""

    columns: ScoreColumns
    worth: Floats
    """Their scores so turned that more is better."""
    ranks: Floats
    """The share of images that score worse, ties half."""

    def first(self, order: Floats) -> ScoreColumns:
        """As many as are ever looked at, those of the lowest `order` first."""
        return self.columns.where(np.argsort(order, kind="stable")[: LOOKED_AT * MOST_CARDS])


class _Choice(NamedTuple):
    """An image that a metric puts into the gallery."""

    image: int
    """Its hash."""
    row: int
    """One of its rows in the run's scores."""
    reason: Reason


def pick_images(scores: RunScores, metrics: Sequence[str], most: int, falling: Container[str] = ()) -> Picked:
    """At most `most` images, and MOST_CARDS: by each metric the best, the worst, and those that the metrics disagree on
    most; and as many of the prompts on which generators differ most.

    By the metrics `falling` a lower score is better. No prompt is taken twice for one reason, and generators share the
    places. Of more than MOST_COMPARED images, disagreement is looked for among about so many, drawn by their hashes.
    """
    ends: dict[tuple[Kind, str], ScoreColumns] = {}
    sizes: dict[str, int] = {}
    compared, differing = _Compared(len(scores) // max(len(scores.metrics), 1)), Differing(scores)
    for metric in metrics:
        seen = _seen(scores, metric, falling)
        if not len(seen.ranks):
            continue
        ends["worst", metric], ends["best", metric] = seen.first(seen.worth), seen.first(-seen.worth)
        sizes[metric] = len(np.unique(seen.columns.generator))
        compared.add(metric, seen)
        differing.add(seen.columns, seen.ranks)
        del seen  # or it would stand beside the next metric's
    most = min(most, MOST_CARDS)
    if not sizes or most < 1:
        return NOTHING_PICKED
    quotas = _quotas(len(sizes), most)
    chosen: dict[tuple[Kind, str], list[_Choice]] = {
        (kind, metric): [
            _Choice(image, row, Reason(kind, metric))
            for image, row in _spread(columns, sizes[metric], quotas[kind]).places()
        ]
        for (kind, metric), columns in ends.items()
    }
    chosen |= {("disagreed", metric): compared.disputed(metric, quotas["disagreed"]) for metric in sizes}
    reasons: dict[int, list[Reason]] = {}
    rows: dict[int, int] = {}
    for choices in zip_longest(*(chosen[kind, metric] for kind in quotas for metric in sizes)):
        for choice in filter(None, choices):  # the first of every kind and metric before any's second
            reasons.setdefault(choice.image, []).append(choice.reason)
            rows.setdefault(choice.image, choice.row)
    gallery = list(reasons)[:most]
    sides = differing.chosen(most)
    rows = {side.image: side.row for prompt in sides for side in prompt} | rows
    wanted = dict.fromkeys([*gallery, *(side.image for prompt in sides for side in prompt)])
    picks = _picks({image: reasons.get(image, ()) for image in wanted}, rows, scores, list(sizes), falling)
    return Picked([picks[image] for image in gallery], [[picks[side.image] for side in prompt] for prompt in sides])


def pick_contradicted(
    images: Sequence[ContradictedImage], scores: RunScores, metrics: Sequence[str], falling: Container[str] = ()
) -> list[Pick]:
    """These images, but for those that the run does not have any more, with what all metrics say of them."""
    if not images:
        return []
    ids = (hash_ids([getattr(image, name) for image in images]) for name in ("image_id", "prompt_id", "generator"))
    reasons: dict[int, list[Reason]] = {}
    for image, mixed in zip(images, mix_ids(*ids).tolist(), strict=True):
        reasons.setdefault(mixed, []).append(Reason("contradicted", image.metric, image.why))
    row_of: dict[int, int] = {}
    for metric in metrics:
        columns = scores.of(metric)
        row_of |= dict(columns.where(np.isin(columns.image, np.array([*reasons], np.uint64))).places())
    known = {image: of_image for image, of_image in reasons.items() if image in row_of}
    return list(_picks(known, row_of, scores, metrics, falling).values())


def _seen(scores: RunScores, metric: str, falling: Container[str]) -> _Seen:
    columns = scores.of(metric)
    named = (columns.image != NONE) & ~np.isnan(columns.score)
    columns = columns if named.all() else columns.where(named)
    ordered = np.sort(columns.image)
    if (ordered[1:] == ordered[:-1]).any():
        columns = columns.where(np.sort(np.unique(columns.image, return_index=True)[1]))
    del ordered
    worth = direction(metric, falling) * columns.score
    ranks = pd.Series(worth).rank(pct=True).to_numpy() - 0.5 / max(len(worth), 1)
    return _Seen(columns, worth, ranks)


def _quotas(n_metrics: int, most: int) -> dict[Kind, int]:
    """How many images each metric gives for each reason; the worst teach most."""
    share = most / n_metrics
    if n_metrics == 1:
        worst = max(1, round(0.6 * share))
        return {"worst": worst, "disagreed": 0, "best": max(0, int(share) - worst)}
    worst = max(1, int(0.45 * share))
    best = max(1, int(0.25 * share))
    return {"worst": worst, "disagreed": max(1, int(share) - worst - best), "best": best}


class _Compared:
    """The ranks by every metric of so many images, or of MOST_COMPARED of them, which are drawn by their hashes."""

    def __init__(self, n_images: int) -> None:
        self._share = MOST_COMPARED / max(n_images, 1)
        self._images: ScoreColumns | None = None
        """Each once, in the order in which they were seen."""
        self._ranks: dict[str, pd.Series] = {}

    def add(self, metric: str, seen: _Seen) -> None:
        drawn = uniform(seen.columns.image) < self._share
        columns = seen.columns.where(drawn)
        self._ranks[metric] = pd.Series(seen.ranks[drawn], columns.image)
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
        known = np.flatnonzero(~np.isnan(apart))
        farthest = known[np.argsort(-apart[known], kind="stable")]
        generators = len(np.unique(self._images.generator[known]))
        return [
            _Choice(image, row, Reason("disagreed", metric, _disagreement_text(ranks.loc[image], metric)))
            for image, row in _spread(self._images.where(farthest), generators, count).places()
        ]


def _disagreement_text(ranks: pd.Series, metric: str) -> str:
    others = float(ranks.drop(metric).median())
    return f"{metric} puts it above {ranks[metric]:.0%} of the images, the other metrics above {others:.0%}"


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


def _picks(
    reasons: Mapping[int, Sequence[Reason]],
    row_of: Mapping[int, int],
    scores: RunScores,
    scored: Sequence[str],
    falling: Container[str],
) -> dict[int, Pick]:
    """By its hash each chosen image with what all metrics say of it; `scored` are those that rank images."""
    hashes = np.array(list(reasons), np.uint64)
    rows: dict[int, list[int]] = {image: [] for image in reasons}
    values: dict[int, dict[str, tuple[float, float]]] = {image: {} for image in reasons}
    for metric in scores.metrics:
        columns = scores.of(metric)
        its = columns.where(np.isin(columns.image, hashes))
        for image, row in zip(its.image.tolist(), its.row.tolist(), strict=True):
            rows[image].append(row)
    for metric in scored:
        seen = _seen(scores, metric, falling)
        places = np.flatnonzero(np.isin(seen.columns.image, hashes))
        for place in places.tolist():
            given = float(seen.columns.score[place]), float(seen.ranks[place])
            values[int(seen.columns.image[place])][metric] = given
    ids = scores.ids([row_of[image] for image in reasons])
    return {
        image: Pick(
            key=ImageKey(whose.generator, str(whose.image_id)),
            prompt_id=str(whose.prompt_id),
            scores={metric: score for metric, (score, _) in values[image].items()},
            ranks={metric: rank for metric, (_, rank) in values[image].items()},
            reasons=tuple(reasons[image]),
            rows=tuple(sorted(rows[image])),
        )
        for image, whose in zip(reasons, ids, strict=True)
    }
