"""Measures how well scores agree with ratings, and raters with each other; nan if undefined."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import multimode
from typing import Any

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from plumbline.operators.base.extensions import explain_missing_extra
from plumbline.operators.statistics.bootstrap import (
    CORRELATIONS,
    UNDEFINED_INTERVAL,
    Interval,
    Prompts,
    compute_student_interval,
)
from plumbline.operators.statistics.options import Level, Sampling
from plumbline.operators.statistics.rounding import choose_step, compute_exact_means, merge_equal, round_to_step

Floats = NDArray[np.float64]
Statistic = Callable[[Floats, Floats], float]

# An interval of alpha requires this number of prompts with a rating other than the commonest one. Other statistics need
# fewer, but if nearly all ratings are equal, few prompts have any disagreement.
MIN_DIFFERING_PROMPTS = 12
UNSURE = "unsure"


def compute_auroc(human: Floats, metric: Floats) -> float:
    """Return the probability that, of two images with different labels, the one with the higher label scores higher.

    Equal scores count as half. The result is nan if all labels are equal. Raises ValueError for more than two labels.
    """
    labels = np.unique(human)
    if len(labels) > 2:
        raise ValueError(f"AUROC needs two labels, found {len(labels)}")
    if len(labels) < 2:
        return math.nan
    low, high = metric[human == labels[0]], metric[human == labels[1]]
    return float(scipy.stats.mannwhitneyu(high, low, method="asymptotic").statistic / (len(low) * len(high)))


def _compute_kendall_a(human: Floats, metric: Floats) -> float:
    # tau-b times the root of the product of both columns' shares of untied pairs, so that its divisor is all pairs
    n_pairs = len(human) * (len(human) - 1)
    tied = [
        float((n * (n - 1)).sum() / n_pairs) for n in (np.unique(x, return_counts=True)[1] for x in (human, metric))
    ]
    tau_b = float(scipy.stats.kendalltau(human, metric).statistic)
    return tau_b * math.sqrt((1 - tied[0]) * (1 - tied[1]))


def _return_nan_if_constant(correlate: Callable[[Floats, Floats], Any]) -> Statistic:
    def compute_statistic(human: Floats, metric: Floats) -> float:
        varies = len(human) > 1 and bool(np.ptp(human) > 0) and bool(np.ptp(metric) > 0)
        return float(correlate(human, metric)) if varies else math.nan

    return compute_statistic


STATISTICS: Mapping[str, Statistic] = {
    "pearson": _return_nan_if_constant(lambda human, metric: scipy.stats.pearsonr(human, metric).statistic),
    # scipy.stats.spearmanr returns the same, but spends most of its time on a p-value
    "spearman": _return_nan_if_constant(
        lambda human, metric: np.corrcoef(scipy.stats.rankdata([human, metric], axis=1))[0, 1]
    ),
    "kendall_a": _return_nan_if_constant(_compute_kendall_a),
    "kendall_b": _return_nan_if_constant(
        lambda human, metric: scipy.stats.kendalltau(human, metric, variant="b").statistic
    ),
    "kendall_c": _return_nan_if_constant(
        lambda human, metric: scipy.stats.kendalltau(human, metric, variant="c").statistic
    ),
    "auroc": compute_auroc,
}
"""Statistics in [-1, 1], except AUROC, which is in [0, 1].

