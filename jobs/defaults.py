"""Defaults and help texts for Hydra's configuration, taken from dataclasses so that options are declared once."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_origin

import yaml  # type: ignore[import-untyped]
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.models.families import FAMILIES
from plumbline.operators.models.model import ModelConfig
from plumbline.pipelines.plans.sweep_config import list_alternatives, list_classes

REQUIRED_MARK = "???"
"""Hydra's value for a key without a default."""


class ConfigKey(NamedTuple):
    """A key of a configuration, as shown in the help."""

    path: str
    value: str
    """The default as YAML; empty if the key has subkeys."""
    meaning: str
    """The docstring of the field in its class."""


def collect_defaults(schema: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with their defaults as plain values; REQUIRED_MARK for fields without a default.

    Fields that are dataclasses and have no default are left out, because they are set by choosing from a group.
    """
    return {
        field.name: _convert_to_plain(default)
        for field in fields(schema)
        if (default := _get_default(field)) != REQUIRED_MARK or not _contains_dataclasses(field)
    }


@cache
def register_defaults(schema: Any) -> None:
    """Register the defaults of each dataclass in a schema, except metrics and models, for use in conf/.

    The defaults of `GcConfig` are named `any_gc`. Base classes are registered too.
    """
    for config in {base for each in list_classes(schema) for base in each.__mro__ if _is_schema(base)}:
        if not issubclass(config, Metric | ModelConfig):
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", config.__name__.removesuffix("Config")).lower()
            ConfigStore.instance().store(name=f"any_{name}", node=collect_defaults(config))


@cache
def register_metrics_and_models() -> None:
    """Register the defaults that files in conf/ can build on.

    `any_KIND` has all options of a kind of metric, `any_model/FAMILY` the options of a family of models, and
    `any_model` the options of all families. A metric from another package can be chosen directly by its kind.
    """
    from plumbline.operators.metrics.table import KINDS  # imports every metric

    store = ConfigStore.instance()
    models = {
        name: {**_check_plain_values(FAMILIES, name, collect_defaults(family.config)), "family": name}
        for name, family in FAMILIES.items()
    }
    for name, options in models.items():
        store.store(group="any_model", name=name, node=options)
    every_option = {option: value for options in reversed(models.values()) for option, value in options.items()}
    store.store(name="any_model", node=every_option | {"family": REQUIRED_MARK})
    for kind, metric in KINDS.items():
        store.store(name=f"any_{kind}", node=_check_plain_values(KINDS, kind, collect_defaults(metric)))
    for kind in list_foreign_kinds():
        store.store(group="metric", name=kind, node=collect_defaults(KINDS[kind]), package=f"metrics.{kind}")


def _check_plain_values(extensions: Extensions[Any], name: str, defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an extension's defaults; raise ConfigError if a default from another package cannot be written as YAML."""
    for option, value in defaults.items() if name not in extensions.ours else ():
        try:
            OmegaConf.create({option: value})
        except OmegaConfBaseException as error:
            raise ConfigError(
                f"{extensions.describe(name)}: option {option!r}: expected a default of plain values, such as strings, "
                f"numbers, lists and mappings ({str(error).partition(chr(10))[0][:200]}); correct the package"
            ) from error
    return defaults


@cache
def register_benchmark(name: str) -> None:
    """Allow `benchmarks=[NAME,...]` to choose a file of the group `benchmark`, with its keys under benchmarks.NAME."""
    defaults = [{f"/benchmark@benchmarks.{name}": name}]
    node = {"defaults": defaults, "benchmark": {"limit": None}, "metrics_of": {name: None}}
    ConfigStore.instance().store(group="benchmarks", name=name, node=node, package="_global_")


def list_foreign_kinds() -> list[str]:
    """Return the kinds of metrics from other packages."""
    from plumbline.operators.metrics.table import KINDS

    return [kind for kind in KINDS if kind not in KINDS.ours]


def list_keys(schema: Any, values: Mapping[str, Any], path: str = "") -> Iterator[ConfigKey]:
    """Yield the keys of a schema with their defaults or the given values, then other keys in the given values.

    The options of models and metrics are left out, because they depend on the choice. Options of objects that are null
    by default are left out too.
    """
    own = {field.name: field for each in list_alternatives(schema) for field in fields(each)}
    meanings = {name: text for each in list_alternatives(schema) for name, text in read_field_docs(each).items()}
    for name, field in own.items():
        default = _convert_to_plain(_get_default(field))
        value = values.get(name, default)
        inner = list_alternatives(field.type)
        if len(inner) == 1 and value is not None:
            given = {**(default if isinstance(default, dict) else {}), **values.get(name, {})}
            yield ConfigKey(path + name, "", meanings[name] or _get_first_paragraph(inspect.getdoc(inner[0])))
            yield from list_keys(inner[0], given, f"{path}{name}.")
        elif isinstance(value, Mapping) and value:
            yield ConfigKey(path + name, "", meanings[name])
            yield from _list_given_keys(value, f"{path}{name}.")
        elif value != REQUIRED_MARK or not _contains_dataclasses(field):
            meaning, words = meanings[name], _list_literals(field.type)
            if not all(word in meaning for word in words):
                meaning = f"{meaning} Choices: {', '.join(words)}.".lstrip()
            yield ConfigKey(path + name, _format_yaml(value), meaning)


@cache
def read_field_docs(schema: Any) -> dict[str, str]:
    """Return the docstring of each field of a dataclass, by the name of the field; empty if it has no docstring."""
    inherited = [each for each in schema.__bases__ if _is_schema(each)]
    meanings = {name: text for each in inherited for name, text in read_field_docs(each).items()}
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(schema))).body
    assert isinstance(node, ast.ClassDef)
    for statement, following in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value = following.value if isinstance(following, ast.Expr) else None
            text = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
            meanings[statement.target.id] = _get_first_paragraph(text)
    return meanings


def _list_literals(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [word for word in get_args(kind) if isinstance(word, str)]
    return [word for inner in get_args(kind) for word in _list_literals(inner)]


def _get_first_paragraph(text: str | None) -> str:
    """Return the first paragraph of a text as one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def _list_given_keys(values: Mapping[Any, Any], path: str) -> Iterator[ConfigKey]:
    for name, value in values.items():
        deeper = value if isinstance(value, Mapping) else {}
        yield ConfigKey(f"{path}{name}", "" if deeper else _format_yaml(value), "")
        yield from _list_given_keys(deeper, f"{path}{name}.")


def _format_yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf")).removesuffix("...\n").strip()
    return REQUIRED_MARK if value == REQUIRED_MARK else text


def _is_schema(kind: Any) -> bool:  # not a type guard, which would narrow classes to instances
    return is_dataclass(kind)


def _contains_dataclasses(field: Field[Any]) -> bool:
    kind: Any = field.type
    return bool(list_classes(kind))


def _get_default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return REQUIRED_MARK if field.default is MISSING else field.default


def _convert_to_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _convert_to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _convert_to_plain(each) for key, each in value.items()}
    return [_convert_to_plain(each) for each in value] if isinstance(value, list | tuple) else value
