"""Compares two runs: which scores changed clearly, what exists in only one of the runs, and which settings differ."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plumbline.operators.base.ordered_maps import OrderedMap, map_sequentially
from plumbline.operators.base.sentences import (
    FirstRows,
    Sentence,
    format_names,
    format_quantity,
    format_signed,
    take_first_rows,
)
from plumbline.operators.images.generation_settings import (
    COMPARE,
    Difference,
    SettingsPolicy,
    compare_settings,
    describe_differences,
    read_all_settings,
)
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.table import read_lower_is_better, read_metrics
from plumbline.operators.report.leaders import explain_too_few_prompts
from plumbline.operators.report.marked_words import shorten
from plumbline.operators.results.bridge import Bridge, describe_use, find_bridge
from plumbline.operators.results.comparison import (
    SIGNIFICANCE_LEVEL,
    Duel,
    PromptMeans,
    average_prompts,
    compare_generators,
)
from plumbline.operators.results.metric_recipes import (
    Recipe,
    list_differing_paths,
    list_relative_metrics,
    list_unranked_metrics,
    read_recipe,
)
from plumbline.operators.results.reward_hacking import Movement, describe_alarm, find_suspicious_movements
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.results.summary import OVERALL, Skills
from plumbline.operators.rewards.combination import REWARD_NAME, Reward, RewardConfig, UnitScale, compute_scales
from plumbline.operators.statistics.ordering import compute_min_pairs, holm

Floats = NDArray[np.float64]

MAX_SENTENCES = 6
TEST_NAME = f"Wilcoxon's signed-rank test, Holm, p < {SIGNIFICANCE_LEVEL:g}"
MAX_ROWS = 300
MAX_LISTED_SETTINGS = 60
MAX_CHARACTERS = 200
IGNORED_SETTINGS = ("store", "dry_run", "cluster", "storage", "max_failed", "shard_rows", "shard_bytes", "settings")
"""Settings that do not affect scores."""
NOT_COMPARABLE_VERDICT = "not comparable"

ChangedSetting = tuple[str, str]
"""A setting's path, such as `models.vqa.checkpoint`, and the text `old value → new value`."""


class AlteredMetric(NamedTuple):
    """A metric whose settings or models differ between two runs, so that it counts as a different metric."""

    settings: list[ChangedSetting]
    bridge: Bridge | None

    @property
    def is_bridged(self) -> bool:
        """Return True if a bridge (results/bridge.py) maps the earlier version's scores to the later scale."""
        return self.bridge is not None and self.bridge.joins


class Change(NamedTuple):
    """Change in a generator's scores on a metric between two runs, over the prompts that have scores in both."""

    generator: str
    before: float
    after: float
    duel: Duel
    """Comparison of the later run (a) with the earlier run (b); p-values are corrected over all changes (Holm 1979)."""
    verdict: str
    """`better` or `worse`; for a metric that does not rank images, `higher` or `lower`. Otherwise `not clear`,
    `unchanged` if every prompt has the same score in both runs, or `not comparable` if the generator's settings differ.
    """
    ranks: bool
    """True if the metric ranks images; otherwise no score is better than another."""
    margin: float
    """Error bound of the earlier mean if a bridge maps it to the later version of the metric. Smaller differences are
    not clear.
    """

    @property
    def is_clear(self) -> bool:
        return self.verdict not in ("unchanged", "not clear", NOT_COMPARABLE_VERDICT)

    @property
    def movement(self) -> Movement:
        """The change in the form that the detection of reward hacking expects."""
        towards = 0 if not self.is_clear else self.duel.direction if self.duel.effect > 0 else -self.duel.direction
        return Movement(self.duel.metric, self.before, self.after, towards)


class Changes(NamedTuple):
    """The section of a report that compares the run with an earlier run."""

    run_id: str
    sentences: list[Sentence]
    overall: FirstRows[Change]
    """Changes over all prompts, with clear changes first."""
    by_skill: FirstRows[Change]
    settings: FirstRows[ChangedSetting]
    every: list[Change]
    can_tell: bool
    """True if there are enough prompts for a change to be clear, or if no score changed at all."""
    edited: int = 0
    """Number of prompts whose text differs in the earlier run; these prompts are not compared."""

    @property
    def generators_with_changed_settings(self) -> list[str]:
        """Names of the generators whose settings differ between the two runs."""
        return list(dict.fromkeys(change.generator for change in self.every if change.duel.unlike))

    @property
    def clear(self) -> list[Change]:
        return [change for change in self.every if change.is_clear]


