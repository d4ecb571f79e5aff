"""Chooses which generators a sweep's pairwise judges compare, and finds their pairs of images."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.metrics.metric import Metric, PairSelection
from plumbline.operators.results.summary import OVERALL
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.pairs import GeneratorPair, index_pairs
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.runs import read_newest_runs
from plumbline.pipelines.store.store import Store


class SelectionSize(NamedTuple):
    """Number of pairs that one value of the `pairs` option selects, including pairs that were compared before."""

    pairs: str
    """Value of the metric's option `pairs`, with the options that belong to it."""
    generators: int
    """Number of pairs of generators."""
    images: int
    """Number of pairs of images."""


def measure_selections(counts: Mapping[GeneratorPair, int], selection: PairSelection) -> list[SelectionSize]:
    """Return the size of every kind of selection; `counts` maps each pair of generators to its number of image pairs.

    Without a configured baseline, the first generator is used. The size of `neighbours` is an estimate, because the
    ranking is not read.
    """
    generators = sorted({generator for both in counts for generator in both})
    baseline, places = selection.baseline or generators[0], min(selection.neighbours, len(generators) - 1)
    with_baseline = [count for both, count in counts.items() if baseline in both]
    adjacent = sum(len(generators) - place for place in range(1, places + 1))
    return [
        SelectionSize("all, or at most for active", len(counts), sum(counts.values())),
        SelectionSize(f"baseline, baseline={baseline}", len(with_baseline), sum(with_baseline)),
        SelectionSize(
            f"neighbours, neighbours={places}", adjacent, round(adjacent * sum(counts.values()) / len(counts))
        ),
    ]


def add_pairs(
    sources: Sources, metrics: Mapping[str, Metric], benchmark: str, store: Store, cache: ImageFileCache
) -> Sources:
    """Return the sources with the pairs of images that pairwise metrics compare; all metrics compare the same pairs.

    Raise ConfigError if there are no pairs, or if the choice of generators does not fit the benchmark.
    """
    selections = ((name, metric.pair_selection) for name, metric in metrics.items())
    name, selection = next((both for both in selections if both[1] is not None), ("", None))
    if selection is None:
        return sources
    generators = sorted(sources.generators)
    if len(generators) < 2:
        found = f"one, {generators[0]!r}" if generators else "none"
        raise ConfigError(
            f"metrics.{name}: it compares images from two generators, but the benchmark has {found}; add another, or "
            "use a metric that scores single images"
        )
    compared = _choose_generator_pairs(f"metrics.{name}", selection, generators, benchmark, store)
    index = index_pairs(sources.image_shards, cache)
    pairs = index.make_shards(compared)
    if not pairs:
        raise ConfigError(
            f"metrics.{name}: no prompt has images by two of the generators {', '.join(generators)}; check that their "
            "rows have the same prompt ids"
        )
    return sources._replace(pairs=pairs, pair_counts=index.count_pairs())


def _choose_generator_pairs(
    key: str, selection: PairSelection, generators: Sequence[str], benchmark: str, store: Store
) -> list[GeneratorPair]:
    everything = list(combinations(generators, 2))
    if selection.baseline is not None:
        check_known(f"{key}.baseline", selection.baseline, generators)
        return [both for both in everything if selection.baseline in both]
    if selection.ranked_by is None:
        return everything
    ranking = _read_ranking(key, selection.ranked_by, benchmark, store)
    unranked = [generator for generator in generators if generator not in ranking]
    if unranked:
        raise ConfigError(
            f"{key}.ranked_by: the newest run with {selection.ranked_by} has no mean for {unranked[0]!r}; run a sweep "
            f"of {selection.ranked_by} over all generators first"
        )
    place = {generator: number for number, generator in enumerate(one for one in ranking if one in generators)}
    return [(one, other) for one, other in everything if abs(place[one] - place[other]) <= selection.neighbours]


def _read_ranking(key: str, ranked_by: str, benchmark: str, store: Store) -> list[str]:
    """Return the generators of the benchmark's newest run that has the metric, best first."""
    for run in read_newest_runs(store, benchmark):
        if run.manifest is not None and ranked_by in run.manifest.get("metrics", ()):
            summary = store.read_table(f"runs/{run.run_id}/summary.parquet").to_pylist()
            return [
                row["generator"]
                for row in summary
                if row["metric"] == ranked_by and row["skill"] == OVERALL and row["mean"] is not None
            ]
    raise ConfigError(
        f"{key}.ranked_by: no run of {benchmark} in {store.place.url} has the metric {ranked_by!r}; run a sweep with "
        f"metric=[{ranked_by}] first"
    )
