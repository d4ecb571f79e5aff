"""Builds a bridge from two versions' scores for the same images: a map from old to new scores, and the map's errors."""

import math
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import Sentence, format_interval, format_names, format_number, format_quantity
from plumbline.operators.results.bridge import Bridge, MetricVersion, Verdict, format_equation
from plumbline.operators.results.comparison import Duel, PromptMeans, average_prompts, compare_generators
from plumbline.operators.results.run_scores import Hashes, RunScores, ScoreColumns
from plumbline.operators.results.summary import OVERALL, Skills
from plumbline.operators.statistics.agreement import STATISTICS
from plumbline.operators.statistics.bootstrap import (
    CORRELATIONS,
    MIN_DIFFERING_PROMPTS,
    ROUNDING_TOLERANCE,
    Interval,
    Prompts,
)
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.operators.statistics.ordering import holm
from plumbline.operators.statistics.poisson_bootstrap import draw_prompts
from plumbline.plugins.gates.score_maps import (
    LINE_FIT_FUNCTIONS,
    ChosenLine,
    choose_line,
    choose_map,
    compute_margin,
    fit_curve,
)

Floats = NDArray[np.float64]


MIN_PROMPTS = 20
"""Minimum number of prompts for a bridge, because the maps of scores are cross-validated over prompts."""


MIN_EXPLAINED_VARIANCE = 0.5
"""Fraction of the new scores' variance that a map must explain to join two versions."""


NEGLIGIBLE_DIFFERENCE = 0.001
"""Fraction of the new scores' standard deviation below which a miss (new minus mapped score) is ignored. Otherwise the
signed-rank test would find even the rounding of a curve significant.
"""


GROUPS_SCHEMA = pa.schema(
    [
        *schemas.texts("generator", "skill"),
        ("prompts", pa.int64()),
        *schemas.floats("old", "mapped", "new", "miss", "low", "high", "p_value", "p_holm"),
        ("clear", pa.bool_()),
    ]
)
"""Errors of the map, for each generator's mean on each skill. `miss` is new - mapped, with its 95% interval. It is
`clear` if it is significant by Wilcoxon's signed-rank test over prompts, corrected over all rows (Holm), and not
negligible.
"""


class PairedScores(NamedTuple):
    """Scores for the same images from both versions of a metric."""

    generators: list[str]
    columns: ScoreColumns
    """Rows of the images with their old scores; `generator` is an index into the list of generators."""
    new: Floats
    """New scores for the same images."""


class BuiltBridge(NamedTuple):
    """A bridge, with a table of the errors of its map by generator and skill (schema GROUPS_SCHEMA)."""

    bridge: Bridge
    groups: pa.Table


def pair_images(
    old: tuple[RunScores, str], new: tuple[RunScores, str], count: int | None = None, seed: int = 0
) -> PairedScores:
    """Return the images that both metrics scored, of all shared prompts or of `count` prompts drawn with `seed`.

    Raises:
        ConfigError: There are too few prompts, or too few prompts whose score differs from the most common score.
    """
    (before, metric), (after, other) = old, new
    prompts = before.find_shared_prompts(after).prompts
    prompts = prompts[draw_prompts(prompts, count, seed)]
    columns, scores = before.select_rows(metric, ""), [np.zeros(0)]
    for name in before.generators:
        if name in after.generators:
            own, others = (
                before.select_rows(metric, name).select_scored(),
                after.select_rows(other, name).select_scored(),
            )
            own = own.select(np.isin(own.prompt, prompts))
            _, here, there = np.intersect1d(own.image, others.image, return_indices=True)
            columns = columns.concatenate_with(own.select(here))
            scores.append(others.score[there])
    pairs = PairedScores(before.generators, columns, np.concatenate(scores))
    _require_varied_scores(pairs, (metric, other))
    return pairs