def find_altered_metrics(
    before: Mapping[str, Any], after: Mapping[str, Any], bridges: Sequence[Bridge] = ()
) -> dict[str, AlteredMetric]:
    """Return the metrics that are in both manifests with different settings or models, keyed by name."""
    altered = {}
    for metric in _find_shared_metrics(before, after):
        old, new = read_recipe(before, metric), read_recipe(after, metric)
        if settings := list_altered_settings(old, new):
            altered[metric] = AlteredMetric(settings, find_bridge(bridges, old, new))
    return altered


def list_altered_settings(old: Recipe, new: Recipe, max_characters: int = MAX_CHARACTERS) -> list[ChangedSetting]:
    """Return the settings that differ between two recipes, with their values shortened."""
    settings = []
    for path in list_differing_paths(old, new):
        before, after = (shorten(recipe.get(path, "–"), max_characters) for recipe in (old, new))
        settings.append((path, f"{before} → {after}"))
    return settings


def _find_shared_metrics(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    earlier, later = (manifest.get("config", {}).get("metrics", {}) for manifest in (before, after))
    return [metric for metric in later if metric in earlier]


def list_comparable_metrics(
    before: Mapping[str, Any], after: Mapping[str, Any], bridges: Sequence[Bridge] = ()
) -> list[str]:
    """Return the metrics in both manifests that have the same settings and models, or two versions linked by a bridge.

    Metrics that compare generators are omitted.
    """
    altered = find_altered_metrics(before, after, bridges)
    relative = list_relative_metrics(after)
    return [
        metric
        for metric in _find_shared_metrics(before, after)
        if metric not in relative and (metric not in altered or altered[metric].is_bridged)
    ]


def compare_runs(
    before: RunScores,
    after: RunScores,
    skills: Skills,
    manifests: tuple[Mapping[str, Any], Mapping[str, Any]],
    reward: RewardConfig | None = None,
    each: OrderedMap = map_sequentially,
    choice: SettingsPolicy = COMPARE,
    bridges: Sequence[Bridge] = (),
) -> Changes:
    """Return the changes between two runs, paired by generator, metric and prompt.

    A generator's changes do not count as clear if its settings differ between the runs in a way that `choice` does not
    ignore. A metric whose settings or models differ counts as a different metric; its scores are compared only if a
    bridge joins both versions. Metrics that compare generators within a run are not compared.

    If the generators were trained on a `reward` since the earlier run, generators that seem to game it are reported
    first. A reward that combines several metrics is compared like a metric, in the units of the earlier run.
    """
    altered = find_altered_metrics(*manifests, bridges)
    joined = {name: found.bridge for name, found in altered.items() if found.bridge is not None and found.is_bridged}
    in_both = [metric for metric in before.metrics if metric in after.metrics]
    relative = [metric for metric in in_both if metric in list_relative_metrics(manifests[1])]
    left_out = {*relative, *(altered.keys() - joined.keys())}
    earlier, later = (read_all_settings(manifest, choice) for manifest in manifests)
    runs = _Runs(
        before=before,
        after=after,
        compared=[metric for metric in in_both if metric not in left_out],
        skills=skills,
        lower_is_better=read_lower_is_better(manifests[1]),
        unranked=list_unranked_metrics(manifests[1]),
        unlike={name: tuple(compare_settings(own, earlier[name])) for name, own in later.items() if name in earlier},
        joined=joined,
    )
    runs = _add_reward(runs, reward, each)
    measured = list(dict.fromkeys([*runs.compared, *in_both]))
    by_metric = list(each(_compare_metric, measured, shared=runs))
    found = [change for changes, _ in by_metric for change in changes]
    changes = _correct_p_values(sorted(found, key=lambda change: after.generators.index(change.generator)))
    overall = _select_overall(changes)
    at_skills = [change for change in changes if change.duel.skill != OVERALL and change.is_clear]
    lone_scores = {metric: counts for metric, (_, counts) in zip(measured, by_metric, strict=True)}
    alone = _describe_lone_scores(before, after, lone_scores)
    edited = before.find_shared_prompts(after).edited
    partial = bool(alone or edited or left_out)
    clear = _describe_changes(overall, _count_comparisons(changes), partial=partial)
    run_id = str(manifests[0].get("run_id", ""))
    excluded = list(_describe_exclusions(edited, overall, altered, relative, run_id))
    main = [*clear, *excluded] if overall else [*excluded, *clear]
    return Changes(
        run_id=run_id,
        sentences=[*_describe_alarms(overall, reward, read_metrics(manifests[1])), *main, *alone],
        overall=sort_clear_first(overall),
        by_skill=take_first_rows(sorted(at_skills, key=lambda change: change.duel.effect), MAX_ROWS),
        settings=take_first_rows(list(list_differing_settings(*manifests)), MAX_LISTED_SETTINGS),
        every=changes,
        can_tell=_can_tell(overall, _count_comparisons(changes)),
        edited=edited,
    )


def _describe_lone_scores(
    before: RunScores, after: RunScores, lone_scores: Mapping[str, Mapping[str, tuple[int, int]]]
) -> list[Sentence]:
    """Return sentences about generators, metrics, prompts and scores that only one of the two runs has.

    `lone_scores` says, by metric and generator, how many scores only the earlier run has and how many only the later.
    """
    only_before, only_after = dict[tuple[str, str], int](), dict[tuple[str, str], int]()
    for metric, by_generator in lone_scores.items():
        for generator, counts in by_generator.items():
            only_before[metric, generator], only_after[metric, generator] = counts
    alone = _describe_unshared_results("Only in this run:", after, before, only_after)
    return alone + _describe_unshared_results("Only in the earlier run:", before, after, only_before)


def sort_clear_first(changes: Sequence[Change]) -> FirstRows[Change]:
    """Return the first changes for a table, with clear changes before the others."""
    return take_first_rows(sorted(changes, key=lambda change: not change.is_clear), MAX_ROWS)


def correct_p_values_together(all_changes: Sequence[Changes]) -> list[Changes]:
    """Return comparisons of one run with several runs, with p-values corrected jointly (Holm).

    The verdicts and `can_tell` follow from the corrected p-values; the sentences are unchanged.
    """
    together = iter(_correct_p_values([change for changes in all_changes for change in changes.every]))
    each = [[next(together) for _ in changes.every] for changes in all_changes]
    comparisons = sum(map(_count_comparisons, each))
    return [
        changes._replace(every=every, can_tell=_can_tell(_select_overall(every), comparisons))
        for changes, every in zip(all_changes, each, strict=True)
    ]


class _Runs(NamedTuple):
    """Two runs, with the metrics that they share, the skills of their prompts, and the settings that differ."""

    before: RunScores
    after: RunScores
    compared: Sequence[str]
    skills: Skills
    lower_is_better: frozenset[str]
    unranked: frozenset[str]
    """Metrics that do not rank images: neither higher nor lower scores are better."""
    unlike: Mapping[str, tuple[Difference, ...]]
    """Settings that differ between the two runs, by generator."""
    joined: Mapping[str, Bridge]
    """Bridges that map the earlier scores to the later scale, by metric."""


def _add_reward(runs: _Runs, reward: RewardConfig | None, each: OrderedMap) -> _Runs:
    """Return the runs with a combined reward as an extra metric, if all its metrics are comparable between the runs."""
    same = [metric for metric in runs.compared if metric not in runs.joined]
    if reward is None or reward.single_metric is not None or not all(part in same for part in reward.weights):
        return runs
    (scales,) = each(_compute_scales, [reward], shared=runs.before)
    combined = Reward(reward, runs.lower_is_better, scales)
    return runs._replace(
        before=runs.before.with_reward(combined),
        after=runs.after.with_reward(combined),
        compared=[*runs.compared, REWARD_NAME],
    )


def _compute_scales(before: RunScores, reward: RewardConfig) -> dict[str, UnitScale]:
    if reward.unit == "score":
        return {}
    parts = [before.select_scored_by_all([*reward.weights], generator) for generator in before.generators]
    prompts = np.concatenate([columns.prompt for columns, _ in parts])
    scores = {metric: np.concatenate([of_part[metric] for _, of_part in parts]) for metric in reward.weights}
    codes = np.unique(prompts, return_inverse=True)[1].astype(np.int32)
    return compute_scales(scores, codes, reward.unit, "the earlier run")


def _count_comparisons(changes: Sequence[Change]) -> int:
    return sum(not change.duel.unlike for change in changes)


def _describe_exclusions(
    edited: int,
    overall: Sequence[Change],
    altered: Mapping[str, AlteredMetric],
    relative: Sequence[str],
    run_id: str,
) -> Iterator[Sentence]:
    if edited:
        has = "has a different text" if edited == 1 else "have different texts"
        rest = f"under the same id in the earlier run, so {'it is' if edited == 1 else 'they are'} not compared."
        yield Sentence(f"{format_quantity(edited, 'prompt')} {has}", rest)
    alike: dict[tuple[Difference, ...], dict[str, None]] = {}
    for change in overall:
        if change.duel.unlike:
            alike.setdefault(change.duel.unlike, {})[change.generator] = None
    for found, generators in alike.items():
        were, their = ("was", "Its") if len(generators) == 1 else ("were", "Their")
        lead = f"{format_names([*generators])} {were} generated with other settings:"
        yield Sentence(lead, f"{describe_differences(found, run_id)}. {their} changes do not count as clear.")
    for metric, (settings, bridge) in altered.items():
        compared = "so its scores are not compared" if bridge is None else describe_use(bridge)
        values = format_names([" ".join(setting) for setting in settings], 1)
        yield Sentence(f"{metric} is not the same metric in both runs,", f"{compared}: {values}.")
    if relative:
        whose = "Their" if len(relative) > 1 else "Its"
        yield Sentence(
            f"{format_names(relative)} {'compare' if len(relative) > 1 else 'compares'} generators within a run.",
            f"{whose} scores depend on all generators of the run, so they are not compared with the earlier run's.",
        )


def _describe_unshared_results(
    lead: str, scores: RunScores, other: RunScores, lone_scores: Mapping[tuple[str, str], int]
) -> list[Sentence]:
    """Return a sentence on the generators, metrics, prompts and scores that `scores` has and `other` does not.

    `lead` begins the sentence. `lone_scores` is the number of prompts for which only `scores` has a score, by metric
    and generator.
    """
    generators = [name for name in scores.generators if name not in other.generators]
    metrics = [name for name in scores.metrics if name not in other.metrics]
    parts = [
        f"{kind}{'s' * (len(alone) > 1)} {format_names(alone)}"
        for kind, alone in (("generator", generators), ("metric", metrics))
        if alone
    ]
    if prompts := len(np.setdiff1d(scores.prompts, other.prompts, assume_unique=True)):
        parts.append(format_quantity(prompts, "prompt"))
    parts += [
        f"scores of {generator} by {metric} on {format_quantity(count, 'prompt')}"
        for metric in scores.metrics
        for generator in scores.generators
        if (count := lone_scores.get((metric, generator), 0))
    ]
    return [Sentence(lead, f"{format_names(parts, MAX_SENTENCES)}.")] if parts else []


def _compare_metric(runs: _Runs, metric: str) -> tuple[list[Change], dict[str, tuple[int, int]]]:
    """Return the changes of all generators on one metric, comparing the two runs as if they were two generators.

    Returns:
        The changes with uncorrected p-values (empty if the metric is not compared), and two numbers for each generator:
        how many shared prompts have a score only in the earlier run, and how many only in the later run.
    """
    prompts = runs.before.find_shared_prompts(runs.after).prompts
    changes = list[Change]()
    lone_scores = dict[str, tuple[int, int]]()
    for generator in runs.after.generators:
        if generator not in runs.before.generators:
            continue
        earlier, later = (
            average_prompts(prompts, run.select_rows(metric, generator)) for run in (runs.before, runs.after)
        )
        had, has = np.isfinite(earlier), np.isfinite(later)
        lone_scores[generator] = int((had & ~has).sum()), int((has & ~had).sum())
        if metric in runs.compared:
            both, bridge, unlike = had & has, runs.joined.get(metric), runs.unlike.get(generator, ())
            earlier = earlier[both] if bridge is None else bridge.line(earlier[both])
            later = later[both]
            means = PromptMeans(prompts[both])
            means.add("after", later)
            means.add("before", earlier)
            having = dict(runs.skills.iterate_masks(prompts[both]))
            for duel in compare_generators(metric, means, runs.skills, runs.lower_is_better):
                margin = 0.0 if bridge is None else bridge.get_margin(duel.skill)
                changes.append(
                    Change(
                        generator=generator,
                        before=float(earlier[having[duel.skill]].mean()),
                        after=float(later[having[duel.skill]].mean()),
                        duel=duel._replace(unlike=unlike, better=None if unlike else duel.better),
                        verdict="not clear" if duel.differing else "unchanged",
                        ranks=metric not in runs.unranked,
                        margin=math.inf if margin is None else margin,
                    )
                )
    return changes, lone_scores


def _describe_alarms(
    overall: Sequence[Change], reward: RewardConfig | None, metrics: Mapping[str, Metric]
) -> list[Sentence]:
    """Return a sentence for each generator that seems to game the reward.

    The metrics in the reward do not count as evidence.
    """
    sentences = list[Sentence]()
    if reward is None:
        return sentences
    for name in dict.fromkeys(change.generator for change in overall):
        moves = {change.duel.metric: change.movement for change in overall if change.generator == name}
        trained = moves.pop(reward.name, None)
        others = [move for metric, move in moves.items() if metric not in reward.weights]
        if trained and (moved := find_suspicious_movements(trained, others, metrics)):
            sentences.append(describe_alarm(name, trained, moved, TEST_NAME))
    return sentences


def _correct_p_values(changes: Sequence[Change]) -> list[Change]:
    corrected = iter(holm([change.duel.p_value for change in changes if not change.duel.unlike]))
    p_values = [math.nan if change.duel.unlike else next(corrected) for change in changes]
    return [
        change._replace(duel=change.duel._replace(p_holm=p_holm), verdict=_decide_verdict(change, p_holm))
        for change, p_holm in zip(changes, p_values, strict=True)
    ]


def _decide_verdict(change: Change, p_holm: float) -> str:
    if change.duel.unlike:
        return NOT_COMPARABLE_VERDICT
    if change.verdict == "unchanged":
        return change.verdict
    is_within_margin = change.margin and abs(change.duel.difference) <= change.margin
    if is_within_margin or not p_holm < SIGNIFICANCE_LEVEL:  # also if p_holm is nan, because nothing could be tested
        return "not clear"
    up, down = ("better", "worse") if change.ranks else ("higher", "lower")
    return up if change.duel.effect > 0 else down


def _select_overall(changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if change.duel.skill == OVERALL]


def _can_tell(changes: Sequence[Change], comparisons: int) -> bool:
    changed = [change for change in changes if change.verdict not in ("unchanged", NOT_COMPARABLE_VERDICT)]
    return not changed or any(change.duel.n >= compute_min_pairs(comparisons, SIGNIFICANCE_LEVEL) for change in changed)


def _describe_changes(overall: Sequence[Change], comparisons: int, *, partial: bool) -> list[Sentence]:
    """Return sentences about the generators with clear changes and the generators without clear changes.

    `partial` is True if only some of the runs' scores were compared.
    """
    if not overall:
        return [Sentence("The two runs share no generator with scores by the same metric on the same prompts.", "")]
    partial = partial or any(change.duel.unlike for change in overall)
    overall = [change for change in overall if not change.duel.unlike]
    if not overall:
        return []
    if not _can_tell(overall, comparisons):
        why = explain_too_few_prompts(max(change.duel.n for change in overall), comparisons)
        return [Sentence("Too few prompts to say what changed:", f"{why}.")]
    clear: dict[tuple[str, str], list[str]] = {}
    for change in overall:
        if change.is_clear:
            duel = change.duel
            ranks = f" in the mean, signed ranks {format_signed(duel.effect, 2)}" if duel.is_contrary else ""
            better = ", lower is better" if duel.direction < 0 else ""
            size = f"{duel.metric} ({format_signed(duel.difference)}{ranks}{better})"
            clear.setdefault((change.generator, change.verdict), []).append(size)
    if not clear:
        same = all(change.verdict == "unchanged" for change in overall)
        lead = "Nothing changed" if same else "Nothing changed clearly"
        return [Sentence(f"{lead} in the scores that both runs have." if partial else f"{lead}.", "")]
    every = [
        Sentence(f"{name} is {verdict}", f"{'by' if verdict in ('better', 'worse') else 'in'} {format_names(sizes)}.")
        for (name, verdict), sizes in clear.items()
    ]
    sentences, left_out = take_first_rows(every, MAX_SENTENCES)
    if left_out:
        sentences.append(Sentence(f"{format_quantity(left_out, 'more clear change')}.", ""))
    changed = {generator for generator, _ in clear}
    if still := [name for name in dict.fromkeys(change.generator for change in overall) if name not in changed]:
        sentences.append(Sentence("No clear change:", f"{format_names(still)}."))
    return sentences


def list_differing_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedSetting]:
    """Yield the path and the old and new values of each setting that differs between two runs' manifests.

    Settings include the configuration, the models and the versions of packages.
    """
    earlier, later = (_flatten_settings(manifest) for manifest in (before, after))
    for key in dict.fromkeys([*earlier, *later]):
        # An `about` only describes a metric.
        if earlier.get(key) != later.get(key) and not key.endswith(".about"):
            yield key, f"{earlier.get(key, '–')} → {later.get(key, '–')}"


def _flatten_settings(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return a manifest's settings that can affect scores, keyed by path."""
    config = {key: value for key, value in manifest.get("config", {}).items() if key not in IGNORED_SETTINGS}
    parts = {"config": config, "models": manifest.get("models", {}), "versions": manifest.get("versions", {})}
    rows = pd.json_normalize(parts).to_dict("records")  # pandas 2 returns no row if there are no settings
    return {str(path): shorten(str(value), MAX_CHARACTERS) for row in rows for path, value in row.items()}
