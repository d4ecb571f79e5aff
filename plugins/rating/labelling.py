"""Plans which images to rate next to decide which generators are better, given a metric's scores for all images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
from numpy.typing import NDArray

from plumbline.operators.base.bounds import Probability
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.base.sentences import ShownTable, format_number, format_percent
from plumbline.operators.metaeval.matching import ID_COLUMNS, complete_ids
from plumbline.operators.metaeval.preferences import average_choices
from plumbline.operators.metaeval.ratings import average_ratings
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.statistics.confidence_levels import CONFIDENCE, SIGNIFICANCE
from plumbline.operators.statistics.prediction_powered import powered_mean
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.metaeval.release_selection import open_release
from plumbline.pipelines.metaeval.releases.release import Release
from plumbline.pipelines.metaeval.releases.scores import read_lower_is_better_metrics, read_scores, select_metrics
from plumbline.pipelines.metaeval.scores_source import ScoresSource
from plumbline.plugins.rating.label_plan import (
    PairLabels,
    estimate_pairs,
    format_pair,
    order_prompts,
    pivot_by_generator,
    select_images,
    subtract_pairs,
)

Floats = NDArray[np.float64]

LABEL_COUNTS = (12, 16, 20, 25, 30, 40, 50)
"""Numbers of rated prompts for which coverage is measured."""
CHOICE_RATING_LIMITS = (-0.5, 0.5)
"""Rating limits for choices between two images, in which the preferred image is better by 1."""
N_DRAWS = 1000
"""Number of random sets of rated prompts per pair and metric when measuring coverage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelsConfig(ScoresSource):
    """Settings of jobs.labels: the existing ratings, a metric's scores for all images, and the required certainty."""

    protocol: ProtocolConfig
    output: str = "labels.csv"
    """CSV file for the images to rate next, with the columns prompt_id, generator and image_id."""
    metrics: tuple[str, ...] = ()
    """The metric whose scores narrow the intervals, such as [vqascore]; not needed if there is only one metric."""
    generators: tuple[str, ...] = ()
    """Two or more generators to compare, such as [a, b]; empty for all."""
    alpha: Probability = SIGNIFICANCE
    """Probability that any interval is wrong, shared evenly by all pairs and valid no matter how often you check."""
    chance: Probability = 0.8
    """Probability that the requested ratings show a difference, assuming that it is as large as measured."""
    seed: int = 0
    """Seed for the random order of the prompts to rate."""

    def __post_init__(self) -> None:
        ScoresSource.__post_init__(self)
        if len(self.generators) == 1:
            raise ConfigError(
                f"generators: expected two or more, got only {self.generators[0]!r}; name another, or leave them out"
            )


class LabelPlan(NamedTuple):
    """Estimates for all pairs of generators, and the images to rate next."""

    metric: str
    pairs: Sequence[PairLabels]
    next_prompts: pa.Table
    """Images to rate, in this order, with the columns prompt_id, generator and image_id."""
    limits: tuple[float, float]
    """Lowest and highest rating that the intervals assume, or CHOICE_RATING_LIMITS for choices between two images."""


def plan_labels(config: LabelsConfig) -> LabelPlan:
    """Estimate every pair's difference, and list the images to rate next for the undecided pairs.

    Raises ConfigError if the metric or a generator is missing, SourceError if no scored image is rated.
    """
    release = open_release(config.protocol, config.storage)
    scores, falls = _read_scores(config, release)
    metric = str(scores.column("metric")[0].as_py())
    predicted = pivot_by_generator(scores.to_pandas())
    generators = config.generators or tuple(str(name) for name in predicted)
    for name in generators:
        if name not in predicted:
            raise ConfigError(f"generators: {metric} has no scores for {name!r}; it scored {', '.join(predicted)}")
    differences = subtract_pairs(get_direction(metric, {metric} if falls else ()) * predicted[list(generators)])
    people = _subtract_ratings(release, scores, generators).reindex(
        index=differences.index, columns=differences.columns
    )
    if not people.notna().to_numpy().any():
        raise SourceError(
            f"{config.protocol.path}: none of the rated images was scored by {metric}; use the same ids in both"
        )
    low, high = _find_limits(release, config.protocol)
    found = list(estimate_pairs(people, differences, 1 - config.alpha / len(differences.columns), high - low))
    return LabelPlan(metric, found, _select_images(found, scores, release, config), (low, high))


