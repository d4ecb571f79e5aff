"""Agreement of scores with ratings over images, and of raters with each other; nan if it is undefined."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import multimode
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.bootstrap import CORRELATIONS, UNDEFINED, Interval, Prompts, student_interval
from plumbline.operators.statistics.options import Level, Sampling
from plumbline.operators.statistics.rounding import exact_means, merge_equal, round_to, step_of

Floats = NDArray[np.float64]

MIN_DIFFERING = 12
"""Prompts that need a rating other than the commonest one for an interval of alpha.

Other statistics need fewer. But if nearly all ratings are equal, few prompts have any disagreement.
"""
Statistic = Callable[[Floats, Floats], float]


def auroc(human: Floats, metric: Floats) -> float:
    """Return the probability that an image with the higher label has the higher score; ties count half.

    It is nan if all labels are equal. Raises ValueError if there are more than two labels.
    """
    labels = np.unique(human)
    if len(labels) > 2:
        raise ValueError(f"AUROC needs two labels, found {len(labels)}")
    if len(labels) < 2:
        return math.nan
    low, high = metric[human == labels[0]], metric[human == labels[1]]
    return float(scipy.stats.mannwhitneyu(high, low, method="asymptotic").statistic / (len(low) * len(high)))


def _nan_if_constant(correlate: Callable[[Floats, Floats], Any]) -> Statistic:
    def statistic(human: Floats, metric: Floats) -> float:
        varies = len(human) > 1 and bool(np.ptp(human) > 0) and bool(np.ptp(metric) > 0)
        return float(correlate(human, metric)) if varies else math.nan

    return statistic


def _spearman(human: Floats, metric: Floats) -> float:
    """Return the same as scipy's function, which spends most of its time on a p-value."""
    return float(np.corrcoef(scipy.stats.rankdata([human, metric], axis=1))[0, 1])


def _kendall(variant: Literal["b", "c"]) -> Callable[[Floats, Floats], float]:
    return lambda human, metric: float(scipy.stats.kendalltau(human, metric, variant=variant).statistic)


def _kendall_a(human: Floats, metric: Floats) -> float:
    """Return tau-b times the root of the product of both sides' shares of untied pairs: its divisor is all pairs."""

    def untied_share(values: Floats) -> float:
        counts, n = np.unique(values, return_counts=True)[1], len(values)
        return 1 - float((counts * (counts - 1)).sum() / (n * (n - 1)))

    return _kendall("b")(human, metric) * math.sqrt(untied_share(human) * untied_share(metric))


STATISTICS: Mapping[str, Statistic] = {
    "pearson": _nan_if_constant(lambda human, metric: scipy.stats.pearsonr(human, metric).statistic),
    "spearman": _nan_if_constant(_spearman),
    "kendall_a": _nan_if_constant(_kendall_a),
    "kendall_b": _nan_if_constant(_kendall("b")),
    "kendall_c": _nan_if_constant(_kendall("c")),
    "auroc": auroc,
}
"""Statistics in [-1, 1], except AUROC in [0, 1].

Pearson's r; Spearman's rho with average ranks for ties; Kendall's tau-a (concordant minus discordant pairs, divided by
all pairs), tau-b, which corrects for ties on both sides, and Stuart's tau-c, for sides with different numbers of
values.
"""


def spearman_viescore(human: Floats, metric: Floats, generators: NDArray[np.int64]) -> float:
    """Return Spearman's rho within each generator, averaged as VIEScore's release does; nan if any rho is undefined.

    The release means to average Fisher's z, but averages the correlations themselves and then takes the hyperbolic
    tangent. So the result is nearer to 0 than the mean. Source: TIGER-AI-Lab/VIEScore, average_correlation in
    paper_implementation/analyze_json.ipynb.
    """
    within = [generators == code for code in np.unique(generators)]
    return _average_viescore(STATISTICS["spearman"](human[rows], metric[rows]) for rows in within)


def raters_viescore(ratings: pd.DataFrame) -> float:
    """Return how well people agree by `spearman_viescore`, from a long table (unit, generator, rater, rating).

    Each rater is compared with the mean of the others, and the average is taken over raters and then over generators
    (iterate_all_results_human2human in the same release).
    """
    return _average_viescore(
        _average_viescore(_correlate_with_others(rows)) for _, rows in ratings.groupby("generator", sort=False)
    )


def _correlate_with_others(ratings: pd.DataFrame) -> Iterator[float]:
    """Yield the correlation of each rater with the mean of the other raters."""
    wide = ratings.pivot(index="unit", columns="rater", values="rating").to_numpy(np.float64)
    units, raters = wide.shape
    for rater in range(raters):
        others = np.delete(wide, rater, axis=1)
        means = exact_means(others.ravel(), np.repeat(np.arange(units), raters - 1), units)
        both = np.isfinite(wide[:, rater]) & np.isfinite(means)
        yield STATISTICS["spearman"](wide[both, rater], merge_equal(means[both]))


def _average_viescore(correlations: Iterable[float]) -> float:
    values = list(correlations)
    return math.tanh(math.fsum(values) / len(values)) if values else math.nan


UNSURE = "unsure"


def krippendorff_alpha(ratings: pd.DataFrame, level: Level) -> float:
    """Return Krippendorff's alpha of a long table (unit, rater, rating), in [-1, 1]; ratings may be missing.

    It is nan if no unit has two ratings, or if all ratings of such units are equal: raters who agree cannot then be
    distinguished from raters who always answer the same. Source: Krippendorff 2018, Content Analysis, chapter 12; used
    in Gecko, section 4.1.
    """
    pairable = ratings[ratings.groupby("unit")["rating"].transform("count") > 1]
    if pairable["rating"].nunique() < 2:
        return math.nan
    import evalica  # takes a second, and only ratings of several people need it

    wide = ratings.pivot(index="rater", columns="unit", values="rating")
    try:
        return float(evalica.alpha(wide, distance=level).alpha)
    except evalica.InsufficientRatingsError:
        return math.nan