def _require_varied_scores(pairs: PairedScores, metrics: tuple[str, str]) -> None:
    prompts = len(np.unique(pairs.columns.prompt))
    if prompts < MIN_PROMPTS:
        raise ConfigError(
            f"expected images for at least {MIN_PROMPTS} prompts that both versions scored, found "
            f"{format_quantity(len(pairs.new), 'image')} for {format_quantity(prompts, 'prompt')} with the same "
            "ids; score more of the same images with both versions"
        )
    resampled = Prompts(pairs.columns.prompt.astype(str).tolist())
    for metric, scores in zip(metrics, (pairs.columns.score, pairs.new), strict=True):
        if not np.ptp(scores):
            raise ConfigError(
                f"{metric}: expected different scores, found {scores[0]:g} for all {len(scores):,} images; choose "
                "other images or another metric"
            )
        if (differing := resampled.count_differing(scores)) < MIN_DIFFERING_PROMPTS:
            raise ConfigError(
                f"{metric}: expected at least {MIN_DIFFERING_PROMPTS} prompts whose score differs from the most common "
                f"score, found {differing} of {prompts}; score images of more prompts with both versions"
            )


def _find_clear_pairs(
    means: Mapping[str, PromptMeans], lower_is_better: tuple[bool, bool]
) -> list[dict[tuple[str, str], str]]:
    """Return for each version the better generator of every two that differ significantly."""
    return [
        {
            (duel.generator_a, duel.generator_b): duel.better
            for duel in compare_generators(name, of_each, Skills(()), {name} if falls else ())
            if duel.better is not None
        }
        for (name, of_each), falls in zip(means.items(), lower_is_better, strict=True)
    ]


def build_from_pairs(
    pairs: PairedScores,
    skills: Skills,
    *,
    bridge_id: str,
    benchmark: str,
    versions: tuple[MetricVersion, MetricVersion],
    lower_is_better: tuple[bool, bool] = (False, False),
    min_explained: float = MIN_EXPLAINED_VARIANCE,
) -> BuiltBridge:
    """Build a bridge from the pairs; `lower_is_better` is True for each version whose lower scores are better.

    The versions are different if they do not clearly rank the images alike. They are also different if the map explains
    less than the fraction `min_explained` of the variance, both of the new scores and of the generators' new means.
    Otherwise, they share a scale if no generator's mean changed significantly and the means fit best without a change.
    In all other cases, they are joined.
    """
    columns, new = pairs.columns, pairs.new
    old = columns.score
    prompts = np.unique(columns.prompt)
    chosen = choose_map(old, new, columns.prompt)
    moved = any(change.p_holm < SIGNIFICANCE for change in _compare_means(pairs, old, prompts, Skills(())))
    line = choose_line(
        old, new, columns.generator, [kind for kind in LINE_FIT_FUNCTIONS if kind != "unchanged" or not moved]
    )
    explained = 1 - chosen.misses[chosen.kind] ** 2 / float(new.var())
    means = {name: _average_by_prompt(pairs, scores, prompts) for name, scores in (("old", old), ("new", new))}
    by_version = _find_clear_pairs(means, lower_is_better)
    groups = _make_groups(pairs, chosen.predicted, prompts, skills)
    spearman, images = _correlate_ranks(old, new, columns.prompt)
    agrees = images.high < 0 if lower_is_better[0] != lower_is_better[1] else images.low > 0
    both = by_version[0].keys() & by_version[1].keys()
    verdict: Verdict = "one scale" if line.kind == "unchanged" else "joined"
    if (max(explained, line.explained) if agrees else 0.0) < min_explained:
        verdict = "different"
    bridge = Bridge(
        bridge_id=bridge_id,
        benchmark=benchmark,
        old=versions[0],
        new=versions[1],
        generators=means["new"].generators,
        prompts=len(prompts),
        images=len(new),
        verdict=verdict,
        kind=chosen.kind,
        misses=chosen.misses,
        explained=explained,
        curve=fit_curve(old, new) if chosen.kind == "monotone" else None,
        line_kind=line.kind,
        line=line.line,
        means_explained=None if math.isnan(line.explained) else line.explained,
        wanted=min_explained,
        margins=_find_margins(pairs, line, skills),
        images_spearman=spearman,
        images_interval=images,
        generators_kendall=_compute_kendall(means, lower_is_better),
        clear={"old": len(by_version[0]), "new": len(by_version[1]), "both": len(both)},
        turned=[" and ".join(pair) for pair in sorted(both) if by_version[0][pair] != by_version[1][pair]],
        clear_misses=sum(groups.column("clear").to_pylist()),
    )
    return BuiltBridge(bridge, groups)


