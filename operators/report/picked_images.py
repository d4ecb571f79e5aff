"""Chooses the images and prompts that a report shows: the best, the worst, and those where scores differ most."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plumbline.operators.base.ordered_maps import OrderedMap, map_sequentially
from plumbline.operators.base.spilled import SpilledColumns
from plumbline.operators.metaeval.contradicted_images import ContradictedImage
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.results.run_scores import NO_ID_HASH, Hashes, RunScores, ScoreColumns, find_in_sorted, mix_ids
from plumbline.operators.statistics.percentiles import compute_percentile_rank
from plumbline.operators.statistics.poisson_bootstrap import convert_to_uniform, hash_ids

Floats = NDArray[np.float64]
MAX_PROMPTS = 16
MAX_GENERATORS_SIDE_BY_SIDE = 60
"""Maximum number of generators shown side by side; the best-ranked ones are chosen."""
MAX_COMPARED_IMAGES = 1 << 16
"""Approximate number of images whose ranks on all metrics are in memory at once; if there are more, they are sampled by
hash.
"""

HashAndRow = tuple[int, int]
"""Hash of an image, and the index of one of the image's rows in the run's scores."""


class _DifferingPrompts:
    """Accumulator that finds the prompts with the largest differences between generators' percentile ranks."""

    def __init__(self, scores: RunScores, share: float) -> None:
        """Start without images; only the fraction `share` of the prompts, sampled by hash, will be considered."""
        self._prompts: Hashes = scores.prompts[convert_to_uniform(scores.prompts) < share]
        self._images = np.full((len(self._prompts), max(len(scores.generators), 1)), NO_ID_HASH)
        self._rows = np.zeros(self._images.shape, np.int64)
        self._ranks: list[Floats] = []

    def add(self, columns: ScoreColumns, ranks: Floats) -> None:
        """Add a metric's images (without duplicates) and their percentile ranks."""
        if not len(self._prompts):
            return
        prompt = find_in_sorted(columns.prompt, self._prompts)
        known = np.flatnonzero(prompt >= 0)
        cells = np.ravel_multi_index((prompt[known], columns.generator[known]), self._images.shape)
        first, at = np.unique(cells, return_index=True)
        new = self._images.flat[first] == NO_ID_HASH
        self._images.flat[first[new]] = columns.image[known[at[new]]]
        self._rows.flat[first[new]] = columns.row[known[at[new]]]
        shown = self._images.flat[cells] == columns.image[known]
        of_metric = np.full(self._images.shape, np.nan)
        of_metric.flat[cells[shown]] = ranks[known[shown]]
        self._ranks.append(of_metric)

    def choose(self, max_images: int) -> list[list[HashAndRow]]:
        """Return the images of the prompts that differ most, in the order of the generators.

        Only prompts with several images count. Prompts with images by more generators come first. Ties are broken by
        the standard deviation of the generators' ranks, averaged over the metrics; the largest comes first.
        """
        if not self._ranks or self._images.shape[1] < 2 or not len(self._prompts):
            return []
        ranks = np.stack(self._ranks)
        sides = np.sort(
            np.argsort(-_average_finite(ranks, (0, 1)), kind="stable")[: min(MAX_GENERATORS_SIDE_BY_SIDE, max_images)]
        )
        images, rows, ranks = self._images[:, sides], self._rows[:, sides], ranks[:, :, sides]
        n_images = (images != NO_ID_HASH).sum(axis=1)
        deviations = np.sqrt(_average_finite((ranks - _average_finite(ranks, 2)[:, :, None]) ** 2, 2))
        order = np.lexsort((-_average_finite(deviations, 0), -n_images))
        n_prompts = min(MAX_PROMPTS, max_images // len(sides)) if len(sides) > 1 else 0
        return [
            [(int(image), int(row)) for image, row in zip(images[at], rows[at], strict=True) if image != NO_ID_HASH]
            for at in order[:n_prompts]
            if n_images[at] > 1
        ]


def _average_finite(values: Floats, axes: int | tuple[int, ...]) -> Floats:
    finite = np.isfinite(values)
    total = np.where(finite, values, 0.0).sum(axis=axes)
    return np.asarray(total / np.maximum(finite.sum(axis=axes), 1))


MAX_CARDS = 100
CANDIDATES_PER_IMAGE = 200
"""Number of candidates considered for each image of the gallery."""

ReasonKind = Literal["best", "worst", "highest", "lowest", "disagreed", "contradicted"]
"""Kind of reason for showing an image. `highest` and `lowest` are for metrics that do not rank images. `disagreed`
means that metrics disagree with each other, and `contradicted` that a metric contradicts people.
"""
KIND_WORDS: Mapping[ReasonKind, str] = {
    "best": "best",
    "worst": "worst",
    "highest": "highest",
    "lowest": "lowest",
    "disagreed": "disagreed on",
    "contradicted": "contradicts people",
}


class ImageKey(NamedTuple):
    """Generator and image id, which together identify an image in a run."""

    generator: str
    image_id: str


class Reason(NamedTuple):
    """Reason for showing an image in the gallery: its kind, the metric, and the size of a disagreement."""

    kind: ReasonKind
    metric: str
    text: str = ""
    """Size of the disagreement, as text; empty for other kinds."""


class Pick(NamedTuple):
    """An image chosen for a report, with its scores, its ranks and the reasons for choosing it."""

    key: ImageKey
    prompt_id: str
    scores: Mapping[str, float]
    ranks: Mapping[str, float]
    """Percentile ranks among all images of the run, by metric."""
    reasons: tuple[Reason, ...]
    rows: tuple[int, ...] = ()
    """Indices of the image's rows in the run's scores, over all metrics."""


class PickedImages(NamedTuple):
    """All images that a report shows: in the gallery, side by side, and where people contradict a metric."""

    gallery: Sequence[Pick] = ()
    side_by_side: Sequence[Sequence[Pick]] = ()
    """For each prompt, the images of several generators."""
    contradicted: Sequence[Pick] = ()

    def list_all(self) -> list[Pick]:
        sides = (pick for picks in self.side_by_side for pick in picks)
        return list({pick.key: pick for pick in (*self.gallery, *sides, *self.contradicted)}.values())


NOTHING_PICKED = PickedImages()


class GalleryQuotas(NamedTuple):
    """Number of images that each metric contributes to the gallery, and sampling rates for comparing ranks."""

    by_kind: Mapping[ReasonKind, int]
    """Number of images that each metric contributes, by kind of reason."""
    ends: tuple[ReasonKind, ReasonKind]
    """Kinds of the reasons for showing the lowest-scoring and the highest-scoring images."""
    metrics: frozenset[str]
    """Metrics that contribute images."""
    image_share: float
    """Fraction of the images, sampled by hash, whose ranks by different metrics are compared."""
    prompt_share: float
    """Fraction of the prompts, sampled by hash, for which images of different generators are compared."""


def compute_gallery_quotas(
    scores: RunScores, metrics: Sequence[str], max_images: int, *, ranking: bool = True
) -> GalleryQuotas:
    """Return the quotas for a gallery of at most `max_images`.

    `ranking` is True if the metrics rank images, and False if none of them does.
    """
    n_images = len(scores) // max(len(scores.metrics), 1)
    n_metrics = max(len([metric for metric in metrics if metric in scores.spans]), 1)
    share = min(max_images, MAX_CARDS) / n_metrics
    by_kind: dict[ReasonKind, int]
    if not ranking:
        lowest = max(1, round(0.5 * share))
        by_kind = {"lowest": lowest, "highest": max(0, int(share) - lowest)}
    elif n_metrics == 1:  # a single metric cannot disagree with others
        worst = max(1, round(0.6 * share))
        by_kind = {"worst": worst, "disagreed": 0, "best": max(0, int(share) - worst)}
    else:  # more of the worst images, because they teach most
        worst, best = max(1, int(0.45 * share)), max(1, int(0.25 * share))
        by_kind = {"worst": worst, "disagreed": max(1, int(share) - worst - best), "best": best}
    return GalleryQuotas(
        by_kind=by_kind,
        ends=("worst", "best") if ranking else ("lowest", "highest"),
        metrics=frozenset(metrics),
        image_share=MAX_COMPARED_IMAGES / max(n_images, 1),
        prompt_share=MAX_COMPARED_IMAGES / max(len(scores.prompts) * len(scores.generators), 1),
    )


class CandidateImages(NamedTuple):
    """Images that the gallery may show for one metric, and a sample of images for comparisons with other metrics."""

    ends: Mapping[ReasonKind, Sequence[HashAndRow]]
    """The lowest-scoring and the highest-scoring images, by kind."""
    others: Sequence[HashAndRow]
    """Images between the two ends, which are used if the ends do not fill their quotas."""
    sample: ScoreColumns
    ranks: Floats
    """Percentile ranks of the sampled images."""


class _ImageRanks:
    """Percentile ranks among all of a metric's images; the scores are kept on disk."""

    def __init__(self) -> None:
        self._worths = SpilledColumns()
        self._n_images = 0

    def add(self, columns: ScoreColumns, direction: int) -> None:
        """Add a generator's scored rows; `direction` is 1 if higher scores are better, else -1."""
        worth = direction * columns.score[~np.isnan(columns.score)]
        self._worths.append(np.sort(worth))
        self._n_images += len(worth)

    def compute_percentiles(self, worth: Floats) -> Floats:
        """Return the percentile ranks of images, given their scores, which must be negated if lower is better."""
        worse, equal = np.zeros(len(worth)), np.zeros(len(worth))
        order = np.argsort(worth)
        for number in range(len(self._worths)):
            column = self._worths.read(number)
            below = np.searchsorted(column, worth[order], "left")
            worse[order] += below
            equal[order] += np.searchsorted(column, worth[order], "right") - below
        return compute_percentile_rank(worse, equal, max(self._n_images, 1))


class ImageCollector:
    """Accumulator that selects a metric's images for the gallery; generators are added one after another."""

    def __init__(self, direction: int, quotas: GalleryQuotas) -> None:
        """Start without images; `quotas` limits the selection. `direction` is 1 if higher is better, else -1."""
        self._towards, self._quotas = direction, quotas
        self._ranks = _ImageRanks()
        self._generators = 0
        self._ends: dict[ReasonKind, list[ScoreColumns]] = {kind: [] for kind in quotas.ends}
        self._sample: list[ScoreColumns] = []

    def add(self, columns: ScoreColumns) -> None:
        self._ranks.add(columns, self._towards)
        columns = _drop_duplicates(columns)
        if not len(columns.row):
            return
        self._generators += 1
        worth = self._towards * columns.score
        for (kind, ends), order in zip(self._ends.items(), (worth, -worth), strict=True):
            ends.append(columns.select(_find_lowest(order, CANDIDATES_PER_IMAGE * max(self._quotas.by_kind[kind], 1))))
        is_drawn = convert_to_uniform(columns.image) < self._quotas.image_share
        self._sample.append(columns.select(is_drawn | (convert_to_uniform(columns.prompt) < self._quotas.prompt_share)))

    def collect(self) -> CandidateImages | None:
        """Return the images collected from all generators; None if no image with an id has a score."""
        if not self._generators:
            return None
        sample = _sort_by_row(self._sample)
        ends = {kind: self._choose_extreme_images(_sort_by_row(columns), kind) for kind, columns in self._ends.items()}
        left = sum(self._quotas.by_kind[kind] - len(chosen) for kind, chosen in ends.items())
        at_ends = np.array([image for chosen in ends.values() for image, _ in chosen], np.uint64)
        others = sample.select(~np.isin(sample.image, at_ends))
        others = _choose_evenly(others.select(np.argsort(convert_to_uniform(others.image))), self._generators, left)
        ranks = self._ranks.compute_percentiles(self._towards * sample.score)
        return CandidateImages(ends, others.list_image_rows(), sample, ranks)

    def _choose_extreme_images(self, columns: ScoreColumns, kind: ReasonKind) -> list[HashAndRow]:
        """Return the best images of the better half, or the worst of the worse half; none if all scores are equal."""
        worth, low = self._towards * columns.score, kind == self._quotas.ends[0]
        order = np.argsort(worth if low else -worth, kind="stable")
        ranks = self._ranks.compute_percentiles(worth[order])
        half = columns.select(order[ranks < 0.5 if low else ranks > 0.5])
        return _choose_evenly(half, len(np.unique(half.generator)), self._quotas.by_kind[kind]).list_image_rows()


def _drop_duplicates(columns: ScoreColumns) -> ScoreColumns:
    named = (columns.image != NO_ID_HASH) & ~np.isnan(columns.score)
    columns = columns if named.all() else columns.select(named)
    ordered = np.sort(columns.image)
    if (ordered[1:] == ordered[:-1]).any():
        columns = columns.select(np.sort(np.unique(columns.image, return_index=True)[1]))
    return columns


def _find_lowest(values: Floats, count: int) -> NDArray[np.intp]:
    if count >= len(values):
        return np.arange(len(values))
    low = np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])
    return np.sort(low[np.argsort(values[low], kind="stable")[:count]])


