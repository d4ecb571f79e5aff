"""Two runs side by side: whose scores changed, whether clearly, and what else was different."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from operators.comparison import SIGNIFICANT, Duel, duels
from operators.report.findings import Sentence, names, signed
from operators.report.health import Named
from operators.statistics.ordering import holm
from operators.summary import OVERALL

BEFORE, AFTER = "before", "after"
MOST_SENTENCES = 6
MOST_ROWS = 300
MOST_SETTINGS = 60
APART = ("store", "dry_run", "cluster", "storage", "max_failed", "shard_rows")
"""Settings that change no score."""


class Change(NamedTuple):
    """A generator's change from one run to the next, over the prompts that both scored."""

    generator: str
    metric: str
    skill: str
    before: float
    after: float
    difference: float
    low: float
    high: float
    p_holm: float
    """Corrected (Holm) for all the changes looked at."""
    n: int
    verdict: str
    """`better`, `worse`, `unchanged` where every prompt's score is the same, or `not clear`."""


class Changes(NamedTuple):
    """What the page says of another run."""

    run_id: str
    sentences: list[Sentence]
    overall: list[Change]
    by_skill: list[Change]
    """Only the clear ones."""
    settings: list[Named]
    added: list[str]
    """Generators and metrics that only the newer run has."""
    removed: list[str]


def compare(
    before: pa.Table,
    after: pa.Table,
    skills: Mapping[str, Sequence[str]],
    manifests: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> Changes:
    """Scores of two runs (schema SCORES), paired by generator, metric and prompt; `manifests` are (before, after).

    A metric whose settings or models differ is another metric: its scores are not compared.
    """
    altered = _altered(*manifests)
    both = _common(before, after, "generator")
    one, other = (_without(table, altered) for table in (before, after))
    found = [change for generator in both for change in _changes_of(generator, one, other, skills)]
    corrected = _corrected(found)
    overall = [one for one in corrected if one.skill == OVERALL]
    clear = [one for one in corrected if one.skill != OVERALL and one.verdict in ("better", "worse")]
    return Changes(
        run_id=str(manifests[0].get("run_id", "")),
        sentences=[*_altered_sentences(altered), *_sentences(overall)],
        overall=overall[:MOST_ROWS],
        by_skill=sorted(clear, key=lambda one: one.difference)[:MOST_ROWS],
        settings=list(_settings(*manifests))[:MOST_SETTINGS],
        added=[*_only(after, before, "generator"), *_only(after, before, "metric")],
        removed=[*_only(before, after, "generator"), *_only(before, after, "metric")],
    )


def _altered(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Named]]:
    """By metric of both runs, the settings that make it another one."""
    settings = list(_settings(before, after))
    config: Mapping[str, Any] = after.get("config", {})
    metrics, roles = config.get("metrics", {}), config.get("models", {})
    found = {}
    for name in metrics.keys() & before.get("config", {}).get("metrics", {}).keys():
        used = [role for role in metrics[name].values() if isinstance(role, str) and role in roles]
        places = (f"config.metrics.{name}.", *(place for role in used for place in _identity(role, after)))
        if mine := [one for one in settings if one.name.startswith(places)]:
            found[name] = mine
    return {name: found[name] for name in metrics if name in found}


def _identity(role: str, manifest: Mapping[str, Any]) -> list[str]:
    """The settings that tell which model a role was: those of its stages, or where it has none of its own, its name."""
    stages = [stage for stage in manifest.get("models", {}) if stage.partition(":")[2] == role]
    names = [f"config.models.{role}.{name}" for name in ("checkpoint", "revision")]
    return [f"models.{stage}" for stage in stages] or names


def _without(table: pa.Table, metrics: Mapping[str, Any]) -> pa.Table:
    """The scores of all other metrics."""
    return table.filter(pc.invert(pc.is_in(table.column("metric"), pa.array(list(metrics), pa.string()))))


def _altered_sentences(altered: Mapping[str, Sequence[Named]]) -> list[Sentence]:
    return [
        Sentence(
            f"{metric} is not the same metric in both runs,",
            f"so its scores are not compared: {names([f'{one.name} {one.value}' for one in settings], 1)}.",
        )
        for metric, settings in altered.items()
    ]


def _values(table: pa.Table, column: str) -> list[str]:
    return [value for value in pc.unique(table.column(column)).to_pylist() if value is not None]


def _common(before: pa.Table, after: pa.Table, column: str) -> list[str]:
    known = set(_values(before, column))
    return [value for value in _values(after, column) if value in known]


def _only(one: pa.Table, other: pa.Table, column: str) -> list[str]:
    known = set(_values(other, column))
    return [f"{column} {value}" for value in _values(one, column) if value not in known]


