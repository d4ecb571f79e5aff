"""Two runs side by side: whose scores changed, whether clearly, what came and went, and what else was different."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from operators.comparison import SIGNIFICANT, Duel, by_skill, compare_columns, prompt_means
from operators.metrics.metric import Metric, direction
from operators.metrics.table import falling_metrics, read_metrics
from operators.report.marks import cut
from operators.report.words import Sentence, Shown, names, plural, shown, signed
from operators.sentinel import Movement, alarm, suspicious
from operators.statistics.ordering import holm
from operators.summary import OVERALL

MOST_SENTENCES = 6
TEST = f"Wilcoxon's signed-rank test, Holm, p < {SIGNIFICANT:g}"
MOST_ROWS = 300
MOST_SETTINGS = 60
MOST_CHARACTERS = 200
APART = ("store", "dry_run", "cluster", "storage", "max_failed", "shard_rows")
"""Settings that change no score."""
NAMING = ("checkpoint", "revision")
"""What names a model of whose files nothing is known."""
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
    is the same, or `not clear`."""

    @property
    def is_clear(self) -> bool:
        """Whether it is more than chance."""
        return self.verdict not in ("unchanged", "not clear")

    @property
    def movement(self) -> Movement:
        """As the sentinel looks at it."""
        towards = 0 if not self.is_clear else self.duel.direction if self.duel.effect > 0 else -self.duel.direction
        return Movement(self.duel.metric, self.before, self.after, towards)


class Changes(NamedTuple):
    """What the page says of another run."""

    run_id: str
    sentences: list[Sentence]
    """What changed, what only one of the runs has, and which metrics are not the same."""
    overall: Shown[Change]
    by_skill: Shown[Change]
    """Only the clear ones."""
    settings: Shown[Setting]
    clear: list[Change]
    """All clear ones, overall and by skill, none left out."""


