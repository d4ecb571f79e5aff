"""Two runs side by side: whose scores changed, whether clearly, what came and went, and what else was different."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from operators.comparison import SIGNIFICANT, Duel, duels
from operators.report.health import Named
from operators.report.words import Sentence, Shown, names, plural, shown, signed
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
    effect: float
    """Matched-pairs rank-biserial correlation, -1 to 1: above 0 where the signed ranks favour the newer run."""
    n: int
    verdict: str
    """`better`, `worse`, `unchanged` where every prompt's score is the same, or `not clear`."""


class Changes(NamedTuple):
    """What the page says of another run."""

    run_id: str
    sentences: list[Sentence]
    """What changed, what only one of the runs has, and which metrics are not the same."""
    overall: Shown[Change]
    by_skill: Shown[Change]
    """Only the clear ones."""
    settings: Shown[Named]


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
    only = [
        *_only_sentences("Only in this run:", after, before),
        *_only_sentences("Only in the earlier run:", before, after),
    ]
    return Changes(
        run_id=str(manifests[0].get("run_id", "")),
        sentences=[*_altered_sentences(altered), *_sentences(overall, partial=bool(only or altered)), *only],
        overall=shown(overall, MOST_ROWS),
        by_skill=shown(sorted(clear, key=lambda one: one.effect), MOST_ROWS),
        settings=shown(list(_settings(*manifests)), MOST_SETTINGS),
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


def _only_sentences(lead: str, one: pa.Table, other: pa.Table) -> list[Sentence]:
    """What one run has and the other lacks: generators, metrics and prompts, and of those of both, scores."""
    parts = [
        f"{column} {names(values)}" if len(values) == 1 else f"{column}s {names(values)}"
        for column in ("generator", "metric")
        if (values := _only(one, other, column))
    ]
    if prompts := _only(one, other, "prompt_id"):
        parts.append(plural(len(prompts), "prompt"))
    parts += [
        f"scores of {who} by {metric} on {plural(count, 'prompt')}" for (who, metric), count in _only_scores(one, other)
    ]
    return [Sentence(lead, f"{names(parts, MOST_SENTENCES)}.")] if parts else []


def _only(one: pa.Table, other: pa.Table, column: str) -> list[str]:
    known = set(_values(other, column))
    return [value for value in _values(one, column) if value not in known]


def _only_scores(one: pa.Table, other: pa.Table) -> list[tuple[tuple[str, str], int]]:
    """By generator and metric, how many prompts of both runs have a score in one of them alone."""
    keys = ["generator", "metric", "prompt_id"]
    scored, known = (
        table.select([*keys, "score"]).to_pandas().dropna(subset=["score"])[keys].drop_duplicates()
        for table in (one, other)
    )
    alone = scored.merge(known, on=keys, how="left", indicator="side").query("side == 'left_only'")
    for key in keys:
        alone = alone[alone[key].isin(_values(other, key))]
    return [((str(who), str(metric)), len(rows)) for (who, metric), rows in alone.groupby(keys[:2], sort=False)]


def _changes_of(
    generator: str, before: pa.Table, after: pa.Table, skills: Mapping[str, Sequence[str]]
) -> Iterator[Change]:
    """One generator's two runs, compared as if they were two generators."""
    sides = pa.concat_tables([_side(before, generator, BEFORE), _side(after, generator, AFTER)])
    pairs = _paired(sides)
    for duel in duels(sides, skills):
        scores = pairs[duel.metric]
        if duel.skill != OVERALL:
            scores = scores[[duel.skill in (skills.get(prompt) or ()) for prompt in scores.index]]
        yield _change(generator, duel, scores)


def _paired(sides: pa.Table) -> dict[str, pd.DataFrame]:
    """By metric, the two runs' scores of every prompt that both scored."""
    frame = sides.select(["generator", "metric", "prompt_id", "score"]).to_pandas().dropna()
    wide = frame.pivot_table(index=["metric", "prompt_id"], columns="generator", values="score", aggfunc="mean")
    both = wide.reindex(columns=[BEFORE, AFTER]).dropna()
    return {metric: both.xs(metric) for metric in both.index.get_level_values("metric").unique()}


def _side(table: pa.Table, generator: str, name: str) -> pa.Table:
    columns = ["image_id", "prompt_id", "generator", "metric", "score"]
    mine = table.select(columns).filter(pc.equal(table.column("generator"), generator))
    return mine.set_column(2, "generator", pa.array([name] * len(mine), pa.string()))


def _change(generator: str, duel: Duel, scores: pd.DataFrame) -> Change:
    sign = 1 if duel.generator_a == AFTER else -1
    low, high = sorted((sign * duel.low, sign * duel.high))
    return Change(
        generator=generator,
        metric=duel.metric,
        skill=duel.skill,
        before=float(scores[BEFORE].mean()),
        after=float(scores[AFTER].mean()),
        difference=sign * duel.difference,
        low=low,
        high=high,
        p_holm=duel.p_value,
        effect=sign * duel.effect,
        n=duel.n,
        verdict="unchanged" if scores[BEFORE].equals(scores[AFTER]) else "not clear",
    )


def _corrected(found: Sequence[Change]) -> list[Change]:
    """The changes with their p-values corrected (Holm 1979), and what they say."""
    corrected = holm([one.p_holm for one in found])
    return [_judged(one._replace(p_holm=p)) for one, p in zip(found, corrected, strict=True)]


def _judged(one: Change) -> Change:
    if one.verdict == "unchanged" or not one.p_holm < SIGNIFICANT:
        return one
    return one._replace(verdict="better" if one.effect > 0 else "worse")


def _sentences(overall: Sequence[Change], *, partial: bool) -> list[Sentence]:
    """Each generator with a clear change, and the rest; `partial` where the runs hold more than was compared."""
    clear = [one for one in overall if one.verdict in ("better", "worse")]
    if not overall:
        return [Sentence("The two runs share no generator with scores by the same metric.", "")]
    if not clear:
        same = "Nothing changed" if all(one.verdict == "unchanged" for one in overall) else "Nothing changed clearly"
        return [Sentence(f"{same} in what both runs scored." if partial else f"{same}.", "")]
    found = shown(
        [
            Sentence(
                f"{generator} is {verdict}",
                _by_metrics([one for one in clear if one.generator == generator and one.verdict == verdict]),
            )
            for generator, verdict in dict.fromkeys((one.generator, one.verdict) for one in clear)
        ],
        MOST_SENTENCES,
    )
    more = [Sentence(f"{plural(found.left_out, 'more clear change')}.", "")] if found.left_out else []
    still = [name for name in dict.fromkeys(one.generator for one in overall) if not _is_in(name, clear)]
    return [*found.rows, *more, *([Sentence("No clear change:", f"{names(still)}.")] if still else [])]


def _is_in(generator: str, changes: Sequence[Change]) -> bool:
    return any(one.generator == generator for one in changes)


def _by_metrics(changes: Sequence[Change]) -> str:
    return f"by {names([f'{one.metric} ({_size(one)})' for one in changes])}."


def _size(one: Change) -> str:
    """How far the mean moved, and where that is not the direction of the signed ranks, theirs."""
    contrary = one.difference * one.effect <= 0
    return signed(one.difference) + (f" in the mean, signed ranks {signed(one.effect, 2)}" if contrary else "")


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
