"""Two versions of a metric on the same images: the map from the old scale to the new one, and what it leaves open."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import Sentence, interval_text, names, number, plural
from plumbline.operators.results.comparison import SIGNIFICANT, Duel, PromptMeans, duels, mean_of_each
from plumbline.operators.results.metric_recipes import Recipe, altered_places
from plumbline.operators.results.run_scores import Hashes, RunScores, ScoreColumns
from plumbline.operators.results.summary import OVERALL, Skills
from plumbline.operators.statistics.agreement import STATISTICS
from plumbline.operators.statistics.bootstrap import CORRELATIONS, MIN_DIFFERING, ROUNDING, Interval, Prompts
from plumbline.operators.statistics.ordering import holm
from plumbline.operators.statistics.poisson_bootstrap import drawn
from plumbline.operators.statistics.score_maps import (
    LINES,
    ChosenLine,
    Curve,
    Kind,
    Line,
    LineKind,
    choose,
    choose_line,
    fit_curve,
    margin,
)

Floats = NDArray[np.float64]

FEWEST_PROMPTS = 20
"""Of which maps are cross-validated."""
EXPLAINED = 0.5
"""Share of the new scores' variance below which a map joins nothing."""
NEGLIGIBLE = 0.001
"""Share of the new scores' standard deviation below which a miss is none: signed ranks see that a curve is rounded."""

GROUPS = pa.schema(
    [
        *schemas.texts("generator", "skill"),
        ("prompts", pa.int64()),
        *schemas.floats("old", "mapped", "new", "miss", "low", "high", "p_value", "p_holm"),
        ("clear", pa.bool_()),
    ]
)
"""How far a generator's mean at a skill is from what the map makes of its old one: `miss` is new - mapped, with its 95%
interval; `clear` by Wilcoxon's signed-rank test over prompts, corrected by Holm over all rows, if it is not
negligible."""

Verdict = Literal["one scale", "joined", "different"]


class Pairs(NamedTuple):
    """The images that both versions scored."""

    generators: list[str]
    columns: ScoreColumns
    """With the old scores; generators are places in the list."""
    new: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A metric of a run, or of a sweep that made no run."""

    metric: str
    run_id: str | None
    recipe: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bridge:
    """What was found of two versions of a metric."""

    bridge_id: str
    benchmark: str
    old: Version
    new: Version
    generators: Sequence[str]
    prompts: int
    images: int
    verdict: Verdict
    kind: Kind
    """The map that was chosen."""
    misses: Mapping[Kind, float]
    """By kind of map, the root mean square of its misses on images of prompts that it was not fitted on."""
    explained: float
    """Share of the new scores' variance, over images, that the chosen map explains on such prompts."""
    curve: Curve | None
    """Where a monotone map was chosen."""
    line_kind: LineKind
    line: Line
    """By which means are joined, for a line takes means of scores as it takes scores."""
    means_explained: float | None
    """Share of the variance of the generators' new means that lines through the others explain; None of fewer than
    five."""
    wanted: float
    """Where neither share is as large, the two measure different things."""
    margins: Mapping[str, float]
    """By skill, how far the mean of one more generator may be from the line's (95%): by how far each generator is from
    the line through the others. None of fewer than two."""
    images_spearman: float
    images_interval: Interval
    generators_kendall: float | None
    clear: Mapping[str, int]
    """Pairs of generators that are told apart, by `old`, by `new` and by `both`; `turned` are those of both that stand
    the other way round."""
    turned: Sequence[str]
    clear_misses: int
    """Rows of groups.parquet that are clear."""

    @property
    def joins(self) -> bool:
        """Whether old means can be set beside new ones."""
        return self.verdict != "different" and OVERALL in self.margins

    def margin_of(self, skill: str) -> float | None:
        """That of a skill; None where means are not joined there."""
        return self.margins.get(skill) if self.joins else None


class Built(NamedTuple):
    """A bridge and its groups (schema GROUPS)."""

    bridge: Bridge
    groups: pa.Table