def _sort_by_row(columns: Sequence[ScoreColumns]) -> ScoreColumns:
    together = reduce(ScoreColumns.concatenate_with, columns)
    return together.select(np.argsort(together.row))


def pick_images(
    scores: RunScores,
    seen: Mapping[str, CandidateImages | None],
    quotas: GalleryQuotas,
    max_images: int,
    lower_is_better: Container[str] = (),
    each: OrderedMap = map_sequentially,
) -> PickedImages:
    """Return the images of the gallery, and the images of the prompts with the largest differences.

    The gallery shows the worst and the best images on each metric, and the images on which metrics disagree most. If no
    metric ranks images, it shows the lowest-scoring and the highest-scoring images instead. If these are fewer than
    their quotas, other images fill the gallery. No prompt is used twice for the same reason, and the gallery is divided
    among the generators. If there are more than MAX_COMPARED_IMAGES images, disagreements are sought only in a sample
    of about that size, drawn by hash.

    `seen` contains each metric's images, collected with the same `quotas`. The gallery and the side-by-side view each
    have at most `max_images` images, and never more than MAX_CARDS.
    """
    max_images = min(max_images, MAX_CARDS)
    scored = {metric: images for metric, images in seen.items() if images is not None}
    if not scored or max_images < 1:
        return NOTHING_PICKED
    disputed, differing = _DisputedImages(quotas.image_share), _DifferingPrompts(scores, quotas.prompt_share)
    for metric, own in scored.items():
        disputed.add(metric, own.sample, own.ranks)
        differing.add(own.sample, own.ranks)
    chosen: dict[tuple[ReasonKind, str], list[tuple[HashAndRow, Reason]]] = {
        (kind, metric): [(image_row, Reason(kind, metric)) for image_row in own.ends[kind]]
        for metric, own in scored.items()
        for kind in own.ends
    }
    count = quotas.by_kind.get("disagreed", 0)
    chosen |= {("disagreed", metric): disputed.choose(metric, count) for metric in scored}
    reasons: dict[int, list[Reason]] = {}
    rows: dict[int, int] = {}
    for choices in zip_longest(*(chosen[kind, metric] for kind in quotas.by_kind for metric in scored)):
        # The first choice of each kind and metric comes before any second choice.
        for (image, row), reason in filter(None, choices):
            reasons.setdefault(image, []).append(reason)
            rows.setdefault(image, row)
    for image, row in (other for own in scored.values() for other in own.others):
        reasons.setdefault(image, [])
        rows.setdefault(image, row)
    gallery = list(reasons)[:max_images]
    sides = differing.choose(max_images)
    rows = dict(image_row for prompt in sides for image_row in prompt) | rows
    wanted = dict.fromkeys([*gallery, *(image for prompt in sides for image, _ in prompt)])
    picks = _make_picks(
        {image: reasons.get(image, ()) for image in wanted}, rows, scores, list(scored), lower_is_better, each
    )
    return PickedImages(
        [picks[image] for image in gallery], [[picks[image] for image, _ in prompt] for prompt in sides]
    )


