"""Two runs side by side: whose scores changed, whether clearly, what came and went, and what else was different."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plumbline.operators.base.each import Each, one_by_one
from plumbline.operators.base.sentences import FirstRows, Sentence, names, plural, shown, signed
from plumbline.operators.images.generation_settings import (
    COMPARE,
    Choice,
    Difference,
    all_settings,
    between,
    differences,
)
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.table import falling_metrics, read_metrics
from plumbline.operators.report.marked_words import cut
from plumbline.operators.results.bridge import Bridge, find_bridge, in_comparisons
from plumbline.operators.results.comparison import SIGNIFICANT, Duel, PromptMeans, duels, mean_of_each
from plumbline.operators.results.metric_recipes import Recipe, altered_places, recipe_of
from plumbline.operators.results.reward_hacking import Movement, alarm, suspicious
from plumbline.operators.results.run_scores import Hashes, RunScores
from plumbline.operators.results.summary import OVERALL, Skills
from plumbline.operators.rewards.combination import REWARD, Combination, Reward, Scale, scales_of
from plumbline.operators.statistics.ordering import fewest_pairs, holm

Floats = NDArray[np.float64]

MOST_SENTENCES = 6
TEST = f"Wilcoxon's signed-rank test, Holm, p < {SIGNIFICANT:g}"
MOST_ROWS = 300
MOST_SETTINGS = 60
MOST_CHARACTERS = 200
APART = ("store", "dry_run", "cluster", "storage", "max_failed", "shard_rows", "shard_bytes", "settings")
"""Settings that change no score."""
UNLIKE = "not comparable"
ABOUT = ".about"
"""How the name of a setting ends that only tells what a metric does."""

Setting = tuple[str, str]
"""The place of one that differs, and what it was and is."""


class Change(NamedTuple):
    """A generator's change from one run to the next, over the prompts that both scored."""

    generator: str
    before: float
    after: float
    duel: Duel
    """The newer run's prompts against the earlier's, its p-value corrected (Holm 1979) for all changes looked at."""
    verdict: str
    """`better` or `worse`, of a metric that ranks nothing `higher` or `lower`; `unchanged` where every prompt's score
    is the same, `not clear`, or `not comparable` where the generator's settings are others."""
    ranks: bool = True
    """Whether one score by the metric is better than another."""
    margin: float = 0.0
    """How far the earlier mean may be off, where a bridge maps it to the metric of the later run: no smaller difference
    is clear."""

    @property
    def is_clear(self) -> bool:
        """Whether it is more than chance."""
        return self.verdict not in ("unchanged", "not clear", UNLIKE)

    @property
    def movement(self) -> Movement:
        """As the sentinel looks at it."""
        towards = 0 if not self.is_clear else self.duel.direction if self.duel.effect > 0 else -self.duel.direction
        return Movement(self.duel.metric, self.before, self.after, towards)


class Changes(NamedTuple):
    """The page's section about another run."""

    run_id: str
    sentences: list[Sentence]
    """What changed, what only one of the runs has, and which metrics are not the same."""
    overall: FirstRows[Change]
    """The clear ones before the others."""
    by_skill: FirstRows[Change]
    """Only the clear ones."""
    settings: FirstRows[Setting]
    every: list[Change]
    """All that were looked at, overall and by skill, none left out."""
    can_tell: bool
    """True if some outcome on this number of prompts would have been a clear change, for scores that differ."""
    edited: int = 0
    """Number of prompts that have another text in the earlier run and are not compared."""

    @property
    def unlike(self) -> list[str]:
        """The generators whose settings differ from the earlier run's."""
        return list(dict.fromkeys(change.generator for change in self.every if change.duel.unlike))

    @property
    def clear(self) -> list[Change]:
        """All clear ones, overall and by skill."""
        return [change for change in self.every if change.is_clear]


def bridges_between(
    before: Mapping[str, Any], after: Mapping[str, Any], bridges: Sequence[Bridge]
) -> dict[str, Bridge | None]:
    """By metric that is another one in the later run, the bridge from the earlier one, where there is one."""
    return {metric: _bridge(metric, bridges, (before, after)) for metric in _altered(before, after)}


