"""Two runs side by side: whose scores changed, whether clearly, what came and went, and what else was different."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from operators.comparison import SIGNIFICANT, by_skill, compare_columns, prompt_means
from operators.report.health import Named
from operators.report.words import Sentence, Shown, names, plural, shown, signed
from operators.statistics.ordering import holm
from operators.summary import OVERALL

MOST_SENTENCES = 6
MOST_ROWS = 300
MOST_SETTINGS = 60
MOST_CHARACTERS = 200
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
    """Corrected (Holm 1979) for all the changes looked at."""
    effect: float
    """Matched-pairs rank-biserial correlation, -1 to 1: above 0 where the signed ranks favour the newer run."""
    n: int
    verdict: str
    """`better`, `worse`, `unchanged` where every prompt's score is the same, or `not clear`."""

    @property
    def is_clear(self) -> bool:
        """Whether it is for the better or the worse."""
        return self.verdict in ("better", "worse")


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
    settings = list(_settings(*manifests))
    altered = _altered(*manifests, settings)
    changes = _judged(list(_changes(_without(before, altered), _without(after, altered), skills)))
    overall = [change for change in changes if change.skill == OVERALL]
    at_skills = [change for change in changes if change.skill != OVERALL and change.is_clear]
    alone = [
        *_alone_sentences("Only in this run:", after, before),
        *_alone_sentences("Only in the earlier run:", before, after),
    ]
    return Changes(
        run_id=str(manifests[0].get("run_id", "")),
        sentences=[
            *_altered_sentences(altered),
            *_change_sentences(overall, partial=bool(alone or altered)),
            *alone,
        ],
        overall=shown(overall, MOST_ROWS),
        by_skill=shown(sorted(at_skills, key=lambda change: change.effect), MOST_ROWS),
        settings=shown(settings, MOST_SETTINGS),
    )


def _altered(before: Mapping[str, Any], after: Mapping[str, Any], settings: Sequence[Named]) -> dict[str, list[Named]]:
    """By metric of both runs, the settings that make it another one."""
    config: Mapping[str, Any] = after.get("config", {})
    roles, earlier = config.get("models", {}), before.get("config", {}).get("metrics", {})
    altered = {}
    for metric, options in config.get("metrics", {}).items():
        used = [role for role in options.values() if isinstance(role, str) and role in roles]
        places = (f"config.metrics.{metric}.", *(place for role in used for place in _identity(role, after)))
        own = [setting for setting in settings if setting.name.startswith(places)]
        if own and metric in earlier:
            altered[metric] = own
    return altered


def _identity(role: str, manifest: Mapping[str, Any]) -> list[str]:
    """The settings that tell which model a role was: those of its stages, or where it has none of its own, its name."""
    stages = [f"models.{stage}" for stage in manifest.get("models", {}) if stage.partition(":")[2] == role]
    return stages or [f"config.models.{role}.{name}" for name in ("checkpoint", "revision")]


def _without(table: pa.Table, metrics: Mapping[str, Any]) -> pa.Table:
    """The scores of all other metrics."""
    return table.filter(pc.invert(pc.is_in(table.column("metric"), pa.array(list(metrics), pa.string()))))


def _altered_sentences(altered: Mapping[str, Sequence[Named]]) -> list[Sentence]:
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


def _changes(before: pa.Table, after: pa.Table, skills: Mapping[str, Sequence[str]]) -> Iterator[Change]:
    """Every generator's two runs, compared as if they were two generators; p-values are not corrected yet."""
    earlier, later = dict(prompt_means(before)), dict(prompt_means(after))
    for generator in _values(after, "generator"):
        for metric in earlier:
            columns = [means[metric].get(generator) for means in (later, earlier) if metric in means]
            if len(columns) < 2 or any(column is None for column in columns):
                continue
            both = pd.concat(columns, axis=1, keys=["after", "before"], join="inner").dropna()
            for skill, prompts in by_skill(both, skills):
                for duel in compare_columns(metric, skill, prompts):
                    yield Change(
                        generator=generator,
                        metric=metric,
                        skill=skill,
                        before=float(prompts["before"].mean()),
                        after=float(prompts["after"].mean()),
                        difference=duel.difference,
                        low=duel.low,
                        high=duel.high,
                        p_holm=duel.p_value,
                        effect=duel.effect,
                        n=duel.n,
                        verdict="unchanged" if prompts["before"].equals(prompts["after"]) else "not clear",
                    )


def _judged(changes: Sequence[Change]) -> list[Change]:
    """The changes with their p-values corrected, and what they say."""
    judged = []
    for change, p_holm in zip(changes, holm([change.p_holm for change in changes]), strict=True):
        clear = change.verdict != "unchanged" and p_holm < SIGNIFICANT
        verdict = ("better" if change.effect > 0 else "worse") if clear else change.verdict
        judged.append(change._replace(p_holm=p_holm, verdict=verdict))
    return judged


def _change_sentences(overall: Sequence[Change], *, partial: bool) -> list[Sentence]:
    """Each generator with a clear change, and the rest; `partial` where the runs hold more than was compared."""
    if not overall:
        return [Sentence("The two runs share no generator with scores by the same metric.", "")]
    clear: dict[tuple[str, str], list[str]] = {}
    for change in overall:
        if change.is_clear:
            clear.setdefault((change.generator, change.verdict), []).append(f"{change.metric} ({_size(change)})")
    if not clear:
        same = all(change.verdict == "unchanged" for change in overall)
        lead = "Nothing changed" if same else "Nothing changed clearly"
        return [Sentence(f"{lead} in what both runs scored." if partial else f"{lead}.", "")]
    said = [Sentence(f"{name} is {verdict}", f"by {names(sizes)}.") for (name, verdict), sizes in clear.items()]
    sentences, left_out = shown(said, MOST_SENTENCES)
    if left_out:
        sentences.append(Sentence(f"{plural(left_out, 'more clear change')}.", ""))
    changed = {generator for generator, _ in clear}
    if still := [name for name in dict.fromkeys(change.generator for change in overall) if name not in changed]:
        sentences.append(Sentence("No clear change:", f"{names(still)}."))
    return sentences


def _size(change: Change) -> str:
    """How far the mean moved, and where that is not the direction of the signed ranks, theirs."""
    contrary = change.difference * change.effect <= 0
    return signed(change.difference) + (f" in the mean, signed ranks {signed(change.effect, 2)}" if contrary else "")


def _settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Named]:
    """What differs in the configuration, the models and the versions."""
    earlier, later = (dict(_leaves(_compared(manifest), "")) for manifest in (before, after))
    for key in dict.fromkeys([*earlier, *later]):
        if earlier.get(key) != later.get(key):
            yield Named(key, f"{earlier.get(key, '–')} → {later.get(key, '–')}")


def _compared(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parts of a manifest that may change a score."""
    config = manifest.get("config")
    kept = {key: value for key, value in config.items() if key not in APART} if isinstance(config, Mapping) else {}
    return {"config": kept, "models": manifest.get("models", {}), "versions": manifest.get("versions", {})}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        text = str(value)
        yield path, text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