def _changes_of(
    generator: str, before: pa.Table, after: pa.Table, skills: Mapping[str, Sequence[str]]
) -> Iterator[Change]:
    """One generator's two runs, compared as if they were two generators."""
    sides = pa.concat_tables([_side(before, generator, BEFORE), _side(after, generator, AFTER)])
    earlier = _paired(sides)
    for duel in duels(sides, skills):
        scores = earlier[duel.metric]
        if duel.skill != OVERALL:
            scores = scores[[duel.skill in (skills.get(prompt) or ()) for prompt in scores.index]]
        yield _change(generator, duel, float(scores.mean()) if len(scores) else math.nan)


def _paired(sides: pa.Table) -> dict[str, pd.Series]:
    """By metric, the earlier run's score of every prompt that both runs scored."""
    frame = sides.select(["generator", "metric", "prompt_id", "score"]).to_pandas().dropna()
    wide = frame.pivot_table(index=["metric", "prompt_id"], columns="generator", values="score", aggfunc="mean")
    both = wide.reindex(columns=[BEFORE, AFTER]).dropna()[BEFORE]
    return {metric: both.xs(metric) for metric in both.index.get_level_values("metric").unique()}


def _side(table: pa.Table, generator: str, name: str) -> pa.Table:
    columns = ["image_id", "prompt_id", "generator", "metric", "score"]
    mine = table.select(columns).filter(pc.equal(table.column("generator"), generator))
    return mine.set_column(2, "generator", pa.array([name] * len(mine), pa.string()))


def _change(generator: str, duel: Duel, before: float) -> Change:
    sign = 1 if duel.generator_a == AFTER else -1
    low, high = sorted((sign * duel.low, sign * duel.high))
    difference = sign * duel.difference
    same = duel.difference == 0 and duel.low == duel.high == 0
    return Change(
        generator=generator,
        metric=duel.metric,
        skill=duel.skill,
        before=before,
        after=before + difference,
        difference=difference,
        low=low,
        high=high,
        p_holm=duel.p_value,
        n=duel.n,
        verdict="unchanged" if same else "not clear",
    )


def _corrected(found: Sequence[Change]) -> list[Change]:
    """The changes with their p-values corrected (Holm 1979), and what they say."""
    corrected = holm([one.p_holm for one in found])
    return [_judged(one._replace(p_holm=p)) for one, p in zip(found, corrected, strict=True)]


def _judged(one: Change) -> Change:
    if one.verdict == "unchanged" or not one.p_holm < SIGNIFICANT:
        return one
    return one._replace(verdict="better" if one.difference > 0 else "worse")


def _sentences(overall: Sequence[Change]) -> list[Sentence]:
    """Each generator with a clear change, and what of the rest."""
    clear = [one for one in overall if one.verdict in ("better", "worse")]
    if not overall:
        return [Sentence("The two runs share no generator with scores by the same metric.", "")]
    if not clear:
        same = all(one.verdict == "unchanged" for one in overall)
        return [Sentence("Nothing changed." if same else "Nothing changed clearly.", "")]
    found = [
        Sentence(f"{generator} is {'better' if its[0].difference > 0 else 'worse'}", _by_metrics(its))
        for generator, verdict in dict.fromkeys((one.generator, one.verdict) for one in clear)
        if (its := [one for one in clear if (one.generator, one.verdict) == (generator, verdict)])
    ]
    still = [name for name in dict.fromkeys(one.generator for one in overall) if not _is_in(name, clear)]
    rest = [Sentence("No clear change:", f"{names(still)}.")] if still else []
    return [*found[:MOST_SENTENCES], *rest]


def _is_in(generator: str, changes: Sequence[Change]) -> bool:
    return any(one.generator == generator for one in changes)


def _by_metrics(changes: Sequence[Change]) -> str:
    return f"by {names([f'{one.metric} ({signed(one.difference)})' for one in changes])}."


def _settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Named]:
    """What differs in the configuration, the models and the versions."""
    one, other = _flat(before), _flat(after)
    for key in dict.fromkeys([*one, *other]):
        if one.get(key) != other.get(key):
            yield Named(key, f"{one.get(key, '–')} → {other.get(key, '–')}")


def _flat(manifest: Mapping[str, Any]) -> dict[str, str]:
    config = manifest.get("config")
    kept = {key: value for key, value in config.items() if key not in APART} if isinstance(config, Mapping) else {}
    parts = {"config": kept, "models": manifest.get("models", {}), "versions": manifest.get("versions", {})}
    return dict(_leaves(parts, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, its in value.items():
            yield from _leaves(its, f"{path}.{key}" if path else str(key))
    else:
        shown = str(value)
        yield path, shown if len(shown) <= 200 else f"{shown[:200]}…"