def pair(old: tuple[RunScores, str], new: tuple[RunScores, str], count: int | None = None, seed: int = 0) -> Pairs:
    """Return the images that both metrics scored, for `count` shared prompts, drawn by the seed.

    Raises ConfigError if the images have too few prompts, or if too few prompts differ from the commonest score.
    """
    (before, metric), (after, other) = old, new
    prompts = before.shared_prompts(after).prompts
    prompts = prompts[drawn(prompts, count, seed)]
    matched = [
        _matched(before.of(metric, name).scored(), after.of(other, name).scored(), prompts)
        for name in before.generators
        if name in after.generators
    ]
    columns = reduce(ScoreColumns.followed_by, (of_one for of_one, _ in matched), before.of(metric, ""))
    pairs = Pairs(before.generators, columns, np.concatenate([np.zeros(0), *(scores for _, scores in matched)]))
    _check(pairs, (metric, other))
    return pairs


def _matched(old: ScoreColumns, new: ScoreColumns, prompts: Hashes) -> tuple[ScoreColumns, Floats]:
    """The old rows of images that both have, and their new scores."""
    old = old.where(np.isin(old.prompt, prompts))
    _, here, there = np.intersect1d(old.image, new.image, return_indices=True)
    return old.where(here), new.score[there]


def _check(pairs: Pairs, metrics: tuple[str, str]) -> None:
    prompts = len(np.unique(pairs.columns.prompt))
    if prompts < FEWEST_PROMPTS:
        raise ConfigError(
            f"expected images of {FEWEST_PROMPTS} prompts or more with a score by both versions, found "
            f"{plural(len(pairs.new), 'image')} of {plural(prompts, 'prompt')}: generators, prompts and images are "
            "matched by their ids; score more of the same images by both"
        )
    resampled = Prompts(pairs.columns.prompt.astype(str).tolist())
    for metric, scores in zip(metrics, (pairs.columns.score, pairs.new), strict=True):
        if not np.ptp(scores):
            raise ConfigError(f"{metric}: all {len(scores):,} images have the score {scores[0]:g}: nothing to map")
        if (differing := resampled.differing(scores)) < MIN_DIFFERING:
            raise ConfigError(
                f"{metric}: {plural(differing, 'prompt')} of {prompts} have another score than the commonest one, and "
                f"of fewer than {MIN_DIFFERING} no interval holds: score images of more prompts by both versions"
            )


def build(
    pairs: Pairs,
    skills: Skills,
    *,
    bridge_id: str,
    benchmark: str,
    versions: tuple[Version, Version],
    falling: tuple[bool, bool] = (False, False),
    wanted: float = EXPLAINED,
) -> Built:
    """Build the bridge from the pairs; `falling` is True for each version whose lower score is better."""
    columns, new = pairs.columns, pairs.new
    old = columns.score
    prompts = np.unique(columns.prompt)
    chosen = choose(old, new, columns.prompt)
    moved = any(change.p_holm < SIGNIFICANT for change in _changes(pairs, old, prompts, Skills(())))
    line = choose_line(old, new, columns.generator, [kind for kind in LINES if kind != "unchanged" or not moved])
    explained = 1 - chosen.misses[chosen.kind] ** 2 / float(new.var())
    means = {name: _prompt_means(pairs, scores, prompts) for name, scores in (("old", old), ("new", new))}
    by_version = [
        _clear(duels(name, of_each, Skills(()), {name} if falls else ()))
        for (name, of_each), falls in zip(means.items(), falling, strict=True)
    ]
    groups = _groups(pairs, chosen.predicted, prompts, skills)
    spearman, images = _rank_correlation(old, new, columns.prompt)
    agrees = images.high < 0 if falling[0] != falling[1] else images.low > 0
    both = by_version[0].keys() & by_version[1].keys()
    bridge = Bridge(
        bridge_id=bridge_id,
        benchmark=benchmark,
        old=versions[0],
        new=versions[1],
        generators=means["new"].generators,
        prompts=len(prompts),
        images=len(new),
        verdict=_judged(max(explained, line.explained) if agrees else 0.0, line, wanted),
        kind=chosen.kind,
        misses=chosen.misses,
        explained=explained,
        curve=fit_curve(old, new) if chosen.kind == "monotone" else None,
        line_kind=line.kind,
        line=line.line,
        means_explained=None if math.isnan(line.explained) else line.explained,
        wanted=wanted,
        margins=_margins(pairs, line, skills),
        images_spearman=spearman,
        images_interval=images,
        generators_kendall=_kendall(means, falling),
        clear={"old": len(by_version[0]), "new": len(by_version[1]), "both": len(both)},
        turned=[" and ".join(pair) for pair in sorted(both) if by_version[0][pair] != by_version[1][pair]],
        clear_misses=sum(groups.column("clear").to_pylist()),
    )
    return Built(bridge, groups)