Pearson's r; Spearman's rho with average ranks for ties; Kendall's tau-a (concordant minus discordant pairs, divided by
all pairs), tau-b, which corrects for ties on both sides, and Stuart's tau-c, for variables with different numbers of
distinct values.
"""


def compute_spearman_viescore(human: Floats, metric: Floats, generators: NDArray[np.int64]) -> float:
    """Return Spearman's rho within generators, averaged as in VIEScore's code; nan if any rho is undefined.

    That code is meant to average Fisher's z, but averages the correlations themselves and then takes the hyperbolic
    tangent, so the result is nearer to 0 than the mean. Source: TIGER-AI-Lab/VIEScore, average_correlation in
    paper_implementation/analyze_json.ipynb.
    """
    within = [generators == code for code in np.unique(generators)]
    return _average_viescore([STATISTICS["spearman"](human[rows], metric[rows]) for rows in within])


def measure_rater_agreement_viescore(ratings: pd.DataFrame) -> float:
    """Return the raters' agreement by `spearman_viescore`, given a long table (unit, generator, rater, rating).

    Each rater is compared with the mean of the other raters. The results are averaged over raters and then over
    generators (upstream's iterate_all_results_human2human).
    """
    by_generator = []
    for _, rows in ratings.groupby("generator", sort=False):
        wide = rows.pivot(index="unit", columns="rater", values="rating").to_numpy(np.float64)
        units, raters = wide.shape
        by_rater = []
        for rater in range(raters):
            others = np.delete(wide, rater, axis=1)
            means = compute_exact_means(others.ravel(), np.repeat(np.arange(units), raters - 1), units)
            both = np.isfinite(wide[:, rater]) & np.isfinite(means)
            by_rater.append(STATISTICS["spearman"](wide[both, rater], merge_equal(means[both])))
        by_generator.append(_average_viescore(by_rater))
    return _average_viescore(by_generator)


def _average_viescore(correlations: Sequence[float]) -> float:
    return math.tanh(math.fsum(correlations) / len(correlations)) if correlations else math.nan


def krippendorff_alpha(ratings: pd.DataFrame, level: Level) -> float:
    """Return Krippendorff's alpha for a long table (unit, rater, rating), in [-1, 1]; ratings may be missing.

    Alpha is nan if no unit has two ratings, or if all ratings of such units are equal, because then raters who agree
    cannot be distinguished from raters who always give the same answer. Source: Krippendorff 2018, Content Analysis,
    chapter 12; used in Gecko, section 4.1.
    """
    pairable = ratings[ratings.groupby("unit")["rating"].transform("count") > 1]
    if pairable["rating"].nunique() < 2:
        return math.nan
    with explain_missing_extra("people", "Krippendorff's alpha"):
        import evalica  # takes a second, and only ratings of several people need it
    wide = ratings.pivot(index="rater", columns="unit", values="rating")
    try:
        return float(evalica.alpha(wide, distance=level).alpha)
    except evalica.InsufficientRatingsError:
        return math.nan


def compute_alpha_interval(ratings: pd.DataFrame, sampling: Sampling) -> Interval:
    """Return the 95% interval of the ordinal `krippendorff_alpha` for a long table (unit, prompt_id, rater, rating).

    Prompts are resampled, because the units of one prompt are not independent. The interval is undefined if fewer than
    MIN_DIFFERING_PROMPTS prompts have a rating other than the most common one.
    """
    values = np.unique(ratings["rating"], return_inverse=True)[1]
    if Prompts(ratings["prompt_id"].to_list()).count_differing(values.astype(np.float64)) < MIN_DIFFERING_PROMPTS:
        return UNDEFINED_INTERVAL
    prompt_codes = np.unique(ratings["prompt_id"].astype(str), return_inverse=True)[1]
    units, first, unit_codes = np.unique(ratings["unit"].astype(str), return_index=True, return_inverse=True)
    counts = np.zeros((len(units), int(values.max()) + 1))
    np.add.at(counts, (unit_codes, values), 1)
    pairable = counts.sum(axis=1) > 1
    counts = counts[pairable]
    # How often two raters gave a unit each pair of values; a unit weighs 1 / (its number of ratings - 1).
    by_unit = counts[:, :, None] * counts[:, None, :] - counts[:, :, None] * np.eye(counts.shape[1])
    prompts = Prompts(ratings["prompt_id"].drop_duplicates().to_list(), sampling)
    coincidences = np.zeros((prompts.count, *by_unit.shape[1:]))  # (prompts in order of their ids, values, values)
    np.add.at(coincidences, prompt_codes[first][pairable], by_unit / (counts.sum(axis=1) - 1)[:, None, None])
    drawn = prompts.draw_multiplicities() @ coincidences.reshape(prompts.count, -1)
    resampled = _compute_ordinal_alphas(drawn.reshape(-1, *coincidences.shape[1:]))
    return compute_student_interval(
        float(_compute_ordinal_alphas(coincidences.sum(axis=0))), resampled, prompts.count, CORRELATIONS
    )


def _compute_ordinal_alphas(coincidences: Floats) -> Floats:
    margins = coincidences.sum(axis=-1)
    total = margins.sum(axis=-1)
    ranks = margins.cumsum(axis=-1) - margins / 2
    distances = (ranks[..., :, None] - ranks[..., None, :]) ** 2
    observed = (coincidences * distances).sum(axis=(-1, -2))
    expected = (margins[..., :, None] * margins[..., None, :] * distances).sum(axis=(-1, -2))
    with np.errstate(invalid="ignore", divide="ignore"):
        alphas = np.where(expected > 0, 1 - (total - 1) * observed / expected, 1.0)
    return np.where(total > 0, alphas, math.nan)


def find_majority_vote(votes: Sequence[str | None]) -> str:
    """Return the most common vote; `unsure` if there is a tie or no vote (Gecko, App. D.1)."""
    most = multimode(vote for vote in votes if vote is not None)
    return most[0] if len(most) == 1 else UNSURE


def find_reliable_prompts(parts: pd.DataFrame, *, share: float = 0.5) -> set[str]:
    """Return the prompts whose raters agree for every generator and template (Gecko, section 4.1).

    A prompt is reliable if, for each generator and template that was rated, its disagreement is below the fraction
    `share` of the largest disagreement of any prompt for the same generator and template, or this largest disagreement
    is 0 (all raters agree about all prompts). A prompt without a rating for one of these generators and templates, for
    example because all raters were unsure, is not reliable. Ratings without a generator are treated as those of one
    generator.

    Args:
        parts: Raters' answers about each image, word or question, in columns prompt_id, generator, template, image_id,
            part, rater and rating.
        share: Fraction of the largest disagreement.
    """
    by = ["generator", "template"]
    keys = [*by, "prompt_id"]
    units = parts.groupby([*keys, "image_id", "part"], dropna=False)
    above = parts["rating"].astype(np.float64) - units["rating"].transform("min")
    unit_codes = units.ngroup().to_numpy()
    # The raters' variance about each unit is exactly 0 if their ratings are equal.
    variance = pd.Series(merge_equal(above.to_numpy())).groupby(unit_codes).var(ddof=0)
    owners = parts.assign(unit=unit_codes).drop_duplicates("unit").set_index("unit")[keys].assign(variance=variance)
    prompts = owners.groupby(keys, dropna=False)
    means = compute_exact_means(owners["variance"].to_numpy(), prompts.ngroup().to_numpy(), prompts.ngroups)
    disagreement = prompts.size().index.to_frame(index=False).assign(variance=means)
    largest = disagreement.groupby(by, dropna=False)["variance"].transform("max")
    excess = round_to_step(means - share * largest.to_numpy(np.float64), choose_step(means))
    disagreement["agrees"] = (excess < 0) | ((largest == 0) & disagreement["variance"].notna())
    n_rated = parts[by].drop_duplicates().shape[0]
    agreed = disagreement.groupby("prompt_id")["agrees"].agg(["all", "count"])
    return set(agreed.index[agreed["all"] & (agreed["count"] == n_rated)].astype(str))
