"""The defaults of dataclasses as Hydra's files have them, so that a field is written once."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from hydra.core.config_store import ConfigStore

REQUIRED = "???"
"""How Hydra writes a key that has no default."""


def defaults_of(schema: Any) -> dict[str, Any]:
    """The fields of a dataclass with their defaults as plain values; REQUIRED for those without."""
    return {field.name: _plain(_default(field)) for field in fields(schema)}


@cache
def register_defaults() -> None:
    """Lets the files of conf/ stand on `any_KIND`, all options of a kind of metric.

    A metric of another package is a choice by its kind as it is.
    """
    from plumbline.operators.metrics.table import KINDS  # imports every metric

    store = ConfigStore.instance()
    for kind, metric in KINDS.items():
        store.store(name=f"any_{kind}", node=defaults_of(metric))
    for kind in kinds_of_others():
        store.store(group="metric", name=kind, node=defaults_of(KINDS[kind]), package=f"metrics.{kind}")


def kinds_of_others() -> list[str]:
    """The kinds of metrics that other packages bring."""
    from plumbline.operators.metrics.table import KINDS

    return [kind for kind in KINDS if kind not in KINDS.ours]


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return REQUIRED if field.default is MISSING else field.default


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