def pick_contradicted_images(
    images: Sequence[ContradictedImage],
    scores: RunScores,
    metrics: Sequence[str],
    lower_is_better: Container[str] = (),
    each: OrderedMap = map_sequentially,
) -> list[Pick]:
    """Return the given images that are in the run, with their scores on all metrics."""
    if not images:
        return []
    ids = (hash_ids([getattr(image, name) for image in images]) for name in ("image_id", "prompt_id", "generator"))
    reasons: dict[int, list[Reason]] = {}
    for image, mixed in zip(images, mix_ids(*ids).tolist(), strict=True):
        reasons.setdefault(mixed, []).append(Reason("contradicted", image.metric, image.why))
    return list(_make_picks(reasons, {}, scores, metrics, lower_is_better, each).values())


class _DisputedImages:
    """Accumulator that finds the images on which metrics disagree most, in a sample drawn by hash."""

    def __init__(self, share: float) -> None:
        """Start without ranks; only the fraction `share` of the images, sampled by hash, will be considered."""
        self._share = share
        self._images: ScoreColumns | None = None
        """The sample without duplicates, in order of appearance."""
        self._ranks: dict[str, pd.Series] = {}
        """Percentile ranks by metric and image."""

    def add(self, metric: str, columns: ScoreColumns, ranks: Floats) -> None:
        drawn = convert_to_uniform(columns.image) < self._share
        columns = columns.select(drawn)
        self._ranks[metric] = pd.Series(ranks[drawn], columns.image)
        if self._images is None:
            self._images = columns
        else:
            new = columns.select(~np.isin(columns.image, self._images.image))
            self._images = self._images.concatenate_with(new)

    def choose(self, metric: str, count: int) -> list[tuple[HashAndRow, Reason]]:
        """Return the images whose rank on a metric is farthest from the other metrics' median, farthest first."""
        if self._images is None or len(self._ranks) < 2:
            return []
        ranks = pd.DataFrame({name: own.reindex(self._images.image) for name, own in self._ranks.items()})
        others = ranks.drop(columns=metric).median(axis=1)
        apart = (ranks[metric] - others).abs().to_numpy()
        known = np.flatnonzero(apart > 0)
        farthest = known[np.argsort(-apart[known], kind="stable")]
        generators = len(np.unique(self._images.generator[known]))
        chosen = []
        for image, row in _choose_evenly(self._images.select(farthest), generators, count).list_image_rows():
            text = f"percentile rank {ranks[metric][image]:.0%} by {metric}, {others[image]:.0%} by the other metrics"
            chosen.append(((image, row), Reason("disagreed", metric, text)))
        return chosen


