"""Contents of a model card's section: one generator's scores, their computation, and a command to reproduce them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any, NamedTuple

from plumbline.operators.base.errors import DISTRIBUTION, ConfigError, suggest
from plumbline.operators.base.sentences import FirstRows, describe_interval, format_quantity, take_first_rows
from plumbline.operators.images.generation_settings import describe_settings, read_all_settings
from plumbline.operators.metrics.table import read_lower_is_better, read_metrics
from plumbline.operators.results.metric_recipes import Recipe, read_recipe
from plumbline.operators.results.summary import OVERALL, describe_part

MAX_CARD_SKILLS = 60
DIGEST_CHARACTERS = 12

Row = Mapping[str, Any]
"""A row with the schema SUMMARY."""


class CardMetric(NamedTuple):
    """One metric's scores, and the details that readers need in order to compare them with other scores."""

    name: str
    lower_is_better: bool
    ranks: bool
    """True if the metric ranks generators."""
    models: str
    """Family, checkpoint, and commit or digest of each model."""
    recipe: str
    """Shortened digest of the recipe. Metrics with the same recipe have the same digest."""
    rows: Mapping[str, Row]
    """The generator's rows by skill."""


class ModelCard(NamedTuple):
    """The results of one generator in a run."""

    benchmark: str
    generator: str
    run_id: str
    date: str
    """Time at which the run ended, in ISO 8601."""
    version: str
    """Version of Plumbline."""
    metrics: list[CardMetric]
    skills: FirstRows[str]
    settings: str
    """Description of the known generation settings of the images."""
    part: str
    """Description of the scored part of the benchmark; empty if the whole benchmark was scored."""
    command: str


def make_card(manifest: Mapping[str, Any], summary: Sequence[Row], generator: str) -> ModelCard:
    """Return a generator's card; raise ConfigError if the run has no scores for the generator."""
    generators = manifest.get("generators", ())
    if generator not in generators:
        raise ConfigError(f"generator: {generator!r} is not in the run; {suggest(generator, generators)}")
    own = [row for row in summary if row["generator"] == generator and row["mean"] is not None]
    metrics = list(_make_metrics(manifest, own))
    if not metrics:
        raise ConfigError(f"generator: {generator!r} has no score in run {manifest['run_id']}; see the run's report")
    skills = dict.fromkeys(row["skill"] for row in own if row["skill"] != OVERALL)
    return ModelCard(
        benchmark=str(manifest.get("benchmark", "")),
        generator=generator,
        run_id=str(manifest["run_id"]),
        date=str(manifest.get("ended", "")),
        version=str(manifest.get("versions", {}).get(DISTRIBUTION, "")),
        metrics=metrics,
        skills=take_first_rows(list(skills), MAX_CARD_SKILLS),
        settings=describe_settings(read_all_settings(manifest).get(generator, {})),
        part=describe_part(manifest),
        command=str(manifest.get("command", "")),
    )


def _make_metrics(manifest: Mapping[str, Any], own: Sequence[Row]) -> Iterator[CardMetric]:
    lower_is_better, metrics = read_lower_is_better(manifest), read_metrics(manifest)
    for name in manifest.get("metrics", ()):
        rows = {row["skill"]: row for row in own if row["metric"] == name}
        if OVERALL in rows:
            roles = dict.fromkeys(metrics[name].roles.values()) if name in metrics else ()
            models = "; ".join(filter(None, (_describe_model(manifest, role) for role in roles)))
            yield CardMetric(
                name,
                name in lower_is_better,
                name not in metrics or metrics[name].ranks,
                models,
                _shorten_digest(read_recipe(manifest, name)),
                rows,
            )


def _shorten_digest(recipe: Recipe) -> str:
    return sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:DIGEST_CHARACTERS]


def _describe_model(manifest: Mapping[str, Any], role: str) -> str:
    """Describe a role's model; name only the folder of a local checkpoint, because its path is private."""
    config = manifest.get("config", {}).get("models", {}).get(role, {})
    checkpoint = str(config.get("checkpoint", ""))
    if checkpoint.startswith(("/", ".", "~")):
        checkpoint = PurePath(checkpoint).name
    nodes = manifest.get("models", {}).items()
    model: Mapping[str, Any] = next((model for node, model in nodes if node.split(":")[1:2] == [role]), {})
    identity = str(model.get("parts", {}).get("checkpoint", "")).rpartition("@")[2][:DIGEST_CHARACTERS]
    return " ".join(filter(None, (str(config.get("family", "")), checkpoint, f"({identity})" if identity else "")))


class CardScore(NamedTuple):
    """A generator's score for one task of a benchmark's leaderboard, with notes on how the score was computed."""

    task: str
    value: float
    notes: str


def select_scores(card: ModelCard, tasks: Mapping[str, str]) -> list[CardScore]:
    """Return the scores for the tasks. `tasks` maps each score, `metric` or `metric/skill`, to a task's name.

    Without tasks, every metric that ranks generators is its own task. Raises ConfigError if the card lacks a score.
    """
    known = {
        metric.name if skill == OVERALL else f"{metric.name}/{skill}": (metric, row)
        for metric in card.metrics for skill, row in metric.rows.items()
    }  # fmt: skip
    for name in tasks:
        if name not in known:
            raise ConfigError(f"tasks: the run has no score {name!r} for {card.generator}; {suggest(name, known)}")
    selected = tasks or {metric.name: metric.name for metric in card.metrics if metric.ranks}
    scores = []
    for name, task in selected.items():
        metric, row = known[name]
        scores.append(CardScore(task, float(row["mean"]), ", ".join(_make_notes(card, name, metric, row))))
    return scores


def _make_notes(card: ModelCard, name: str, metric: CardMetric, row: Row) -> Iterator[str]:
    yield f"{name}{f' by {metric.models}' if metric.models else ''}{', lower is better' * metric.lower_is_better}"
    yield describe_interval(row["low"], row["high"])
    yield f"coverage {row['coverage']:.1%} of {format_quantity(row['n'] + row['n_null'], 'image')}"
    if card.settings:
        yield card.settings
    yield f"Plumbline {card.version} run {card.run_id}"