def _correlate_ranks(old: Floats, new: Floats, prompts: Hashes) -> tuple[float, Interval]:
    """Return Spearman's correlation over images with its 95% interval, bootstrapped over prompts.

    A correlation of 1 or -1 is the same in every resample, so its interval has zero width.
    """
    spearman = STATISTICS["spearman"]
    found = spearman(old, new)
    if abs(found) > 1 - ROUNDING_TOLERANCE:
        return found, Interval(found, found)
    resampled = Prompts(prompts.astype(str).tolist())
    return found, resampled.interval(lambda rows: spearman(old[rows], new[rows]), CORRELATIONS)


def _average_by_prompt(pairs: PairedScores, scores: Floats, prompts: Hashes) -> PromptMeans:
    means = PromptMeans(prompts)
    for code in np.unique(pairs.columns.generator):
        own = pairs.columns.generator == code
        columns = pairs.columns.select(own)._replace(score=scores[own])
        means.add(pairs.generators[code], average_prompts(prompts, columns))
    return means


def _compute_kendall(means: Mapping[str, PromptMeans], lower_is_better: tuple[bool, bool]) -> float | None:
    old, new = (
        np.array([(-1 if falls else 1) * np.nanmean(of_each.read(name)) for name in of_each.generators])
        for of_each, falls in zip(means.values(), lower_is_better, strict=True)
    )
    tau = STATISTICS["kendall_b"](old, new)
    return None if math.isnan(tau) else tau


def _find_margins(pairs: PairedScores, line: ChosenLine, skills: Skills) -> dict[str, float]:
    """Return, for each skill with at least two generators, the margin of error of a mapped mean."""
    misses: dict[str, list[float]] = {}
    for code, without in zip(np.unique(pairs.columns.generator), line.without, strict=False):
        own = pairs.columns.select(pairs.columns.generator == code)
        missed = pairs.new[pairs.columns.generator == code] - without(own.score)
        for skill, having in skills.iterate_masks(own.prompt):
            if having.any():
                misses.setdefault(skill, []).append(float(missed[having].mean()))
    return {skill: compute_margin(of_skill) for skill, of_skill in misses.items() if len(of_skill) > 1}


class _Change(NamedTuple):
    """Comparison of a generator's new scores with its old or mapped scores for the same images, on one skill."""

    generator: str
    duel: Duel
    p_holm: float
    """P-value with Holm's correction over all generators and skills."""


def _compare_means(pairs: PairedScores, scores: Floats, prompts: Hashes, skills: Skills) -> list[_Change]:
    """Compare each generator's new scores with `scores` (other scores for the same images), separately by skill."""
    before, after = _average_by_prompt(pairs, scores, prompts), _average_by_prompt(pairs, pairs.new, prompts)
    found: list[tuple[str, Duel]] = []
    for generator in after.generators:
        both = PromptMeans(prompts)
        both.add("after", after.read(generator))
        both.add("before", before.read(generator))
        found += [(generator, duel) for duel in compare_generators("", both, skills)]
    corrected = holm([duel.p_value for _, duel in found])
    return [_Change(*of_one, p_holm) for of_one, p_holm in zip(found, corrected, strict=True)]