def _rank_correlation(old: Floats, new: Floats, prompts: Hashes) -> tuple[float, Interval]:
    """Return Spearman's correlation over images with its 95% interval, bootstrapped over prompts.

    An order that is wholly kept or turned is so in every resample: its interval has no length.
    """
    spearman = STATISTICS["spearman"]
    found = spearman(old, new)
    if abs(found) > 1 - ROUNDING:
        return found, Interval(found, found)
    resampled = Prompts(prompts.astype(str).tolist())
    return found, resampled.interval(lambda rows: spearman(old[rows], new[rows]), CORRELATIONS)


def _prompt_means(pairs: Pairs, scores: Floats, prompts: Hashes) -> PromptMeans:
    means = PromptMeans(prompts)
    for code in np.unique(pairs.columns.generator):
        own = pairs.columns.generator == code
        columns = pairs.columns.where(own)._replace(score=scores[own])
        means.add(pairs.generators[code], mean_of_each(prompts, columns))
    return means


def _clear(compared: Iterable[Duel]) -> dict[tuple[str, str], str]:
    """The better one of each two generators that are told apart."""
    return {(duel.generator_a, duel.generator_b): duel.better for duel in compared if duel.better is not None}


def _kendall(means: Mapping[str, PromptMeans], falling: tuple[bool, bool]) -> float | None:
    """Kendall's tau-b between the generators' means by both versions, better ones first by each."""
    old, new = (
        np.array([(-1 if falls else 1) * np.nanmean(of_each.of(name)) for name in of_each.generators])
        for of_each, falls in zip(means.values(), falling, strict=True)
    )
    tau = STATISTICS["kendall_b"](old, new)
    return None if math.isnan(tau) else tau


def _judged(explained: float, line: ChosenLine, wanted: float) -> Verdict:
    if explained < wanted:
        return "different"
    return "one scale" if line.kind == "unchanged" else "joined"


def _margins(pairs: Pairs, line: ChosenLine, skills: Skills) -> dict[str, float]:
    """By skill the margin of a mean, where there is one."""
    misses: dict[str, list[float]] = {}
    for code, without in zip(np.unique(pairs.columns.generator), line.without, strict=False):
        own = pairs.columns.where(pairs.columns.generator == code)
        missed = pairs.new[pairs.columns.generator == code] - without(own.score)
        for skill, having in skills.each(own.prompt):
            if having.any():
                misses.setdefault(skill, []).append(float(missed[having].mean()))
    return {skill: margin(of_skill) for skill, of_skill in misses.items() if len(of_skill) > 1}


class _Change(NamedTuple):
    """A generator's new scores beside some others of the same images, at a skill."""

    generator: str
    duel: Duel
    p_holm: float
    """Corrected over all generators and skills."""


def _changes(pairs: Pairs, scores: Floats, prompts: Hashes, skills: Skills) -> list[_Change]:
    """The new scores beside others, each generator compared as two runs of it are."""
    before, after = _prompt_means(pairs, scores, prompts), _prompt_means(pairs, pairs.new, prompts)
    found: list[tuple[str, Duel]] = []
    for generator in after.generators:
        both = PromptMeans(prompts)
        both.add("after", after.of(generator))
        both.add("before", before.of(generator))
        found += [(generator, duel) for duel in duels("", both, skills)]
    corrected = holm([duel.p_value for _, duel in found])
    return [_Change(*of_one, p_holm) for of_one, p_holm in zip(found, corrected, strict=True)]


def _groups(pairs: Pairs, predicted: Floats, prompts: Hashes, skills: Skills) -> pa.Table:
    """Each generator at each skill (schema GROUPS)."""
    having = dict(skills.each(prompts))
    negligible = NEGLIGIBLE * float(np.nanstd(pairs.new))
    means = {
        name: _prompt_means(pairs, scores, prompts)
        for name, scores in (("old", pairs.columns.score), ("mapped", predicted), ("new", pairs.new))
    }
    return rows.table(
        [
            {
                "generator": change.generator,
                "skill": change.duel.skill,
                "prompts": change.duel.n,
                **{
                    name: float(np.nanmean(of_each.of(change.generator)[having[change.duel.skill]]))
                    for name, of_each in means.items()
                },
                "miss": change.duel.difference,
                "low": change.duel.low,
                "high": change.duel.high,
                "p_value": change.duel.p_value,
                "p_holm": change.p_holm,
                "clear": change.p_holm < SIGNIFICANT and abs(change.duel.difference) > negligible,
            }
            for change in _changes(pairs, predicted, prompts, skills)
        ],
        GROUPS,
    )