def comparable_metrics(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The metrics of both manifests whose settings and models are the same, so that their scores can be compared."""
    altered = _altered(before, after, list(_settings(before, after)))
    earlier = before.get("config", {}).get("metrics", {})
    return [name for name in after.get("config", {}).get("metrics", {}) if name in earlier and name not in altered]


def compare(
    before: pa.Table,
    after: pa.Table,
    skills: Mapping[str, Sequence[str]],
    manifests: tuple[Mapping[str, Any], Mapping[str, Any]],
    reward: str | None = None,
) -> Changes:
    """Scores of two runs (schema SCORES), paired by generator, metric and prompt; `manifests` are (before, after).

    A metric whose settings or models differ is another metric: its scores are not compared. `reward` is the metric that
    the generators were trained on since, where they were: who seems to game it is said first.
    """
    metrics = read_metrics(manifests[1])
    settings = list(_settings(*manifests))
    altered = _altered(*manifests, settings)
    before_and_after = (_without(before, altered), _without(after, altered))
    changes = _judged(list(_changes(*before_and_after, skills, falling_metrics(manifests[1]))), metrics)
    overall = [change for change in changes if change.duel.skill == OVERALL]
    at_skills = [change for change in changes if change.duel.skill != OVERALL and change.is_clear]
    alone = [
        *_alone_sentences("Only in this run:", after, before),
        *_alone_sentences("Only in the earlier run:", before, after),
    ]
    return Changes(
        run_id=str(manifests[0].get("run_id", "")),
        sentences=[
            *_alarms(overall, reward, metrics),
            *_altered_sentences(altered),
            *_change_sentences(overall, partial=bool(alone or altered)),
            *alone,
        ],
        overall=shown(overall, MOST_ROWS),
        by_skill=shown(sorted(at_skills, key=lambda change: change.duel.effect), MOST_ROWS),
        settings=shown(settings, MOST_SETTINGS),
        clear=[change for change in changes if change.is_clear],
    )


def _altered(
    before: Mapping[str, Any], after: Mapping[str, Any], settings: Sequence[Setting]
) -> dict[str, list[Setting]]:
    """By metric of both runs, the settings that make it another one."""
    config: Mapping[str, Any] = after.get("config", {})
    roles, earlier = config.get("models", {}), before.get("config", {}).get("metrics", {})
    altered = {}
    for metric, options in config.get("metrics", {}).items():
        used = [role for role in options.values() if isinstance(role, str) and role in roles]
        places = (f"config.metrics.{metric}.", *(place for role in used for place in _identity(role, after)))
        own = [setting for setting in settings if setting[0].startswith(places)]
        if own and metric in earlier:
            altered[metric] = own
    return altered


def recipe(manifest: Mapping[str, Any], metric: str) -> dict[str, str]:
    """The settings of a run that make a metric what it is, by their places: its own, and what tells which its models
    are. Runs in which they differ have another metric of the same name.
    """
    config: Mapping[str, Any] = manifest.get("config", {})
    options, models = config.get("metrics", {}).get(metric, {}), config.get("models", {})
    roles = [role for role in options.values() if isinstance(role, str) and role in models]
    stages = {stage: model for stage, model in manifest.get("models", {}).items() if stage.partition(":")[2] in roles}
    resolved = {stage.partition(":")[2] for stage in stages}
    named = {role: {name: models[role].get(name) for name in NAMING} for role in roles if role not in resolved}
    parts = {"config": {"metrics": {metric: options}, "models": named}, "models": stages}
    return {place: str(value) for place, value in _leaves(parts) if not place.endswith(ABOUT)}


def _leaves(parts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings by their places, as `_compared` names them."""
    for name, value in parts.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _identity(role: str, manifest: Mapping[str, Any]) -> list[str]:
    """The settings that tell which model a role was: those of its stages, or where it has none of its own, its name."""
    stages = [f"models.{stage}" for stage in manifest.get("models", {}) if stage.partition(":")[2] == role]
    return stages or [f"config.models.{role}.{name}" for name in NAMING]


def _without(table: pa.Table, metrics: Mapping[str, Any]) -> pa.Table:
    """The scores of all other metrics."""
    return table.filter(pc.invert(pc.is_in(table.column("metric"), pa.array(list(metrics), pa.string()))))


def _altered_sentences(altered: Mapping[str, Sequence[Setting]]) -> list[Sentence]:
    return [
        Sentence(
            f"{metric} is not the same metric in both runs,",
            f"so its scores are not compared: {names([f'{name} {value}' for name, value in settings], 1)}.",
        )
        for metric, settings in altered.items()
    ]


def _alone_sentences(lead: str, table: pa.Table, other: pa.Table) -> list[Sentence]:
    """What one run has and the other lacks: generators, metrics and prompts, and of those of both, scores."""
    parts = [
        f"{column}{'s' * (len(values) > 1)} {names(values)}"
        for column in ("generator", "metric")
        if (values := _alone(table, other, column))
    ]
    if prompts := _alone(table, other, "prompt_id"):
        parts.append(plural(len(prompts), "prompt"))
    parts += [
        f"scores of {generator} by {metric} on {plural(count, 'prompt')}"
        for generator, metric, count in _alone_scores(table, other)
    ]
    return [Sentence(lead, f"{names(parts, MOST_SENTENCES)}.")] if parts else []


def _values(table: pa.Table, column: str) -> list[str]:
    return [value for value in pc.unique(table.column(column)).to_pylist() if value is not None]


def _alone(table: pa.Table, other: pa.Table, column: str) -> list[str]:
    known = set(_values(other, column))
    return [value for value in _values(table, column) if value not in known]


def _alone_scores(table: pa.Table, other: pa.Table) -> list[tuple[str, str, int]]:
    """By generator and metric, how many prompts of both runs have a score in one of them alone."""
    keys = ["generator", "metric", "prompt_id"]
    scored, known = (
        side.select([*keys, "score"]).to_pandas().dropna(subset=["score"])[keys].drop_duplicates()
        for side in (table, other)
    )
    alone = scored.merge(known, on=keys, how="left", indicator="side").query("side == 'left_only'")
    for key in keys:
        alone = alone[alone[key].isin(_values(other, key))]
    counts = alone.groupby(keys[:2], sort=False).size()
    return [(str(generator), str(metric), int(count)) for (generator, metric), count in counts.items()]


def _changes(
    before: pa.Table, after: pa.Table, skills: Mapping[str, Sequence[str]], falling: Container[str]
) -> Iterator[Change]:
    """Every generator's two runs, compared as if they were two generators; p-values are not corrected yet."""
    earlier, later = dict(prompt_means(before)), dict(prompt_means(after))
    for generator in _values(after, "generator"):
        for metric in earlier:
            columns = [means[metric].get(generator) for means in (later, earlier) if metric in means]
            if len(columns) < 2 or any(column is None for column in columns):
                continue
            both = pd.concat(columns, axis=1, keys=["after", "before"], join="inner").dropna()
            for skill, prompts in by_skill(both, skills):
                for duel in compare_columns(metric, skill, prompts, direction(metric, falling)):
                    verdict = "unchanged" if prompts["before"].equals(prompts["after"]) else "not clear"
                    yield Change(generator, prompts["before"].mean(), prompts["after"].mean(), duel, verdict)


def _alarms(overall: Sequence[Change], reward: str | None, metrics: Mapping[str, Metric]) -> list[Sentence]:
    """Of each generator that seems to game the reward, in which way."""
    sentences = []
    for name in dict.fromkeys(change.generator for change in overall):
        moves = {change.duel.metric: change.movement for change in overall if change.generator == name}
        if (trained := moves.pop(reward or "", None)) and (moved := suspicious(trained, [*moves.values()], metrics)):
            sentences.append(alarm(name, trained, moved, TEST))
    return sentences


def _judged(changes: Sequence[Change], metrics: Mapping[str, Metric]) -> list[Change]:
    """The changes with their p-values corrected, and what they say."""
    judged = []
    for change, p_holm in zip(changes, holm([change.duel.p_value for change in changes]), strict=True):
        clear = change.verdict != "unchanged" and p_holm < SIGNIFICANT
        verdict = _direction(change, metrics) if clear else change.verdict
        judged.append(change._replace(duel=change.duel._replace(p_holm=p_holm), verdict=verdict))
    return judged


def _direction(change: Change, metrics: Mapping[str, Metric]) -> str:
    """What a clear change is."""
    metric = metrics.get(change.duel.metric)
    up, down = ("better", "worse") if metric is None or metric.ranks else ("higher", "lower")
    return up if change.duel.effect > 0 else down


def _change_sentences(overall: Sequence[Change], *, partial: bool) -> list[Sentence]:
    """Each generator with a clear change, and the rest; `partial` where the runs hold more than was compared."""
    if not overall:
        return [Sentence("The two runs share no generator with scores by the same metric.", "")]
    clear: dict[tuple[str, str], list[str]] = {}
    for change in overall:
        if change.is_clear:
            clear.setdefault((change.generator, change.verdict), []).append(
                f"{change.duel.metric} ({_size(change.duel)})"
            )
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


def _settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Setting]:
    """What differs in the configuration, the models and the versions."""
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