def _make_groups(pairs: PairedScores, predicted: Floats, prompts: Hashes, skills: Skills) -> pa.Table:
    having = dict(skills.iterate_masks(prompts))
    negligible = NEGLIGIBLE_DIFFERENCE * float(np.nanstd(pairs.new))
    means = {
        name: _average_by_prompt(pairs, scores, prompts)
        for name, scores in (("old", pairs.columns.score), ("mapped", predicted), ("new", pairs.new))
    }
    return rows.table(
        [
            {
                "generator": change.generator,
                "skill": change.duel.skill,
                "prompts": change.duel.n,
                **{
                    name: float(np.nanmean(of_each.read(change.generator)[having[change.duel.skill]]))
                    for name, of_each in means.items()
                },
                "miss": change.duel.difference,
                "low": change.duel.low,
                "high": change.duel.high,
                "p_value": change.duel.p_value,
                "p_holm": change.p_holm,
                "clear": change.p_holm < SIGNIFICANCE and abs(change.duel.difference) > negligible,
            }
            for change in _compare_means(pairs, predicted, prompts, skills)
        ],
        GROUPS_SCHEMA,
    )


def describe_bridge(bridge: Bridge) -> list[Sentence]:
    """Return sentences that describe the bridge, starting with the verdict on whether it joins the versions."""
    (old, new), clear = _list_side_names(bridge), bridge.clear
    misses = ", ".join(f"{kind} {format_number(miss)}" for kind, miss in bridge.misses.items())
    turned = (
        f"in opposite directions: {format_names(bridge.turned)}" if bridge.turned else "none in opposite directions"
    )
    span = format_interval(*bridge.images_interval, partial(format_number, digits=2))
    return [
        _describe_verdict(bridge),
        Sentence(
            "Images:",
            f"Spearman {format_number(bridge.images_spearman, 2)} ({span}); the {bridge.kind} map "
            f"explains {bridge.explained:.0%} of the variance of {new} on other prompts. It is the simplest that is no "
            f"worse than the best by more than chance; root mean square misses: {misses}.",
        ),
        Sentence(
            "Generators:",
            f"Kendall {format_number(bridge.generators_kendall, 2)}; {format_quantity(clear['old'], 'pair')} "
            f"differ clearly by {old}, "
            f"{clear['new']} by {new}, {clear['both']} by both; {turned}.",
        ),
        Sentence(
            "Not explained by the map:" if bridge.clear_misses else "Nothing is left unexplained:",
            f"{format_quantity(bridge.clear_misses, 'mean')} of generators, overall or by skill, differ clearly "
            f"from the map's "
            "(Wilcoxon's signed-rank test over prompts, Holm).",
        ),
    ]


def _list_side_names(bridge: Bridge) -> tuple[str, str]:
    """Return the names of both metrics; two versions of the same metric are named old and new."""
    old, new = bridge.old.metric, bridge.new.metric
    return (f"the old {old}", f"the new {new}") if old == new else (old, new)


def _describe_verdict(bridge: Bridge) -> Sentence:
    old, new = _list_side_names(bridge)
    if bridge.verdict == "different":
        of_means = (
            "" if bridge.means_explained is None else f" and {bridge.means_explained:.0%} between generators' means"
        )
        return Sentence(
            f"{old} and {new} measure different things:",
            f"the best map explains {max(bridge.explained, 0):.0%} of the variance between images{of_means}; "
            f"to join them, it must explain {bridge.wanted:.0%} of either variance, and clearly keep the direction.",
        )
    off = bridge.get_margin(OVERALL)
    known = (
        f"the mean of one more generator is off by at most ±{format_number(off)} (95%)."
        if off is not None
        else "two or more generators are needed to bound the error of another generator's mean."
    )
    if bridge.verdict == "one scale":
        return Sentence(f"Scores of {old} and {new} are on the same scale:", known)
    return Sentence(f"A map joins {old} and {new}:", f"new = {format_equation(bridge)}; {known}")