def comparable_metrics(
    before: Mapping[str, Any], after: Mapping[str, Any], bridges: Sequence[Bridge] = ()
) -> list[str]:
    """The metrics of both manifests whose scores can be compared: their settings and models are the same, or a bridge
    joins them.
    """
    altered = _altered(before, after)
    joined = _joined(altered, bridges, (before, after))
    return [metric for metric in _of_both(before, after) if metric not in altered or metric in joined]


def compare(
    before: RunScores,
    after: RunScores,
    skills: Skills,
    manifests: tuple[Mapping[str, Any], Mapping[str, Any]],
    reward: Combination | None = None,
    each: Each = one_by_one,
    choice: Choice = COMPARE,
    bridges: Sequence[Bridge] = (),
) -> Changes:
    """Compare the scores of two runs, paired by generator, metric and prompt; `manifests` are (before, after).

    A generator whose settings differ from the earlier run's has no clear change, unless settings are to be ignored.

    A metric whose settings or models differ is another metric: its scores are not compared, unless one of the `bridges`
    joins the two.

    `reward` is what the generators were trained on since the earlier run, if they were: generators that seem to game it
    are named first. A reward of several metrics adds one change, in the units of the earlier run.
    """
    metrics = read_metrics(manifests[1])
    settings = list(differing_settings(*manifests))
    altered = _altered(*manifests)
    joined = _joined(altered, bridges, manifests)
    in_both = [metric for metric in before.metrics if metric in after.metrics]
    common = [metric for metric in in_both if metric not in altered or metric in joined]
    falling = falling_metrics(manifests[1])
    unranked = frozenset(name for name, metric in metrics.items() if not metric.ranks)
    earlier, later = (all_settings(manifest, choice) for manifest in manifests)
    unlike = {name: tuple(differences(of, earlier[name])) for name, of in later.items() if name in earlier}
    runs = _with_reward(_Runs(before, after, common, skills, falling, unranked, unlike, joined), reward, each)
    measured = dict.fromkeys([*runs.compared, *in_both])
    of_metrics = dict(zip(measured, each(_compare_metric, measured, shared=runs), strict=True))
    found = [change for of_metric in of_metrics.values() for change in of_metric.changes]
    changes = _corrected(sorted(found, key=lambda change: after.generators.index(change.generator)))
    overall = _overall(changes)
    at_skills = [change for change in changes if change.duel.skill != OVERALL and change.is_clear]
    only_after = {metric: compared.only_after for metric, compared in of_metrics.items()}
    only_before = {metric: compared.only_before for metric, compared in of_metrics.items()}
    alone = _alone_sentences("Only in this run:", after, before, only_after)
    alone += _alone_sentences("Only in the earlier run:", before, after, only_before)
    edited = before.shared_prompts(after).edited
    partial = bool(alone or edited or len(altered) > len(joined))
    found_out = _change_sentences(overall, _comparisons(changes), partial=partial)
    not_compared = [
        *_edited_sentences(edited),
        *_unlike_sentences(overall, str(manifests[0].get("run_id", ""))),
        *_altered_sentences(altered, bridges, manifests),
    ]
    told = found_out + not_compared if overall else not_compared + found_out
    return Changes(
        run_id=str(manifests[0].get("run_id", "")),
        sentences=[*_alarms(overall, reward, metrics), *told, *alone],
        overall=clear_first(overall),
        by_skill=shown(sorted(at_skills, key=lambda change: change.duel.effect), MOST_ROWS),
        settings=shown(settings, MOST_SETTINGS),
        every=changes,
        can_tell=_can_tell(overall, _comparisons(changes)),
        edited=edited,
    )


def clear_first(changes: Sequence[Change]) -> FirstRows[Change]:
    """Return the first changes, the clear ones before the others, for a table."""
    return shown(sorted(changes, key=lambda change: not change.is_clear), MOST_ROWS)


def correct_together(of_runs: Sequence[Changes]) -> list[Changes]:
    """The changes of several runs with Holm's correction over all of them; what the page of each says stays."""
    together = iter(_corrected([change for changes in of_runs for change in changes.every]))
    each = [[next(together) for _ in changes.every] for changes in of_runs]
    comparisons = sum(map(_comparisons, each))
    return [
        changes._replace(every=every, can_tell=_can_tell(_overall(every), comparisons))
        for changes, every in zip(of_runs, each, strict=True)
    ]


