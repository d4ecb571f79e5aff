"""Recipes of metrics: the settings that define a metric in a run. Equal recipes mean that scores are comparable."""

from collections.abc import Iterator, Mapping
from typing import Any

from plumbline.operators.metrics.table import read_metrics

MODEL_NAME_OPTIONS = ("checkpoint", "revision")
"""Options that identify a model whose files are unknown."""
DESCRIPTION_OPTION = "about"
"""Option that only describes a metric."""

Recipe = Mapping[str, str]
"""Settings by path, such as `models.vqa.checkpoint`."""


def read_recipe(manifest: Mapping[str, Any], metric: str) -> Recipe:
    """Return the settings that define a metric in a run: its options, its models, and the versions of its stages.

    The names of the metric and of its models' roles are not included, so renaming a metric does not change its recipe.
    """
    config: Mapping[str, Any] = manifest.get("config", {})
    options, models = config.get("metrics", {}).get(metric, {}), config.get("models", {})
    roles = {option: role for option, role in options.items() if isinstance(role, str) and role in models}
    resolved = {node.split(":")[1]: model for node, model in manifest.get("models", {}).items() if ":" in node}
    parts = {
        **{option: value for option, value in options.items() if option not in (*roles, DESCRIPTION_OPTION)},
        "models": {
            option: resolved.get(role, {name: models[role].get(name) for name in MODEL_NAME_OPTIONS})
            for option, role in roles.items()
        },
        "stages": manifest.get("stages", {}).get(metric, {}),
    }
    return {path: str(value) for path, value in _flatten_mapping(parts) if value is not None}


def _flatten_mapping(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a path, such as `models.vqa.checkpoint`, and the value there, for each value in a nested mapping."""
    for name, value in parts.items():
        if isinstance(value, Mapping):
            yield from _flatten_mapping(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def list_differing_paths(before: Recipe, after: Recipe) -> list[str]:
    """Return the paths at which two recipes have different settings."""
    return [path for path in dict.fromkeys([*before, *after]) if before.get(path) != after.get(path)]


def list_unranked_metrics(manifest: Mapping[str, Any]) -> frozenset[str]:
    """Return the metrics of a run that only describe images, so that no score is better than another."""
    return frozenset(name for name, metric in read_metrics(manifest).items() if not metric.ranks)


def list_relative_metrics(manifest: Mapping[str, Any]) -> frozenset[str]:
    """Return the metrics of a run that compare generators with each other.

    Their scores are not compared with those of other runs: a generator's win rate also depends on the other generators.
    """
    return frozenset(name for name, metric in read_metrics(manifest).items() if metric.pair_selection is not None)
