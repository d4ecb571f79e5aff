"""What makes a metric of a run what it is: runs in which it differs have another metric of the same name."""

from collections.abc import Iterator, Mapping
from typing import Any

NAMING = ("checkpoint", "revision")
"""What names a model of whose files nothing is known."""
ABOUT = "about"
"""The option that only tells what a metric does."""

Recipe = Mapping[str, str]
"""Settings by their places."""


def recipe_of(manifest: Mapping[str, Any], metric: str) -> Recipe:
    """The settings of a run that make a metric what it is: its options, what tells which its models are, and the
    versions of its stages.

    Neither its own name nor those of its models' roles are among them, so that entries of another name are the same
    metric where their recipes are the same.
    """
    config: Mapping[str, Any] = manifest.get("config", {})
    options, models = config.get("metrics", {}).get(metric, {}), config.get("models", {})
    roles = {option: role for option, role in options.items() if isinstance(role, str) and role in models}
    resolved = {node.split(":")[1]: model for node, model in manifest.get("models", {}).items() if ":" in node}
    parts = {
        **{option: value for option, value in options.items() if option not in (*roles, ABOUT)},
        "models": {
            option: resolved.get(role, {name: models[role].get(name) for name in NAMING})
            for option, role in roles.items()
        },
        "stages": manifest.get("stages", {}).get(metric, {}),
    }
    return {place: str(value) for place, value in _leaves(parts) if value is not None}


def _leaves(parts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings by their places."""
    for name, value in parts.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def altered_places(before: Recipe, after: Recipe) -> list[str]:
    """Return where two recipes differ."""
    return [place for place in dict.fromkeys([*before, *after]) if before.get(place) != after.get(place)]