def alpha_interval(ratings: pd.DataFrame, sampling: Sampling) -> Interval:
    """Return the interval of the ordinal `krippendorff_alpha` of a long table (unit, prompt_id, rater, rating).

    Prompts are resampled, because the units of a prompt are not independent. The interval is undefined if fewer than
    MIN_DIFFERING prompts have any rating other than the commonest one.
    """
    values = np.unique(ratings["rating"], return_inverse=True)[1].astype(np.float64)
    if Prompts(ratings["prompt_id"].to_list()).differing(values) < MIN_DIFFERING:
        return UNDEFINED
    prompts = Prompts(ratings["prompt_id"].drop_duplicates().to_list(), sampling)
    coincidences = _count_coincidences(ratings)
    drawn = prompts.multiplicities() @ coincidences.reshape(prompts.count, -1)
    resampled = _alphas(drawn.reshape(-1, *coincidences.shape[1:]))
    alpha = float(_alphas(coincidences.sum(axis=0)))
    return student_interval(alpha, resampled, prompts.count, CORRELATIONS)


def _count_coincidences(ratings: pd.DataFrame) -> Floats:
    """Count how often two raters gave a unit each pair of values, as (prompts in order of their ids, values, values).

    Each unit weighs 1 / (its number of ratings - 1).
    """
    values = np.unique(ratings["rating"], return_inverse=True)[1]
    prompts, prompt_codes = np.unique(ratings["prompt_id"].astype(str), return_inverse=True)
    units, first, unit_codes = np.unique(ratings["unit"].astype(str), return_index=True, return_inverse=True)
    counts = np.zeros((len(units), int(values.max(initial=0)) + 1))
    np.add.at(counts, (unit_codes, values), 1)
    pairable = counts.sum(axis=1) > 1
    counts, owners = counts[pairable], prompt_codes[first][pairable]
    both = counts[:, :, None] * counts[:, None, :] - counts[:, :, None] * np.eye(counts.shape[1])
    summed = np.zeros((len(prompts), *both.shape[1:]))
    np.add.at(summed, owners, both / (counts.sum(axis=1) - 1)[:, None, None])
    return summed


def _alphas(coincidences: Floats) -> Floats:
    """Return the ordinal alpha of each matrix of coincidences (..., values, values).

    It is nan if nothing coincides, and 1 if there is only one value.
    """
    margins = coincidences.sum(axis=-1)
    total = margins.sum(axis=-1)
    ranks = margins.cumsum(axis=-1) - margins / 2
    distances = (ranks[..., :, None] - ranks[..., None, :]) ** 2
    observed = (coincidences * distances).sum(axis=(-1, -2))
    expected = (margins[..., :, None] * margins[..., None, :] * distances).sum(axis=(-1, -2))
    with np.errstate(invalid="ignore", divide="ignore"):
        alphas = np.where(expected > 0, 1 - (total - 1) * observed / expected, 1.0)
    return np.where(total > 0, alphas, math.nan)


def majority_vote(votes: Sequence[str | None]) -> str:
    """Return the commonest vote; `unsure` on a tie or without votes (Gecko, App. D.1)."""
    most = multimode(vote for vote in votes if vote is not None)
    return most[0] if len(most) == 1 else UNSURE


def reliable_prompts(parts: pd.DataFrame, *, share: float = 0.5) -> set[str]:
    """Return the prompts whose raters agree for every generator and template (Gecko, section 4.1).

    A prompt is reliable if its disagreement is below `share` of the largest of all prompts, for each generator and
    template that was rated. If all raters agree about all prompts (largest 0), every prompt is reliable. A prompt
    without any rating (all unsure) in some template is not. Ratings without a generator count as one generator's.

    Args:
        parts: Raters' answers about each image, word or question, in columns prompt_id, generator, template, image_id,
            part, rater and rating.
        share: Fraction of the largest disagreement.
    """
    by = ["generator", "template"]
    disagreement = _measure_disagreement(parts, [*by, "prompt_id"])
    largest = disagreement.groupby(by, dropna=False)["variance"].transform("max")
    variances = disagreement["variance"].to_numpy(np.float64)
    excess = round_to(variances - share * largest.to_numpy(np.float64), step_of(variances))
    disagreement["agrees"] = (excess < 0) | ((largest == 0) & disagreement["variance"].notna())
    n_rated = parts[by].drop_duplicates().shape[0]
    agreed = disagreement.groupby("prompt_id")["agrees"].agg(["all", "count"])
    return set(agreed.index[agreed["all"] & (agreed["count"] == n_rated)].astype(str))


def _measure_disagreement(parts: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the `variance` between raters per value of the keys: its mean over images, words or questions, or nan."""
    units = parts.groupby([*keys, "image_id", "part"], dropna=False)
    ratings = parts["rating"].astype(np.float64)
    above = merge_equal((ratings - units["rating"].transform("min")).to_numpy())  # exactly 0 if ratings are equal
    unit_codes = units.ngroup().to_numpy()
    variance = pd.Series(above).groupby(unit_codes).var(ddof=0)
    owners = parts.assign(unit=unit_codes).drop_duplicates("unit").set_index("unit")[list(keys)]
    groups = owners.assign(variance=variance).groupby(list(keys), dropna=False)
    means = exact_means(groups.obj["variance"].to_numpy(), groups.ngroup().to_numpy(), groups.ngroups)
    return groups.size().index.to_frame(index=False).assign(variance=means)