def _find_limits(release: Release, protocol: ProtocolConfig) -> tuple[float, float]:
    """Return the lowest and highest rating of the scale, as set in the protocol or else found in the ratings.

    Returns CHOICE_RATING_LIMITS for choices between two images, which are already differences. Raises SourceError if
    all ratings are equal.
    """
    if len(release.preferences):
        return CHOICE_RATING_LIMITS
    if protocol.rating_range is not None:
        return protocol.rating_range
    ratings = pc.min_max(release.ratings.column("rating")).as_py()
    if ratings["min"] == ratings["max"]:
        raise SourceError(
            f"{protocol.path}: all ratings are {format_number(ratings['min'])}, which does not show how far the scale "
            "goes; set protocol.rating_range=[min,max]"
        )
    return ratings["min"], ratings["max"]


def _subtract_ratings(release: Release, scores: pa.Table, generators: Sequence[str]) -> pd.DataFrame:
    """Return the differences between people's ratings, or the means of their choices (prompts x pairs of generators).

    Raises ConfigError if the ratings belong to several templates, whose scales differ.
    """
    judged = (release.ratings, release.preferences)
    asked = list(dict.fromkeys(name for table in judged for name in table.column("template").unique().to_pylist()))
    if len(asked) > 1:
        raise ConfigError(
            f"protocol.templates: expected one of {', '.join(asked)}; set protocol.templates=[{asked[0]}]"
        )
    ids = scores.select(ID_COLUMNS).to_pandas()
    if len(release.preferences):
        return average_choices(complete_ids(complete_ids(release.preferences, ids, "a"), ids, "b"))
    rated = average_ratings(complete_ids(release.ratings, ids), "image").rename(columns={"human": "score"})
    return subtract_pairs(pivot_by_generator(rated).reindex(columns=list(generators)))


def _read_scores(config: LabelsConfig, release: Release) -> tuple[pa.Table, bool]:
    """Return the scores of the selected metric, and True if lower scores are better."""
    falling = frozenset(config.protocol.falling)
    scores = release.scores
    if (table := config.locate_scores()) is not None:
        scores, falling = read_scores(table), falling | read_lower_is_better_metrics(table)
    elif not len(scores):
        raise ConfigError(
            f"scores: expected a metric's scores, but protocol {config.protocol.name} has none; set run=latest or "
            "scores=PATH"
        )
    metrics = scores.column("metric").unique().to_pylist()
    if len(config.metrics or metrics) > 1:
        raise ConfigError(f"metrics: expected one of {', '.join(metrics)}; set metrics=[NAME]")
    (metric,) = config.metrics or metrics
    return select_metrics(scores, [metric]), metric in falling


def _select_images(pairs: Sequence[PairLabels], scores: pa.Table, release: Release, config: LabelsConfig) -> pa.Table:
    """Return the unrated images that undecided pairs need, with prompts in random order balanced by skill."""
    scored = scores.to_pandas().dropna(subset=["score", "prompt_id", "generator"])
    images = {(row.prompt_id, row.generator): row.image_id for row in scored.itertuples()}
    prompts = sorted({prompt for prompt, _ in images})
    order = order_prompts(prompts, release.skills, config.seed)
    wanted = select_images(pairs, prompts, order, config.chance)
    return pa.table(
        {
            "prompt_id": pa.array([prompt for prompt, _ in wanted], pa.string()),
            "generator": pa.array([name for _, name in wanted], pa.string()),
            "image_id": pa.array([images[key] for key in wanted], pa.string(), from_pandas=True),
        }
    )


def write_next_images(config: LabelsConfig, plan: LabelPlan) -> None:
    """Write the images to rate next as CSV."""
    sink = pa.BufferOutputStream()
    pcsv.write_csv(plan.next_prompts, sink)
    place = config.storage.locate(config.output, writable=True)
    place.write(sink.getvalue().to_pybytes())


def tabulate_pairs(config: LabelsConfig, plan: LabelPlan) -> ShownTable:
    """Return a table with each pair's estimate and how many more of its prompts must be rated."""
    return ShownTable(
        f"{config.protocol.name}: people's ratings with {plan.metric}",
        "Difference: the first generator's mean rating minus the second's, by prediction-powered inference. The "
        f"intervals of all pairs together are right with {1 - config.alpha:.0%} probability, however often you check "
        f"while ratings arrive{_describe_limits(config, plan)}. This requires that the rated prompts were chosen at "
        "random. "
        "Worth: the number of ratings without the metric that are as informative as one rating with it.",
        ("pair", "prompts rated", "worth", "difference", "interval", "better", "further prompts"),
        [format_pair(pair, config.chance) for pair in plan.pairs],
    )


