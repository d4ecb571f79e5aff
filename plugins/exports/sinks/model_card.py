"""What a model's card says of a run: one generator's scores, how they came about, and the command that repeats them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any, NamedTuple

from plumbline.operators.base.errors import DISTRIBUTION, ConfigError, suggest
from plumbline.operators.base.sentences import FirstRows, first_rows, interval_sentence, plural
from plumbline.operators.images.generation_settings import in_words, known_settings
from plumbline.operators.metrics.table import falling_metrics, read_metrics
from plumbline.operators.results.metric_recipes import Recipe, recipe_of
from plumbline.operators.results.summary import OVERALL, part_of

MOST_SKILLS = 60
DIGITS = 12
"""Of a digest that are shown."""

Row = Mapping[str, Any]
"""Of a summary (schema SUMMARY)."""


class CardMetric(NamedTuple):
    """A metric, as a reader must know it to compare its scores with others."""

    name: str
    lower_is_better: bool
    ranks: bool
    """Whether one score by it is better than another."""
    models: str
    """Of each role its family and checkpoint, with the commit or digest of its files."""
    recipe: str
    """The beginning of a digest of its recipe, which is the same where two metrics are."""
    rows: Mapping[str, Row]
    """By skill, the generator's."""


class ModelCard(NamedTuple):
    """One generator's part of a run."""

    benchmark: str
    generator: str
    run_id: str
    date: str
    """When the run ended, as ISO 8601 has it."""
    version: str
    """Of Plumbline."""
    metrics: list[CardMetric]
    """Those by which it has a score."""
    skills: FirstRows[str]
    settings: str
    """Those that its images were generated with, in words; empty where none is known."""
    part: str
    """In words what part of the benchmark was scored; empty for all of it."""
    command: str


def make_card(manifest: Mapping[str, Any], summary: Sequence[Row], generator: str) -> ModelCard:
    """The card of a generator; raises ConfigError where the run has no score of it."""
    generators = manifest.get("generators", ())
    if generator not in generators:
        raise ConfigError(f"generator: {generator!r} is not in the run; {suggest(generator, generators)}")
    own = [row for row in summary if row["generator"] == generator and row["mean"] is not None]
    metrics = list(_metrics(manifest, own))
    if not metrics:
        raise ConfigError(f"generator: {generator!r} has no score in run {manifest['run_id']}; see its report")
    skills = dict.fromkeys(row["skill"] for row in own if row["skill"] != OVERALL)
    return ModelCard(
        benchmark=str(manifest.get("benchmark", "")),
        generator=generator,
        run_id=str(manifest["run_id"]),
        date=str(manifest.get("ended", "")),
        version=str(manifest.get("versions", {}).get(DISTRIBUTION, "")),
        metrics=metrics,
        skills=first_rows(list(skills), MOST_SKILLS),
        settings=", ".join(f"{name} {in_words(of)}" for name, of in known_settings(manifest, generator).items()),
        part=part_of(manifest),
        command=str(manifest.get("command", "")),
    )


def _metrics(manifest: Mapping[str, Any], own: Sequence[Row]) -> Iterator[CardMetric]:
    falling, metrics = falling_metrics(manifest), read_metrics(manifest)
    for name in manifest.get("metrics", ()):
        rows = {row["skill"]: row for row in own if row["metric"] == name}
        if OVERALL in rows:
            roles = dict.fromkeys(metrics[name].roles.values()) if name in metrics else ()
            models = "; ".join(filter(None, (_model(manifest, role) for role in roles)))
            yield CardMetric(
                name,
                name in falling,
                name not in metrics or metrics[name].ranks,
                models,
                _digest(recipe_of(manifest, name)),
                rows,
            )


def _digest(recipe: Recipe) -> str:
    return sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _model(manifest: Mapping[str, Any], role: str) -> str:
    """The model of a role; of a local one its folder's name, for where it stands here is nobody's business."""
    config = manifest.get("config", {}).get("models", {}).get(role, {})
    checkpoint = str(config.get("checkpoint", ""))
    if checkpoint.startswith(("/", ".", "~")):
        checkpoint = PurePath(checkpoint).name
    of_nodes = manifest.get("models", {}).items()
    semantic: Mapping[str, Any] = next((of for node, of in of_nodes if node.split(":")[1:2] == [role]), {})
    identity = str(semantic.get("parts", {}).get("checkpoint", "")).rpartition("@")[2][:DIGITS]
    return " ".join(filter(None, (str(config.get("family", "")), checkpoint, f"({identity})" if identity else "")))


class CardScore(NamedTuple):
    """One score, as a benchmark's leaderboard takes it."""

    task: str
    value: float
    notes: str


def scores_of(card: ModelCard, tasks: Mapping[str, str]) -> list[CardScore]:
    """By a benchmark's tasks the scores of `metric`, or of `metric/skill`; without, each metric that ranks is a task.

    Raises ConfigError for a score that the card has not.
    """
    known = {
        metric.name if skill == OVERALL else f"{metric.name}/{skill}": (metric, row)
        for metric in card.metrics for skill, row in metric.rows.items()
    }  # fmt: skip
    for name in tasks:
        if name not in known:
            raise ConfigError(f"tasks: the run has no score {name!r} of {card.generator}; {suggest(name, known)}")
    wanted = tasks or {metric.name: metric.name for metric in card.metrics if metric.ranks}
    scores = []
    for name, task in wanted.items():
        metric, row = known[name]
        scores.append(CardScore(task, float(row["mean"]), ", ".join(_notes(card, name, metric, row))))
    return scores


def _notes(card: ModelCard, name: str, metric: CardMetric, row: Row) -> Iterator[str]:
    """Yield notes on how a score was computed."""
    yield f"{name}{f' by {metric.models}' if metric.models else ''}{', lower is better' * metric.lower_is_better}"
    yield interval_sentence(row["low"], row["high"])
    yield f"coverage {row['coverage']:.1%} of {plural(row['n'] + row['n_null'], 'image')}"
    if card.settings:
        yield card.settings
    yield f"Plumbline {card.version} run {card.run_id}"