class _Runs(NamedTuple):
    """Two runs, and what is compared of them."""

    before: RunScores
    after: RunScores
    compared: Sequence[str]
    """The metrics that are the same in both."""
    skills: Skills
    falling: frozenset[str]
    unranked: frozenset[str]
    unlike: Mapping[str, tuple[Difference, ...]]
    """By generator, the settings that are others in the newer run."""
    joined: Mapping[str, Bridge]
    """By metric whose earlier scores are mapped, what maps them."""


def _with_reward(runs: _Runs, reward: Combination | None, each: Each) -> _Runs:
    """The runs with the combined reward as one metric more, where both have all its parts."""
    same = [metric for metric in runs.compared if metric not in runs.joined]
    if reward is None or reward.alone is not None or not all(part in same for part in reward.weights):
        return runs
    (scales,) = each(_scales, [reward], shared=runs.before)
    made = Reward(reward, runs.falling, scales)
    return runs._replace(
        before=runs.before.with_reward(made), after=runs.after.with_reward(made), compared=[*runs.compared, REWARD]
    )


def _scales(before: RunScores, reward: Combination) -> dict[str, Scale]:
    if reward.unit == "score":
        return {}
    parts = [before.scored_by_all([*reward.weights], generator) for generator in before.generators]
    prompts = np.concatenate([columns.prompt for columns, _ in parts])
    scores = {metric: np.concatenate([of_part[metric] for _, of_part in parts]) for metric in reward.weights}
    codes = np.unique(prompts, return_inverse=True)[1].astype(np.int32)
    return scales_of(scores, codes, reward.unit, "the earlier run")


def _altered(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Setting]]:
    """By metric of both runs, the settings that make it another one."""
    altered = {}
    for metric in _of_both(before, after):
        was, now = recipe_of(before, metric), recipe_of(after, metric)
        if places := altered_places(was, now):
            altered[metric] = [(place, f"{_value(was, place)} → {_value(now, place)}") for place in places]
    return altered