def _describe_limits(config: LabelsConfig, plan: LabelPlan) -> str:
    if config.protocol.rating_range is not None or plan.limits == CHOICE_RATING_LIMITS:
        return ""
    low, high = plan.limits
    return (
        f", if ratings range from {format_number(low)} to {format_number(high)}, as they do so far (set "
        f"protocol.rating_range to "
        "change this)"
    )


def measure_coverage(protocols: Sequence[ProtocolConfig], storage: StorageConfig, seed: int = 0) -> ShownTable:
    """Return a table of how often the intervals cover the true difference, by number of labels.

    The rated prompts are drawn at random from the ratings of each protocol.
    """
    rows = []
    random = np.random.default_rng(seed)
    for protocol in protocols:
        release = open_release(protocol, storage)
        pools = list(_find_differences(release))
        if not pools:
            continue
        low, high = _find_limits(release, protocol)
        drawn = [_measure_intervals(people, metric, high - low, random) for people, metric in pools]
        for place, labels in enumerate(LABEL_COUNTS):
            covered, missed, worth = (np.array([pool[place][part] for pool in drawn]) for part in range(3))
            rows.append(
                (
                    protocol.name,
                    str(len(drawn)),
                    str(labels),
                    format_percent(float(covered.mean())),
                    format_percent(float(missed.mean())),
                    format_percent(float(np.quantile(missed, 0.9))),
                    format_number(float(np.median(worth)), 2),
                    f"{format_number(float(worth.min()), 2)} to {format_number(float(worth.max()), 2)}",
                )
            )
    return ShownTable(
        "Intervals of people's ratings combined with a metric",
        f"Each pair of generators and each released metric has {N_DRAWS} draws. A draw has this many rated prompts, "
        "including those of the rows above, and as many scored prompts as the release contains. Covered: how often "
        "the interval covers the difference over all prompts. Missed so far: how often this interval or one above "
        f"missed it (at most {1 - CONFIDENCE:.0%} by design), as mean and ninetieth percentile over pairs and metrics. "
        "Worth: the number of ratings without the metric that are as informative as one rating with it, as median and "
        "extremes.",
        ("ratings", "pairs x metrics", "prompts rated", "covered", "missed so far", "ninetieth", "worth", "from"),
        rows,
    )


def _find_differences(release: Release) -> Iterator[tuple[Floats, Floats]]:
    if not len(release.ratings) or not len(release.scores):
        return
    people = pivot_by_generator(average_ratings(release.ratings, "image").rename(columns={"human": "score"}))
    for _, of_metric in release.scores.to_pandas().groupby("metric", sort=False):
        scored = pivot_by_generator(of_metric).reindex(index=people.index, columns=people.columns)
        for a, b in combinations(people, 2):
            both = pd.DataFrame({"people": people[a] - people[b], "metric": scored[a] - scored[b]}).dropna()
            yield both["people"].to_numpy(np.float64), both["metric"].to_numpy(np.float64)


def _measure_intervals(
    people: Floats, metric: Floats, max_difference: float, random: np.random.Generator
) -> list[tuple[float, float, float]]:
    """Return the coverage, the miss rate and the worth for each number of labels in LABEL_COUNTS.

    Coverage is the fraction of draws whose interval covers the mean. The miss rate is the fraction of draws whose
    interval missed the mean at this or a smaller number of labels. Worth is the median number of labels without the
    metric that are as informative as one label with it.
    """
    rated = random.integers(len(people), size=(N_DRAWS, LABEL_COUNTS[-1]))
    others = metric[random.integers(len(people), size=(N_DRAWS, len(people)))]
    missed, measured = np.zeros(N_DRAWS, bool), []
    for labels in LABEL_COUNTS:
        first = rated[:, :labels]
        found = powered_mean(people[first], metric[first], others)
        misses = found.excludes(people.mean(), CONFIDENCE, max_difference)
        missed |= misses
        measured.append((1 - float(misses.mean()), float(missed.mean()), float(np.median(found.worth))))
    return measured