def _choose_evenly(ordered: ScoreColumns, generators: int, count: int) -> ScoreColumns:
    """Return up to `count` of the images, in order: one per prompt, and about equally many from each generator."""
    share = -(-count // generators) if generators else 0
    n_chosen: Counter[int] = Counter()
    chosen: dict[int, int] = {}
    candidates = ordered.select(slice(CANDIDATES_PER_IMAGE * max(count, 1)))
    pairs = zip(candidates.prompt.tolist(), candidates.generator.tolist(), strict=True)
    for index, (prompt, generator) in enumerate(pairs):
        if len(chosen) < count and prompt not in chosen and n_chosen[generator] < share:
            chosen[prompt] = index
            n_chosen[generator] += 1
    return candidates.select(np.array([*chosen.values()], np.intp))


class _Lookup(NamedTuple):
    """Images to look up in a run's scores, and the metrics on which to rank them."""

    scores: RunScores
    images: Hashes
    """Hashes of the images, ascending."""
    ranking: Sequence[str]
    """Metrics that rank images."""
    lower_is_better: Container[str]


def _find_images(lookup: _Lookup, metric: str) -> tuple[list[HashAndRow], dict[int, tuple[float, float]]]:
    """Return a metric's rows for the images, and each image's score and rank if the metric ranks images."""
    ranks, rows, known = _ImageRanks(), list[HashAndRow](), list[ScoreColumns]()
    direction = get_direction(metric, lookup.lower_is_better)
    for _, columns in lookup.scores.iterate_generators(metric):
        rows += columns.select(find_in_sorted(columns.image, lookup.images) >= 0).list_image_rows()
        if metric in lookup.ranking:
            ranks.add(columns, direction)
            columns = _drop_duplicates(columns)
            known.append(columns.select(find_in_sorted(columns.image, lookup.images) >= 0))
    if not known:
        return rows, {}
    images = reduce(ScoreColumns.concatenate_with, known)
    values = zip(images.score.tolist(), ranks.compute_percentiles(direction * images.score).tolist(), strict=True)
    return rows, dict(zip(images.image.tolist(), values, strict=True))


def _make_picks(
    reasons: Mapping[int, Sequence[Reason]],
    row_of: Mapping[int, int],
    scores: RunScores,
    ranking: Sequence[str],
    lower_is_better: Container[str],
    each: OrderedMap,
) -> dict[int, Pick]:
    """Return the images that are in the run, keyed by hash, with their scores and ranks on the `ranking` metrics.

    `row_of` maps images to one of their rows, where known.
    """
    rows: dict[int, list[int]] = {image: [] for image in reasons}
    values: dict[int, dict[str, tuple[float, float]]] = {image: {} for image in reasons}
    lookup = _Lookup(scores, np.sort(np.array(list(reasons), np.uint64)), ranking, lower_is_better)
    found = each(_find_images, scores.metrics, shared=lookup)
    for metric, (own_rows, own_values) in zip(scores.metrics, found, strict=True):
        for image, row in own_rows:
            rows[image].append(row)
        for image, score_and_rank in own_values.items():
            values[image][metric] = score_and_rank
    known = [image for image in reasons if rows[image]]
    ids = scores.read_ids([row_of.get(image, min(rows[image])) for image in known])
    return {
        image: Pick(
            key=ImageKey(row.generator, str(row.image_id)),
            prompt_id=str(row.prompt_id),
            scores={metric: values[image][metric][0] for metric in ranking if metric in values[image]},
            ranks={metric: values[image][metric][1] for metric in ranking if metric in values[image]},
            reasons=tuple(reasons[image]),
            rows=tuple(sorted(rows[image])),
        )
        for image, row in zip(known, ids, strict=True)
    }