def _joined(
    altered: Iterable[str], bridges: Sequence[Bridge], manifests: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> dict[str, Bridge]:
    """By metric that is another one in the later run, the bridge that joins the two."""
    found = {metric: _bridge(metric, bridges, manifests) for metric in altered}
    return {metric: bridge for metric, bridge in found.items() if bridge is not None and bridge.joins}


def _bridge(
    metric: str, bridges: Sequence[Bridge], manifests: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Bridge | None:
    return find_bridge(bridges, *(recipe_of(manifest, metric) for manifest in manifests))


def _of_both(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The metrics that both runs have."""
    earlier, later = (manifest.get("config", {}).get("metrics", {}) for manifest in (before, after))
    return [metric for metric in later if metric in earlier]


def _value(recipe: Recipe, place: str) -> str:
    return cut(recipe.get(place, "–"), MOST_CHARACTERS)


def _comparisons(changes: Sequence[Change]) -> int:
    return sum(not change.duel.unlike for change in changes)


def _unlike_sentences(overall: Sequence[Change], run_id: str) -> list[Sentence]:
    """Return a sentence for the generators whose settings differ in the same way between the runs."""
    alike: dict[tuple[Difference, ...], dict[str, None]] = {}
    for change in overall:
        if change.duel.unlike:
            alike.setdefault(change.duel.unlike, {})[change.generator] = None
    return [
        Sentence(
            f"{names([*generators])} {'was' if len(generators) == 1 else 'were'} generated with other settings:",
            f"{between(found, run_id)}. No change of {'it' if len(generators) == 1 else 'them'} is clear.",
        )
        for found, generators in alike.items()
    ]


def _altered_sentences(
    altered: Mapping[str, Sequence[Setting]],
    bridges: Sequence[Bridge],
    manifests: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> list[Sentence]:
    sentences = []
    for metric, settings in altered.items():
        bridge = _bridge(metric, bridges, manifests)
        compared = "so its scores are not compared" if bridge is None else in_comparisons(bridge)
        what = names([f"{name} {value}" for name, value in settings], 1)
        sentences.append(Sentence(f"{metric} is not the same metric in both runs,", f"{compared}: {what}."))
    return sentences


def _edited_sentences(edited: int) -> list[Sentence]:
    if not edited:
        return []
    which = "has another text" if edited == 1 else "have another text"
    rest = "under the same id in the earlier run: not compared, because their scores say nothing of a change."
    return [Sentence(f"{plural(edited, 'prompt')} {which}", rest)]


def _alone_sentences(
    lead: str, scores: RunScores, other: RunScores, alone_scores: Mapping[str, Mapping[str, int]]
) -> list[Sentence]:
    """What one run has and the other lacks: generators, metrics and prompts, and of those of both, scores, of which
    `alone_scores` has the number by metric and generator.
    """
    parts = [
        f"{kind}{'s' * (len(alone) > 1)} {names(alone)}"
        for kind, own, known in (
            ("generator", scores.generators, other.generators),
            ("metric", scores.metrics, other.metrics),
        )
        if (alone := [name for name in own if name not in known])
    ]
    if prompts := len(np.setdiff1d(scores.prompts, other.prompts, assume_unique=True)):
        parts.append(plural(prompts, "prompt"))
    parts += [
        f"scores of {generator} by {metric} on {plural(alone_scores[metric][generator], 'prompt')}"
        for metric in scores.metrics
        if metric in other.metrics
        for generator in scores.generators
        if alone_scores[metric].get(generator)
    ]
    return [Sentence(lead, f"{names(parts, MOST_SENTENCES)}.")] if parts else []


class _MetricChanges(NamedTuple):
    """What a metric says of two runs."""

    changes: Sequence[Change]
    """Of every generator, the p-values not corrected yet; of a metric that is not compared none."""
    only_before: Mapping[str, int]
    """By generator of both runs, how many prompts of both have a score in the earlier run alone."""
    only_after: Mapping[str, int]


def _compare_metric(runs: _Runs, metric: str) -> _MetricChanges:
    """Compare every generator's two runs as if they were two generators."""
    prompts = runs.before.shared_prompts(runs.after).prompts
    changes = list[Change]()
    only_before, only_after = dict[str, int](), dict[str, int]()
    for generator in runs.after.generators:
        if generator not in runs.before.generators:
            continue
        earlier, later = (mean_of_each(prompts, run.of(metric, generator)) for run in (runs.before, runs.after))
        had, has = np.isfinite(earlier), np.isfinite(later)
        only_before[generator], only_after[generator] = int((had & ~has).sum()), int((has & ~had).sum())
        if metric in runs.joined:
            earlier = runs.joined[metric].line(earlier)
        if metric in runs.compared:
            both = had & has
            changes += _changes(generator, metric, prompts[both], earlier[both], later[both], runs)
    return _MetricChanges(changes, only_before, only_after)


def _changes(
    generator: str, metric: str, prompts: Hashes, earlier: Floats, later: Floats, runs: _Runs
) -> Iterator[Change]:
    """Yield a generator's changes, overall and at every skill, from the prompts' mean scores in both runs."""
    means = PromptMeans(prompts)
    means.add("after", later)
    means.add("before", earlier)
    having, unlike = dict(runs.skills.each(prompts)), runs.unlike.get(generator, ())
    for duel in duels(metric, means, runs.skills, runs.falling):
        before, after = earlier[having[duel.skill]], later[having[duel.skill]]
        yield Change(
            generator=generator,
            before=float(before.mean()),
            after=float(after.mean()),
            duel=duel._replace(unlike=unlike, better=None if unlike else duel.better),
            verdict="not clear" if duel.differing else "unchanged",
            ranks=metric not in runs.unranked,
            margin=_margin(runs.joined.get(metric), duel.skill),
        )


def _margin(bridge: Bridge | None, skill: str) -> float:
    if bridge is None:
        return 0.0
    margin = bridge.margin_of(skill)
    return math.inf if margin is None else margin


def _alarms(overall: Sequence[Change], reward: Combination | None, metrics: Mapping[str, Metric]) -> list[Sentence]:
    """Of each generator that seems to game the reward, in which way; its parts are no metrics beside it."""
    sentences: list[Sentence] = []
    if reward is None:
        return sentences
    for name in dict.fromkeys(change.generator for change in overall):
        moves = {change.duel.metric: change.movement for change in overall if change.generator == name}
        trained = moves.pop(reward.name, None)
        others = [move for metric, move in moves.items() if metric not in reward.weights]
        if trained and (moved := suspicious(trained, others, metrics)):
            sentences.append(alarm(name, trained, moved, TEST))
    return sentences


def _corrected(changes: Sequence[Change]) -> list[Change]:
    """The changes with their p-values corrected, and what they say."""
    corrected = iter(holm([change.duel.p_value for change in changes if not change.duel.unlike]))
    p_values = [math.nan if change.duel.unlike else next(corrected) for change in changes]
    return [
        change._replace(duel=change.duel._replace(p_holm=p_holm), verdict=_verdict(change, p_holm))
        for change, p_holm in zip(changes, p_values, strict=True)
    ]


def _verdict(change: Change, p_holm: float) -> str:
    if change.duel.unlike:
        return UNLIKE
    if change.verdict == "unchanged":
        return change.verdict
    off = change.margin and abs(change.duel.difference) <= change.margin
    if off or not p_holm < SIGNIFICANT:  # nor is nan, of what could not be tested
        return "not clear"
    up, down = ("better", "worse") if change.ranks else ("higher", "lower")
    return up if change.duel.effect > 0 else down


def _overall(changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if change.duel.skill == OVERALL]


def _can_tell(changes: Sequence[Change], comparisons: int) -> bool:
    """Whether one of the changes would be clear among so many if it were the same on all prompts; of scores that are
    all unchanged there is nothing to tell.
    """
    altered = [change for change in changes if change.verdict not in ("unchanged", UNLIKE)]
    return not altered or any(change.duel.n >= fewest_pairs(comparisons, SIGNIFICANT) for change in altered)


def _change_sentences(overall: Sequence[Change], comparisons: int, *, partial: bool) -> list[Sentence]:
    """Name each generator with a clear change, and the rest; `partial` if the runs contain more than was compared."""
    if not overall:
        return [Sentence("The two runs share no generator with scores by the same metric on the same prompts.", "")]
    partial = partial or any(change.duel.unlike for change in overall)
    overall = [change for change in overall if not change.duel.unlike]
    if not overall:
        return []
    clear: dict[tuple[str, str], list[str]] = {}
    for change in overall:
        if change.is_clear:
            clear.setdefault((change.generator, change.verdict), []).append(
                f"{change.duel.metric} ({_size(change.duel)})"
            )
    if not _can_tell(overall, comparisons):
        prompts = plural(max(change.duel.n for change in overall), "prompt")
        rest = (
            f"even one for the better on every one of {prompts} is not clear among {comparisons} comparisons; "
            f"{fewest_pairs(comparisons, SIGNIFICANT)} prompts are the least that can show one."
        )
        return [Sentence("Too few prompts to tell a change:", rest)]
    if not clear:
        same = all(change.verdict == "unchanged" for change in overall)
        lead = "Nothing changed" if same else "Nothing changed clearly"
        return [Sentence(f"{lead} in what both runs scored." if partial else f"{lead}.", "")]
    said = [
        Sentence(f"{name} is {verdict}", f"{_by(verdict)} {names(sizes)}.") for (name, verdict), sizes in clear.items()
    ]
    sentences, left_out = shown(said, MOST_SENTENCES)
    if left_out:
        sentences.append(Sentence(f"{plural(left_out, 'more clear change')}.", ""))
    changed = {generator for generator, _ in clear}
    if still := [name for name in dict.fromkeys(change.generator for change in overall) if name not in changed]:
        sentences.append(Sentence("No clear change:", f"{names(still)}."))
    return sentences


def _by(verdict: str) -> str:
    return "by" if verdict in ("better", "worse") else "in"


def _size(duel: Duel) -> str:
    """How far the mean moved, and where that is not the direction of the signed ranks, theirs."""
    better = ", lower is better" if duel.direction < 0 else ""
    ranks = f" in the mean, signed ranks {signed(duel.effect, 2)}" if duel.is_contrary else ""
    return signed(duel.difference) + ranks + better


def differing_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield what differs between two manifests in the configuration, the models and the versions."""
    earlier, later = (_compared(manifest) for manifest in (before, after))
    for key in dict.fromkeys([*earlier, *later]):
        if earlier.get(key) != later.get(key) and not key.endswith(ABOUT):
            yield key, f"{earlier.get(key, '–')} → {later.get(key, '–')}"


def _compared(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a manifest that may change a score, by their places."""
    config = manifest.get("config")
    kept = {key: value for key, value in config.items() if key not in APART} if isinstance(config, Mapping) else {}
    parts = {"config": kept, "models": manifest.get("models", {}), "versions": manifest.get("versions", {})}
    [settings] = pd.json_normalize(parts).to_dict("records")
    return {str(place): cut(str(value), MOST_CHARACTERS) for place, value in settings.items()}