def find_bridge(bridges: Iterable[Bridge], before: Recipe, after: Recipe) -> Bridge | None:
    """The first of some bridges that leads from one recipe to another."""
    return next(
        (
            bridge
            for bridge in bridges
            if not altered_places(bridge.old.recipe, before) and not altered_places(bridge.new.recipe, after)
        ),
        None,
    )


def describe(bridge: Bridge) -> list[Sentence]:
    """Return sentences about the bridge, the verdict first."""
    (old, new), clear = _name_sides(bridge), bridge.clear
    misses = ", ".join(f"{kind} {number(miss)}" for kind, miss in bridge.misses.items())
    turned = f"turned round: {names(bridge.turned)}" if bridge.turned else "none of them turned round"
    span = interval_text(*bridge.images_interval, partial(number, digits=2))
    return [
        _verdict(bridge),
        Sentence(
            "Images:",
            f"Spearman {number(bridge.images_spearman, 2)} ({span}); the {bridge.kind} map "
            f"explains {bridge.explained:.0%} of the variance of {new} on other prompts. It is the simplest that is no "
            f"worse than the best by more than chance; root mean square misses: {misses}.",
        ),
        Sentence(
            "Generators:",
            f"Kendall {number(bridge.generators_kendall, 2)}; {plural(clear['old'], 'pair')} told apart by {old}, "
            f"{clear['new']} by {new}, {clear['both']} by both, {turned}.",
        ),
        Sentence(
            "Not explained:" if bridge.clear_misses else "Nothing else is clear:",
            f"{plural(bridge.clear_misses, 'mean')} of generators, overall and by skill, are clearly off the map "
            "(Wilcoxon's signed-rank test over prompts, Holm).",
        ),
    ]


def _name_sides(bridge: Bridge) -> tuple[str, str]:
    """Return the names of both metrics; two versions of the same metric are called old and new."""
    old, new = bridge.old.metric, bridge.new.metric
    return (f"the old {old}", f"the new {new}") if old == new else (old, new)


def _verdict(bridge: Bridge) -> Sentence:
    old, new = _name_sides(bridge)
    if bridge.verdict == "different":
        of_means = "" if bridge.means_explained is None else f" and {bridge.means_explained:.0%} over generators' means"
        return Sentence(
            f"{old} and {new} measure different things:",
            f"the best map explains {max(bridge.explained, 0):.0%} of the variance over images{of_means}; "
            f"{bridge.wanted:.0%} of either, and clearly the same direction, would join them.",
        )
    off = bridge.margin_of(OVERALL)
    known = (
        f"the mean of one more generator is off by at most ±{number(off)} (95%)."
        if off is not None
        else "how far the mean of another generator may be off, two generators or more tell."
    )
    if bridge.verdict == "one scale":
        return Sentence(f"Scores of {old} and {new} are one scale:", known)
    return Sentence(f"A map joins {old} and {new}:", f"new = {formula(bridge)}; {known}")


def in_comparisons(bridge: Bridge) -> str:
    """What becomes of a comparison of the two, as the second half of a sentence."""
    margin = bridge.margin_of(OVERALL)
    if margin is not None:
        off = f"off by at most ±{number(margin)}"
        return f"and its earlier scores are compared by bridge {bridge.bridge_id}, as {formula(bridge)}, {off}"
    why = "finds that other things are measured" if bridge.verdict == "different" else "has no margin of one generator"
    return f"so its scores are not compared, and bridge {bridge.bridge_id} {why}"


def formula(bridge: Bridge) -> str:
    """Return the right side of the line's equation."""
    sign = "−" if bridge.line.intercept < 0 else "+"
    return f"{number(bridge.line.slope)} × old {sign} {number(abs(bridge.line.intercept))}"
